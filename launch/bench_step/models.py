"""The models of `gradwire bench step`: real transformers, and the shapes of a ResNet-50 with arithmetic behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from pydoc_data.topics import topics  # English prose that ships with Python: no download
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from .. import shapes

__all__ = ["GPT", "Layers", "MODELS", "Model", "alias", "initial"]


class Block(nn.Module):
    """Attention and a two-layer network, each behind a norm and beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.merge(mixed.reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A GPT whose token table is its last layer too; `forward` is the loss of predicting each token from those before.

    The table's gradient, with few layers the largest one, is complete only when backward is over.
    """

    def __init__(self, *, width: int, depth: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.token(inputs) + self.position(torch.arange(inputs.shape[1]))
        logits = F.linear(self.norm(self.blocks(x)), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Layer(torch.autograd.Function):
    """A matrix and the vectors beside it: two products of matrices give its gradient and the one that is handed on."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, signal: torch.Tensor, entering: torch.Tensor, coming: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        matrix = weights[0].flatten(1)
        ctx.save_for_backward(entering[:, : matrix.shape[1]], coming[:, : matrix.shape[0]], *weights)
        return signal + (entering[:, : matrix.shape[1]] @ matrix.T).mean()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        entering, coming, *weights = ctx.saved_tensors
        coming = coming * grads[0]
        handed_on = (coming @ weights[0].flatten(1)).mean()
        vectors = [coming.sum(0) for _ in weights[1:]]
        return grads[0] + 0 * handed_on, None, None, (coming.T @ entering).view_as(weights[0]), *vectors


class Layers(nn.Module):
    """Parameters of given shapes, whose gradients come layer by layer, the last one first, with work in between.

    `forward` takes the activations: rows of what enters a layer, and of the gradient that comes to it.
    """

    def __init__(self, model: list[shapes.Shape]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(shape)) for shape in model])
        starts = [index for index, shape in enumerate(model) if len(shape) > 1]
        self._bounds = list(zip(starts, [*starts[1:], len(model)], strict=True))

    def forward(self, activations: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        signal = torch.zeros((), requires_grad=True)
        weights = list(self.weights)
        for first, end in self._bounds:
            signal = Layer.apply(signal, *activations, *weights[first:end])
        return signal


class Model(NamedTuple):
    """What is trained.

    Attributes:
        make: the module; call it on the meta device.
        batch: of a rank in a round.
        trains: it learns, every row for itself. Otherwise the learning rate is zero, and all rows share one storage.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int, int], Any]
    trains: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """How many values each parameter has."""
        with torch.device("meta"):
            return {name: parameter.numel() for name, parameter in self.make().named_parameters()}


def _gpt(**sizes: int) -> Callable[[], nn.Module]:
    return lambda: GPT(**sizes)


def _tokens(vocabulary: int) -> Callable[[int, int], torch.Tensor]:
    """Few, for this machine's cores are shared by all ranks; the same in every round."""
    return lambda rank, number: torch.randint(vocabulary, (1, 65), generator=torch.Generator().manual_seed(rank))


def _activations(rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    widest = max(math.prod(shape[1:]) for shape in shapes.resnet50())
    return torch.randn(32, widest, generator=generator), torch.randn(32, 2048, generator=generator)


@cache
def _text() -> torch.Tensor:
    text = "\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8).long()


def _prose(rank: int, number: int) -> torch.Tensor:
    """Bytes of English, other ones in every round."""
    generator = torch.Generator().manual_seed(1_000_003 * number + rank)
    starts = torch.randint(len(_text()) - 65, (8, 1), generator=generator)
    return _text()[starts + torch.arange(65)]


MODELS = {
    "gpt-24.6m": Model(_gpt(width=384, depth=12, heads=6, vocabulary=8192, context=512), _tokens(8192)),
    "gpt-85m": Model(_gpt(width=768, depth=12, heads=12, vocabulary=256, context=128), _tokens(256)),
    "resnet50": Model(lambda: Layers(shapes.resnet50()), _activations),
    "gpt-small": Model(_gpt(width=128, depth=2, heads=4, vocabulary=256, context=64), _prose, trains=True),
}


def initial(model: Model) -> dict[str, torch.Tensor]:
    """Values to begin with, the same on every rank: norms do nothing, all else is small and random."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        made = model.make()
    values: dict[str, torch.Tensor] = {}
    for name, parameter in made.named_parameters():
        if parameter.dim() > 1:
            values[name] = torch.randn(parameter.shape, generator=generator).mul_(0.02)
        else:
            values[name] = torch.full(parameter.shape, float(name.endswith("weight")))
    return values


def alias(model: Model, values: Mapping[str, torch.Tensor]) -> nn.Module:
    """A module with parameters of its own in storages that are given."""
    with torch.device("meta"):
        made = model.make()
    for name, value in values.items():
        owner, _, own = name.rpartition(".")
        made.get_submodule(owner).register_parameter(own, nn.Parameter(value))
    return made
