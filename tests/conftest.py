"""Settings shared by all tests: one thread, and no time limits within hypothesis."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

settings.register_profile(
    "gradwire",
    deadline=None,
    max_examples=25,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gradwire")
