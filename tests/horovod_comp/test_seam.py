from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from gradwire.compressors.errors import UnsupportedError, UsageError
from gradwire.horovod_comp._handle import SleepingHandle
from gradwire.horovod_comp._host import ReducingOptimizer
from gradwire.horovod_comp._seam import Operation, Payload, Request, install
from horovod.torch import mpi_ops

UNTOUCHED = Path(__file__).with_name("untouched.py")
SINGLE, GROUPED = (f"horovod_torch_{kind}_async_gradwire_Payload" for kind in ("allreduce", "grouped_allreduce"))


class Submission(NamedTuple):
    payload: Payload
    optimizer: ReducingOptimizer
    parameter: torch.nn.Parameter
    name: str
    op: Operation
    scale: float


class Recorder:
    """A compression object that sends nothing: it notes what it is asked, and the result is the gradient itself."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.submissions: list[Submission] = []

    def compress(self, tensor: torch.Tensor) -> tuple[Payload, None]:
        return Payload(self, tensor), None

    def decompress(self, payload: Payload, ctx: None) -> torch.Tensor:
        assert isinstance(payload, Payload)
        return payload.tensor

    def _submit(
        self,
        payload: Payload,
        optimizer: ReducingOptimizer,
        parameter: torch.nn.Parameter,
        name: str,
        op: Operation,
        scale: float,
    ) -> None:
        self.submissions.append(Submission(payload, optimizer, parameter, name, op, scale))

    def _is_reduced(self, optimizer: ReducingOptimizer, parameter: torch.nn.Parameter, name: str) -> bool:
        return False

    def _launch(self, request: Request) -> SleepingHandle:
        self.requests.append(request)
        handle = mpi_ops.allreduce_async_(torch.zeros(1), name=f"recorder.{request.name}")
        return SleepingHandle(handle, lambda: None)


@pytest.fixture(autouse=True)
def recorder() -> Recorder:
    install()
    return Recorder()


# What is added to Horovod, and what is relied on.


def test_nothing_of_horovod_changes_but_two_added_functions() -> None:
    done = subprocess.run([sys.executable, str(UNTOUCHED)], capture_output=True, text=True, timeout=120, check=True)
    added = [f"horovod.torch.mpi_lib_v2.{name}" for name in (SINGLE, GROUPED)]
    assert json.loads(done.stdout) == {"files": [], "by importing the seam": [], "by installing it": added}


@pytest.mark.parametrize("name", [SINGLE, GROUPED])
def test_a_function_of_somebody_else_is_not_overwritten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_ops.mpi_lib, name, print)
    with pytest.raises(UnsupportedError, match=f"mpi_lib.{name} exists and is not gradwire's: <built-in"):
        install()
    assert getattr(mpi_ops.mpi_lib, name) is print


def test_horovod_looks_for_the_added_functions(recorder: Recorder) -> None:
    payload = Payload(recorder, torch.ones(2))
    assert mpi_ops._allreduce_function_factory(payload) == SINGLE
    assert mpi_ops._grouped_allreduce_function_factory(payload) == GROUPED


# Payloads and handles.


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.0),
        torch.ones(0, 3),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.ones(4, 6)[:, ::2],
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(3, dtype=torch.int64),
    ],
    ids=["0-dim", "empty", "bf16", "not contiguous", "channels_last", "integers"],
)
def test_any_strided_tensor_makes_a_payload(tensor: torch.Tensor, recorder: Recorder) -> None:
    payload = Payload(recorder, tensor)
    assert (payload.shape, payload.dtype, payload.device) == (tensor.shape, tensor.dtype, tensor.device)
    assert payload.is_contiguous()
    assert payload.new(payload.shape) is payload.data is payload


def test_a_sparse_tensor_is_refused(recorder: Recorder) -> None:
    with pytest.raises(UnsupportedError, match=r"layout torch\.sparse_coo .* use Embedding\(sparse=False\)"):
        Payload(recorder, torch.eye(3).to_sparse())


def test_a_payload_is_a_handle_of_its_own(recorder: Recorder) -> None:
    payload, other = Payload(recorder, torch.ones(1)), Payload(recorder, torch.ones(1))
    mpi_ops._handle_map.update({payload: (), other: ()})
    assert payload() is payload
    assert payload not in mpi_ops._handle_map
    assert mpi_ops._handle_map.pop(other) == ()


# Functions: hvd.allreduce and hvd.grouped_allreduce.


def test_a_function_call_becomes_a_request(hvd: ModuleType, recorder: Recorder) -> None:
    tensor = torch.arange(3.0)
    result = hvd.allreduce(tensor, name="x", compression=recorder, prescale_factor=0.5, postscale_factor=3.0)
    assert result is tensor
    (request,) = recorder.requests
    assert [payload.tensor for payload in request.payloads] == [tensor]
    assert (request.name, request.op, request.scale, request.grouped) == ("x", "average", 1.5, False)
    assert request.process_set is hvd.global_process_set
    assert (request.optimizer, request.parameters) == (None, ())


def test_a_grouped_call_becomes_one_request(hvd: ModuleType, recorder: Recorder) -> None:
    tensors = [torch.ones(2), torch.ones((), dtype=torch.float64), torch.ones(3, 2).t()]
    results = hvd.grouped_allreduce(tensors, compression=recorder, op=hvd.Sum)
    assert all(result is tensor for result, tensor in zip(results, tensors, strict=True))
    (request,) = recorder.requests
    assert (request.name, request.op, request.grouped, len(request.payloads)) == (None, "sum", True, 3)


@pytest.mark.parametrize("op", ["Adasum", "Min", "Max", "Product"])
def test_other_reductions_are_refused(hvd: ModuleType, recorder: Recorder, op: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"^op={op} cannot reduce .* use op=hvd\.Average or op=hvd\.Sum"):
        hvd.allreduce(torch.ones(2), name="x", compression=recorder, op=getattr(hvd, op))
    assert recorder.requests == []


def test_a_tensor_that_wants_a_gradient_is_refused(hvd: ModuleType, recorder: Recorder) -> None:
    tensor = torch.ones(2, requires_grad=True)
    with pytest.raises(UsageError, match=r"detach\(\) the tensor first"):
        hvd.allreduce(tensor, name="x", compression=recorder)
    with torch.no_grad():
        assert hvd.allreduce(tensor, name="x", compression=recorder) is tensor


@pytest.mark.parametrize("other", [lambda: Payload(Recorder(), torch.ones(1)), lambda: torch.ones(1)])
def test_a_group_of_mixed_origin_is_refused(hvd: ModuleType, recorder: Recorder, other: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match="use one object per call"):
        hvd.grouped_allreduce_async_([Payload(recorder, torch.ones(1)), other()], name="x")


def test_a_runtime_error_of_a_launch_becomes_horovods_own(hvd: ModuleType) -> None:
    class Failing(Recorder):
        def _launch(self, request: Request) -> SleepingHandle:
            raise RuntimeError(f"no {request.name}")

    with pytest.raises(hvd.HorovodInternalError, match="no x"):
        hvd.allreduce(torch.ones(2), name="x", compression=Failing())


# Optimizers.


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(3, 1)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x).sum()


Step = Callable[..., torch.optim.Optimizer]


@pytest.fixture
def step(hvd: ModuleType, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Step:
    """Runs one step of a small net under hvd.DistributedOptimizer, in this single process."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # with one process Horovod sets hooks for elastic jobs only

    def run(compression: Recorder = recorder, **options: object) -> torch.optim.Optimizer:
        net = Net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), compression=compression, **options
        )
        net(torch.ones(1, 3)).backward()
        optimizer.step()
        return optimizer

    return run


def test_hooks_give_the_optimizer_and_the_parameter(step: Step, recorder: Recorder) -> None:
    optimizer = step(gradient_predivide_factor=2.0)
    assert recorder.requests == []
    assert sorted(submission.name for submission in recorder.submissions) == ["unused", "used.bias", "used.weight"]
    for payload, owner, parameter, name, op, scale in recorder.submissions:
        assert owner is optimizer
        assert vars(optimizer)["_parameter_names"][parameter] == name
        assert parameter.grad is not None
        assert payload.tensor.equal(parameter.grad)
        assert (op, scale) == ("average", 1.0)
    assert not any(isinstance(handle, Payload) for handle in mpi_ops._handle_map)


def test_groups_give_all_their_parameters(step: Step, recorder: Recorder) -> None:
    """The second group is complete; of the first one a parameter is not used, so its parameters come one by one."""
    optimizer = step(groups=2)
    (request,) = recorder.requests
    assert request.optimizer is optimizer
    assert request.grouped
    names = vars(optimizer)["_parameter_names"]
    assert [names[parameter] for parameter in request.parameters] == ["used.bias"]
    for payload, parameter in zip(request.payloads, request.parameters, strict=True):
        assert parameter.grad is not None
        assert payload.tensor.equal(parameter.grad)
    assert sorted(submission.name for submission in recorder.submissions) == ["unused", "used.weight"]


def test_a_second_synchronisation_asks_whether_the_gradient_is_reduced(step: Step) -> None:
    """step() after synchronize() submits every gradient again; one that is a mean already passes as it is."""
    asked: list[str] = []

    class Reduced(Recorder):
        def _is_reduced(self, optimizer: ReducingOptimizer, parameter: torch.nn.Parameter, name: str) -> bool:
            asked.append(name)
            return name == "used.bias"

        def decompress(self, payload: Payload, ctx: None) -> torch.Tensor:
            return payload.tensor if payload.take is None else payload.take()

    recorder = Reduced()
    optimizer = step(compression=recorder)
    vars(optimizer)["_synchronized"] = True
    vars(type(optimizer))["synchronize"](optimizer)
    assert sorted(asked) == ["unused", "used.bias", "used.weight"]
    assert sorted(submission.name for submission in recorder.submissions[3:]) == ["unused", "used.weight"]


def test_a_call_from_within_a_hook_is_not_the_optimizers(step: Step, hvd: ModuleType) -> None:
    inner = Recorder()

    class Outer(Recorder):
        def _submit(
            self,
            payload: Payload,
            optimizer: ReducingOptimizer,
            parameter: torch.nn.Parameter,
            name: str,
            op: Operation,
            scale: float,
        ) -> None:
            hvd.allreduce(torch.ones(1), name=f"inner.{name}", compression=inner)

    step(compression=Outer())
    assert [request.optimizer for request in inner.requests] == [None] * 3
    assert inner.submissions == []


def test_adasum_is_refused(step: Step) -> None:
    with pytest.raises(UnsupportedError, match=r"^op=Adasum cannot reduce compressed gradients"):
        step(op=mpi_ops.Adasum)
