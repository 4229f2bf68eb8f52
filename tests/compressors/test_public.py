"""What `import gradwire` gives, and what it needs."""

from __future__ import annotations

import subprocess
import sys

import gradwire
from gradwire import compressors

ALONE = """
import random, sys
import numpy, torch

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("deepspeed", "horovod", "hypothesis", "matplotlib", "mpi4py", "rich"):
            raise AssertionError(f"import gradwire imports {name}")

sys.meta_path.insert(0, Refuse())
state = lambda: (
    torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()), torch.get_default_dtype(),
    torch.get_num_threads(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
)
before = state()
import gradwire
assert state() == before, "import gradwire changes global state"
gradwire.parse_spec("topk")
"""


def test_import_needs_torch_and_numpy_only_and_changes_no_global_state() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_root_has_every_public_name_of_the_core() -> None:
    assert set(gradwire.__all__) == {*compressors.__all__, "__version__"}
    assert all(getattr(gradwire, name) is getattr(compressors, name) for name in compressors.__all__)
