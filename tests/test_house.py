"""The rules of the house: who may import whom, what is public, and that importing changes nothing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import statistics
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import gradwire
import pytest

ROOT = Path(gradwire.__file__).parent
CORE = {"torch", "numpy"}
#: folder -> (packages it may import, folders of gradwire it may import)
RULES = {
    "compressors": (CORE, {"compressors"}),
    "backends": (CORE, {"compressors", "backends"}),
    "horovod_comp": (CORE | {"horovod", "typing_extensions"}, {"compressors", "backends", "horovod_comp"}),
    "deepspeed_comp": (CORE | {"deepspeed", "pydantic"}, {"compressors", "backends", "deepspeed_comp"}),
}
EXCEPTIONS = {"backends/mpi.py": {"mpi4py"}}
#: these import triton, which is installed where torch for GPUs is
TRITON = ROOT / "compressors" / "kernels" / "triton"
FOLDERS = [*RULES, "launch"]
FILES = [*sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")), ROOT / "__init__.py"]
OPTIONAL = ["horovod", "deepspeed", "mpi4py", "rich", "matplotlib"]


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything that a file of gradwire imports, at whatever depth."""
    package = ["gradwire", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = [*base, *(node.module or "").split(".")] if node.module else base
            yield from (".".join([*module, alias.name]) for alias in node.names)


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent != ROOT and "launch" not in path.parts], ids=label
)
def test_a_folder_imports_only_what_it_may(path: Path) -> None:
    packages, folders = RULES[path.relative_to(ROOT).parts[0]]
    packages = packages | EXCEPTIONS.get(label(path), set()) | ({"triton"} if path.parent == TRITON else set())
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "gradwire":
            assert rest[0] in folders | {"_version", "__version__"}, f"{label(path)} imports {name}"
        else:
            assert first in packages or first in sys.stdlib_module_names, f"{label(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_imports_inside_the_package_are_relative(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert not any(name.split(".")[0] == "gradwire" for name in names)


def modules() -> list[str]:
    has_triton = importlib.util.find_spec("triton") is not None
    files = [path for path in FILES if path.parent != TRITON or has_triton]
    names = [".".join(["gradwire", *path.relative_to(ROOT).with_suffix("").parts]) for path in files]
    return sorted(name.removesuffix(".__init__") for name in names)


@pytest.mark.parametrize("name", modules())
def test_public_names_are_listed_sorted_and_typed(name: str) -> None:
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(module.__all__)
    for public in module.__all__:
        check_returns(f"{name}.{public}", getattr(module, public), module)


def check_returns(name: str, thing: object, module: ModuleType) -> None:
    """Every public function and method says what it returns, with a type that exists."""
    if inspect.isfunction(thing):
        assert "return" in typing.get_type_hints(thing), f"{name} declares no return type"
    elif inspect.isclass(thing) and thing.__module__.startswith("gradwire"):
        for method, function in vars(thing).items():
            inner = function.fget if isinstance(function, property) else function
            inner = getattr(inner, "__func__", inner)
            if method.startswith("_") or not inspect.isfunction(inner) or not inner.__module__.startswith("gradwire"):
                continue
            if "<string>" not in inner.__code__.co_filename:
                check_returns(f"{name}.{method}", inner, module)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_the_core_and_the_backends_need_torch_and_numpy_only() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
    done = run_python(blocked + "import gradwire, gradwire.backends")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("use", "line"),
    [
        ("import gradwire.horovod_comp", 'pip install "gradwire[horovod]"'),
        ("import gradwire.deepspeed_comp", 'pip install "gradwire[deepspeed]"'),
        ("from gradwire.backends import MpiTransport; MpiTransport()", 'pip install "gradwire[mpi]"'),
    ],
)
def test_a_missing_optional_package_is_an_error_where_it_is_used(use: str, line: str) -> None:
    done = run_python(f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n{use}")
    assert done.returncode != 0
    assert "MissingDependencyError" in done.stderr
    assert line in done.stderr


#: what `import gradwire.deepspeed_comp` adds to torch.optim, where a stock DeepSpeed looks for an optimizer it does
#: not know: so a script needs that one line. tests/deepspeed_comp/test_registration.py says what else it adds
ADDED = [case(name) for name in ("OneBitAdam", "OneBitLamb", "ZeroOneAdam") for case in (str, str.lower)]
STATE = """
import random, sys, importlib
import deepspeed.runtime.engine
import numpy, torch
import horovod.torch as hvd
from horovod.torch import mpi_ops, optimizer, functions
import horovod.torch.mpi_lib_v2 as mpi_lib
def state():
    flags = [torch.get_num_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
             torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark]
    modules = [torch, torch.optim, torch.nn, torch.distributed, hvd, mpi_ops, mpi_lib, optimizer, functions,
               optimizer._DistributedOptimizer]
    names = [{name: id(value) for name, value in vars(module).items()} for module in modules]
    for name in ADDED:
        names[1].pop(name, None)
    return [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), flags, names]
torch.distributed.is_available()
before = state()
for name in NAMES:
    importlib.import_module(name)
after = state()
for one, two in zip(before, after):
    if one != two:
        sys.exit(f"changed: {[a for a in zip(one, two) if a[0] != a[1]]}"[:3000])
"""


def test_importing_changes_no_global_state() -> None:
    names = [name for name in modules() if not name.startswith("gradwire.launch")]
    done = run_python(STATE.replace("NAMES", repr(names)).replace("ADDED", repr(ADDED)))
    assert done.returncode == 0, done.stderr


def test_functions_and_files_are_short() -> None:
    lengths = []
    for path in [*FILES, *(ROOT / "tests").rglob("*.py")]:
        assert path.read_text().count("\n") <= 300, f"{label(path)} is too long"
    for path in FILES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lengths.append(length(node))
                assert lengths[-1] <= 60, f"{label(path)}: {node.name} is too long"
    assert statistics.median(lengths) <= 8
    assert statistics.quantiles(lengths, n=10)[-1] <= 30


def length(function: ast.FunctionDef) -> int:
    """Lines of the body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if not body:
        return 0
    end = body[-1].end_lineno
    assert end is not None
    return end - body[0].lineno + 1
