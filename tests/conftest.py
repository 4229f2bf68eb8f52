"""Settings shared by all tests: one thread, and no time limits within hypothesis."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
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


class PlainRoot:
    """The repository's root is a package, but not of tests: pytest is not to import it under the folder's name."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return pytest.Dir.from_parent(parent, path=path) if path == parent.config.rootpath else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PlainRoot())  # a hook in this file is not asked about the folders above it
