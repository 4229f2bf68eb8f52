"""A handle that Horovod waits for while it sleeps."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch
from gradwire.backends.transport import sleep_until
from gradwire.compressors.errors import TransportTimeout
from gradwire.horovod_comp._handle import SleepingHandle
from horovod.torch import mpi_ops


def test_a_sleeping_handle_is_the_handle_once_the_collective_is_done(hvd: ModuleType) -> None:
    handle = hvd.allreduce_async_(torch.ones(2), name="asleep")
    slept: list[bool] = []
    sleeping = SleepingHandle(handle, lambda: slept.append(sleep_until(partial(hvd.poll, handle), 10.0)))
    assert sleeping in mpi_ops._handle_map
    assert slept == []
    assert hvd.synchronize(sleeping).tolist() == [1.0, 1.0]
    assert slept == [True]
    assert handle not in mpi_ops._handle_map


def test_an_error_while_a_handle_sleeps_reaches_the_user_as_it_is(hvd: ModuleType) -> None:
    def sleep() -> None:
        raise TransportTimeout("bucket: not finished within 1 s")

    handle = hvd.allreduce_async_(torch.ones(2), name="never")
    with pytest.raises(TransportTimeout, match=r"^bucket: not finished within 1 s$"):
        hvd.synchronize(SleepingHandle(handle, sleep))
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
