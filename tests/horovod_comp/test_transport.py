"""What a transport does when Horovod is not there, or not there any more. The rest is in tests/parallel/horovod."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from gradwire.compressors.errors import TransportError, UnsupportedError, UsageError
from gradwire.horovod_comp.transport import CollectiveError, HorovodTransport, HorovodWork, JoinError
from horovod.torch import mpi_ops

LIMIT = 30.0


def test_it_needs_an_initialised_horovod(hvd: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hvd, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"call hvd\.init\(\) first"):
        HorovodTransport()


def test_another_init_ends_it_and_what_is_under_way(hvd: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = HorovodTransport()
    finished = transport.all_reduce(torch.ones(2), "finished")
    finished.wait(LIMIT)
    pending = transport.all_reduce(torch.ones(2), "pending")
    assert transport.current
    with monkeypatch.context() as patch:
        patch.setattr(mpi_ops, "_handle_map", {})  # what hvd.init() does
        assert not transport.current
        assert pending.done()
        with pytest.raises(TransportError, match=r"^pending: lost, Horovod was initialised again"):
            pending.wait(LIMIT)
        with pytest.raises(TransportError, match=r"^next: Horovod was initialised again"):
            transport.all_reduce(torch.ones(2), "next")
        assert finished.wait(0.0).tolist() == [1.0, 1.0]


def test_a_result_of_another_size_is_an_error(hvd: ModuleType) -> None:
    """A collective that failed where Horovod itself waited for it leaves its output as it was."""
    handle = hvd.allgather_async(torch.ones(3), name="short")
    output = mpi_ops._handle_map[handle][-1]
    hvd.synchronize(handle)
    mpi_ops._handle_map[handle] = (None, output)
    work = HorovodWork(handle, output, 4, "short")
    del mpi_ops._handle_map[handle]
    with pytest.raises(CollectiveError, match=r"^short: got 3 elements, expected 4"):
        work.wait(LIMIT)


def test_which_errors_an_elastic_job_tries_to_mend(hvd: ModuleType) -> None:
    assert issubclass(CollectiveError, hvd.HorovodInternalError)
    assert issubclass(CollectiveError, TransportError)
    assert issubclass(JoinError, UnsupportedError)
    assert not issubclass(JoinError, hvd.HorovodInternalError)
