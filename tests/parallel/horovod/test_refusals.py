"""What cannot work is refused at once, with the reason and the way out; Horovod stays usable."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from gradwire import ConfigError, UnsupportedError, UsageError
from gradwire.horovod_comp import TopK
from horovod.torch import mpi_ops
from support.horovod_training import loss, model, train, wrapped

pytestmark = pytest.mark.usefixtures("hvd")


@pytest.mark.parametrize("op", ["Adasum", "Min", "Max", "Product"])
@pytest.mark.parametrize("grouped", [False, True], ids=["one", "grouped"])
def test_operations_that_are_no_sum(op: str, grouped: bool) -> None:
    call, x = (hvd.grouped_allreduce, [torch.ones(4)]) if grouped else (hvd.allreduce, torch.ones(4))
    with pytest.raises(UnsupportedError, match=rf"op={op} .* use op=hvd.Average or op=hvd.Sum"):
        call(x, op=getattr(mpi_ops, op), compression=TopK())


def test_adasum_in_an_optimizer() -> None:
    """Horovod hands Adasum the change of a parameter, at its first backward."""
    net = model()
    optimizer = wrapped(net, TopK(), op=hvd.Adasum)
    with pytest.raises((UnsupportedError, UsageError), match="use"):
        loss(net, 0).backward()
    assert optimizer is not None


def test_a_class_instead_of_an_object() -> None:
    net = model()
    wrapped(net, TopK)
    with pytest.raises(UsageError, match=r"takes an instance, such as TopK\(ratio=0.01\)"):
        loss(net, 0).backward()
    with pytest.raises(UsageError, match="takes an instance"):
        hvd.allreduce(torch.ones(4), compression=TopK)


@pytest.mark.parametrize(
    "options", [{"ratio": 0.0}, {"exchange": "all_reduce"}, {"exchange": "ring"}, {"bucket_bytes": 0}, {"timeout": 0.0}]
)
def test_options_out_of_range(options: dict) -> None:
    """At the latest where the first gradient comes."""
    net = model()
    with pytest.raises(ConfigError):
        train(net, wrapped(net, TopK(min_numel=8, **options)), range(1))


def test_reducescatter() -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        hvd.reducescatter(torch.ones(8), compression=TopK())


def test_horovod_still_works() -> None:
    net = model()
    train(net, wrapped(net, TopK(min_numel=8)), range(2))
