"""The private names of Horovod that are relied on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from gradwire.compressors.errors import UnsupportedError
from gradwire.horovod_comp._host import missing_names, require
from horovod.torch import mpi_ops
from horovod.torch.optimizer import _DistributedOptimizer


def test_the_installed_horovod_has_all_that_is_needed() -> None:
    assert missing_names(mpi_ops, _DistributedOptimizer) == []


def test_names_that_are_missing_are_found() -> None:
    names = {name: value for name, value in vars(mpi_ops).items() if name != "_handle_map"}

    class Other(_DistributedOptimizer):
        synchronize = None

        def _allreduce_grad_async(self, parameter: object) -> object:
            return parameter

    method = "horovod.torch.optimizer._DistributedOptimizer"
    assert missing_names(SimpleNamespace(**names), Other) == [
        "horovod.torch.mpi_ops._handle_map",
        f"p in {method}._allreduce_grad_async",
        f"name in {method}._allreduce_grad_async",
        f"allreduce_async_ in {method}._allreduce_grad_async",
        f"{method}.synchronize",
    ]


def test_a_missing_name_is_refused_with_the_versions() -> None:
    text = r"^Horovod 0\.28\.1 lacks what gradwire needs: a, b\. Supported: 0\.28\.1; pip install horovod==0\.28\.1$"
    with pytest.raises(UnsupportedError, match=text):
        require(["a", "b"])
