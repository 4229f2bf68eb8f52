"""What a rank of `gradwire bench step` does: its models, and that wrong results do not pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradwire.launch import shapes
from gradwire.launch.bench_step import checking, link, ranks, systems
from gradwire.launch.bench_step.checking import Sketcher, WrongResult, check_bytes, digest, verified_step
from gradwire.launch.bench_step.models import MODELS, Model, alias, initial
from gradwire.launch.bench_step.names import Name
from gradwire.launch.bench_step.ranks import Task
from gradwire.launch.bench_step.systems import Row
from torch import nn

# Models.


@pytest.mark.parametrize(
    ("name", "tensors", "values"),
    [
        ("gpt-24.6m", 148, 24_636_672),
        ("gpt-85m", 148, 85_350_912),
        ("resnet50", 161, 25_557_032),
        ("gpt-small", 28, 437_760),
    ],
)
def test_sizes(name: str, tensors: int, values: int) -> None:
    sizes = MODELS[name].sizes
    assert (len(sizes), sum(sizes.values())) == (tensors, values)


def arrivals(model: Model) -> list[str]:
    """Parameters in the order in which backward is done with them."""
    module, order = alias(model, initial(model)), []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: order.append(name))
    module(model.batch(0, 0)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in module.parameters())
    return order


def test_gradients_of_a_resnet_come_layer_by_layer_the_last_one_first() -> None:
    model = MODELS["resnet50"]
    layers, layer = {}, -1
    for index, shape in enumerate(shapes.resnet50()):
        layer += len(shape) > 1
        layers[f"weights.{index}"] = layer
    order = [layers[name] for name in arrivals(model)]
    assert order == sorted(layers.values(), reverse=True)


def test_gradients_of_a_transformer_come_block_by_block_and_the_table_comes_last() -> None:
    order = arrivals(MODELS["gpt-small"])
    blocks = [int(name.split(".")[1]) for name in order if name.startswith("blocks")]
    assert blocks == sorted(blocks, reverse=True)
    assert order[0].startswith("norm")
    assert set(order[-2:]) == {"token.weight", "position.weight"}


def test_all_rows_of_a_model_share_their_storages() -> None:
    model = MODELS["gpt-small"]
    values = initial(model)
    for made in (alias(model, values), alias(model, values)):
        assert {n: p.data_ptr() for n, p in made.named_parameters()} == {n: v.data_ptr() for n, v in values.items()}
    assert all(torch.equal(value, values[name]) for name, value in initial(model).items()), "the same on every rank"


@pytest.mark.parametrize("name", list(MODELS))
def test_ranks_have_batches_of_their_own_and_only_who_trains_has_new_ones(name: str) -> None:
    model = MODELS[name]

    def bits(rank: int, number: int) -> int:
        batch = model.batch(rank, number)
        return digest(batch if isinstance(batch, tuple) else (batch,))

    assert bits(0, 0) != bits(1, 0)
    assert (bits(0, 0) != bits(0, 1)) == model.trains
    assert bits(1, 5) == bits(1, 5)


# The verification, with one rank.


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


MODEL = MODELS["gpt-small"]


def sketcher() -> Sketcher:
    return Sketcher(max(MODEL.sizes.values()))


def row(spoil: Callable[[dict[str, torch.Tensor]], object] = lambda grads: None, **others: Any) -> Row:
    """One whose mean gradients are spoilt before it is looked at them."""
    model = alias(MODEL, initial(MODEL))

    def update() -> None:
        spoil({name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    return Row(
        **{"name": Name("ours", "X"), "model": model, "forward": model, "update": update, "tolerance": 1e-3, **others}
    )


@pytest.mark.usefixtures("_alone")
def test_right_gradients_pass() -> None:
    loss = verified_step(row(), MODEL.batch(0, 0), sketcher())
    assert 5.0 < float(loss) < 6.0


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda grads: grads["token.weight"].mul_(1.01), "token.weight"),
        (lambda grads: grads["blocks.1.qkv.weight"].neg_(), "blocks.1.qkv.weight"),
        (lambda grads: grads["blocks.0.mlp.0.bias"].zero_(), "blocks.0.mlp.0.bias"),
        (lambda grads: grads["position.weight"].view(-1)[7].add_(0.1), "position.weight"),
        (lambda grads: grads["norm.bias"].view(-1)[0].fill_(float("nan")), "norm.bias"),
        (lambda grads: grads["token.weight"].copy_(grads["token.weight"].roll(1, 0)), "token.weight"),
    ],
    ids=["scale", "sign", "missing", "one value", "nan", "places"],
)
def test_wrong_gradients_do_not_pass(spoil: Callable[[dict[str, torch.Tensor]], object], said: str) -> None:
    with pytest.raises(WrongResult, match=rf"ours X: .* away from the exact mean.*0\.10% is allowed; most .*{said}"):
        verified_step(row(spoil), MODEL.batch(0, 0), sketcher())


@pytest.mark.usefixtures("_alone")
def test_ranks_with_different_gradients_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_gather", lambda slots, tensor: slots[0].copy_(tensor + 1))
    with pytest.raises(WrongResult, match="ours X: ranks hold different gradients"):
        verified_step(row(), MODEL.batch(0, 0), sketcher())


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("told", [True, False])
def test_what_is_owed_counts(told: bool) -> None:
    """Half of every gradient stays behind; with what stayed behind before, that is a quarter less."""
    kept = {name: torch.ones(size) for name, size in MODEL.sizes.items()}

    def keep_half(grads: dict[str, torch.Tensor]) -> None:
        for name, grad in grads.items():
            grad.add_(kept[name].view_as(grad)).div_(2)
            kept[name] = grad.clone().view(-1) if told else torch.zeros_like(kept[name])

    compensated = row(keep_half, owed=lambda name: kept[name])
    if told:
        verified_step(compensated, MODEL.batch(0, 0), sketcher())
    else:
        with pytest.raises(WrongResult, match=r"ours X: .* and what is owed of them, are 50\.\d\d% away"):
            verified_step(compensated, MODEL.batch(0, 0), sketcher())


def test_a_sketch_of_an_error_is_as_large_as_the_error() -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(300, 70, generator=generator), torch.randn(1000, generator=generator)]
    size = torch.cat([tensor.view(-1) for tensor in tensors]).norm()
    assert float(Sketcher(21_000).of(tensors).norm() / size) == pytest.approx(1.0, abs=0.2)


def account(sent: int | None, counted: float | None) -> list[dict[str, Any]]:
    return [{"system": "X", "compressor": "Y", "step_s": 1.0, "bytes_sent": sent, "bytes_counted": counted}]


@pytest.mark.parametrize(("sent", "counted"), [(None, 1.0), (5, None), (10_000_000, 9_500_000.0)])
def test_accounts_that_agree(sent: int | None, counted: float | None) -> None:
    check_bytes(account(sent, counted))


@pytest.mark.parametrize("counted", [10_000_001.0, 6_000_000.0])
def test_accounts_that_do_not(counted: float) -> None:
    with pytest.raises(WrongResult, match=f"X Y: its statistics say {counted:.0f} bytes .* interface 10000000"):
        check_bytes(account(10_000_000, counted))


def test_the_kernel_s_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert link.sent_bytes("lo") is not None
    lines = "Inter-|   Receive\n face |bytes\n  eth0:1 2 3 4 5 6 7 8 9 10 11\n eth01: 1 2 3 4 5 6 7 8 99 10\n"
    (tmp_path / "dev").write_text(lines)
    monkeypatch.setattr(link, "COUNTERS", tmp_path / "dev")
    assert [link.sent_bytes(name) for name in ("eth0", "eth01", "eth1")] == [9, 99, None]


# A whole measurement, with one rank.


def task(tmp_path: Path, *names: Name) -> Task:
    return {
        "model": "gpt-small",
        "rows": [list(name) for name in names],
        "steps": 2,
        "ranks_per_host": 1,
        "port": 0,
        "report": str(tmp_path / "report.jsonl"),
    }


OFF, PLAIN = Name("plain", "no communication"), Name("Horovod", "none")


@pytest.mark.usefixtures("_alone")
def test_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []

    def verified_step(row: Row, *others: Any) -> torch.Tensor:
        verified.append(str(row.name))
        return checking.verified_step(row, *others)

    monkeypatch.setattr(ranks, "verified_step", verified_step)
    monkeypatch.setitem(systems.MAKERS, "Horovod", systems.MAKERS["plain"])
    rounds = ranks.Rounds(task(tmp_path, OFF, PLAIN), "lo")
    rounds.run()
    first, second = rounds.found()
    assert verified == ["Horovod none"] * 2, "before what is timed, and after it"
    assert second["compute_s"] == first["step_s"] > 0
    assert first["loss_first"] == second["loss_first"] > first["loss_last"] == second["loss_last"]
    lines = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    told = [(line["round"], line["row"]) for line in lines if "round" in line]
    assert told[:4] == [(0, str(OFF)), (0, str(PLAIN)), (1, str(PLAIN)), (1, str(OFF))]
    assert (len(told), told[-1]) == (14, (6, str(PLAIN)))


def spoilt(name: Name, model: nn.Module, optimizer: torch.optim.Optimizer) -> Row:
    """A compressor that forgets what it leaves out."""

    def update() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None and parameter.dim() > 1:
                parameter.grad *= parameter.grad.abs() >= parameter.grad.abs().median()
        optimizer.step()

    return Row(name=name, model=model, forward=model, update=update)


@pytest.mark.usefixtures("_alone")
def test_a_row_that_is_wrong_ends_it_and_is_named_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(task: Task, interface: str) -> None:
        ranks.Rounds(task, interface).run()

    monkeypatch.setattr(ranks, "main", main)
    monkeypatch.setitem(systems.MAKERS, "Horovod", spoilt)
    with pytest.raises(SystemExit, match=r"Horovod none: its gradients"):
        ranks.guarded(task(tmp_path, OFF, PLAIN), "lo")
    last = json.loads((tmp_path / "report.jsonl").read_text().splitlines()[-1])
    assert last["error"].startswith("Horovod none: its gradients, and what is owed of them, are ")


def test_what_fails_on_any_rank_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "3")
    monkeypatch.setattr(ranks, "main", lambda task, *place: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ranks.guarded(task(tmp_path))
    assert json.loads((tmp_path / "report.jsonl").read_text())["error"].startswith("rank 3 failed: ZeroDivisionError:")
