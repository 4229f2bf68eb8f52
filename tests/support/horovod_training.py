"""Helpers for tests under horovodrun: tiny models with other data on every rank, and the same job without Horovod."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import horovod.torch as hvd
import torch
from gradwire.backends import GradientReducer, LocalTransport, run_ranks
from gradwire.compressors import Compressor, TensorMeta
from gradwire.horovod_comp import Compression, HorovodTransport
from torch import nn

RATE = 0.1
Net = TypeVar("Net", bound=nn.Module)


def model(seed: int = 0) -> nn.Sequential:
    """Two matrices that are worth compressing at `min_numel=8`, and their biases."""
    return filled(nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)), seed)


def filled(net: Net, seed: int = 0) -> Net:
    """The same parameters on every rank, whatever happens to the global random numbers."""
    for name, parameter in net.named_parameters():
        parameter.data.copy_(0.3 * noise(tuple(parameter.shape), seed, name))
    return net


def noise(shape: Sequence[int], *key: object) -> torch.Tensor:
    """Normally distributed; the same wherever the key is the same."""
    generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
    return torch.randn(tuple(shape), generator=generator)


def loss(net: Callable[[torch.Tensor], torch.Tensor], step: int, rank: int | None = None) -> torch.Tensor:
    """Other data on every rank and in every step."""
    rank = hvd.rank() if rank is None else rank
    return (net(noise((4, 7), "x", step, rank)) - noise((4, 3), "y", step, rank)).square().mean()


def wrapped(net: nn.Module, compression: object, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> Any:
    """Horovod's optimizer around a stock one (SGD unless given).

    It lives as long as the model, and so do the residuals: a compression forgets those of an optimizer that is gone.
    """
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=RATE)
    made = hvd.DistributedOptimizer(
        optimizer, named_parameters=net.named_parameters(), compression=compression, **options
    )
    net.its_optimizer = made
    return made


def train(net: nn.Module, optimizer: Any, steps: Iterable[int], passes: int = 1) -> None:
    """Steps on this rank's data; after each the ranks must agree bitwise."""
    for step in steps:
        optimizer.zero_grad()
        for number in range(passes):
            loss(net, step * passes + number).backward()
        optimizer.step()
        assert_ranks_equal(net.parameters(), optimizer.process_set)


def assert_ranks_equal(tensors: Iterable[torch.Tensor], process_set: hvd.ProcessSet = hvd.global_process_set) -> None:
    """Bitwise, on all ranks of the set. Every rank of the set must call it."""
    if not process_set.included():
        return
    handle = hvd.allgather_async(digest(tensors).view(1, -1), name="digest", process_set=process_set)
    digests = finished(handle)
    different = [rank for rank, other in enumerate(digests) if not torch.equal(other, digests[0])]
    assert not different, f"ranks {different} differ from rank 0 of {process_set}"


def digest(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(bits(tensor))
    return torch.frombuffer(bytearray(hashed.digest()), dtype=torch.uint8)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def finished(handle: int) -> torch.Tensor:
    """Horovod's result, waited for without spinning: a test may have more ranks than cores."""
    while not hvd.poll(handle):
        time.sleep(0.0005)
    return hvd.synchronize(handle)


def grad(parameter: torch.Tensor) -> torch.Tensor:
    """Its gradient, which must be there."""
    assert parameter.grad is not None
    return parameter.grad


def values(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in net.parameters()])


def reducers(compression: Compression) -> list[GradientReducer]:
    return [reducer for session in compression._sessions() for reducer in session._reducers]


def states(compression: Compression) -> list[tuple[int, str, str, bytes]]:
    """Everything that the compression remembers on this rank, to be compared with itself at another time."""
    return [
        (number, name, key, bits(value))
        for number, reducer in enumerate(reducers(compression))
        for memory in (reducer._states, reducer._servers)
        for name, state in memory.items()
        for key, value in sorted(state.items())
    ]


# The oracle: the same job in one process, every rank a thread, the gradients handed to a reducer by hand.


class _LikeHorovod(LocalTransport):
    sum_dtypes = HorovodTransport.sum_dtypes


def oracle(
    compressor: Compressor, steps: int, size: int, make_model: Callable[[], nn.Module] = model, **options: Any
) -> torch.Tensor:
    """The parameters that `size` ranks should have after some steps; computed by rank 0 and given to all."""
    result = torch.empty_like(values(make_model()))
    if hvd.rank() == 0:
        result = simulated(compressor, steps, size, make_model, **options)
    return finished(hvd.broadcast_async(result, 0, name="oracle"))


def simulated(
    compressor: Compressor, steps: int, size: int, make_model: Callable[[], nn.Module], **options: Any
) -> torch.Tensor:
    def rank_main(local: LocalTransport) -> torch.Tensor:
        transport = _LikeHorovod(local.hub, local.rank)
        net = make_model()
        reducer = GradientReducer(compressor, transport, **options)
        named = dict(net.named_parameters())
        reducer.register([TensorMeta(name=n, shape=tuple(p.shape), dtype=p.dtype) for n, p in reversed(named.items())])
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for step in range(steps):
            optimizer.zero_grad()
            loss(net, step, transport.rank).backward()
            for name, parameter in named.items():
                reducer.ready(name, grad(parameter))
            for name, parameter in named.items():
                parameter.grad = reducer.wait(name)
            optimizer.step()
        return values(net)

    return run_ranks(size, rank_main)[0]
