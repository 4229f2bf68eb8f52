"""What the example scripts share: English text, a small GPT, and a report of how training goes."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from pydoc_data.topics import topics  # English prose that ships with Python: no download
from typing import TextIO

import torch
from gradwire.backends.statistics import Statistics
from torch import nn
from torch.nn import functional as F

__all__ = ["GPT", "Report", "Text", "held_out_loss", "make_optimizer", "make_parser", "make_schedule", "parse_options"]

CONTEXT = 128
BATCH = 4
VOCABULARY = 256  # bytes
STEPS = 150


class Text:
    """Batches of byte sequences: each rank draws its own from the first 90 %, the rest is held out."""

    def __init__(self, rank: int, seed: int) -> None:
        text = bytearray("\n".join(topics[name] for name in sorted(topics)), "utf-8")
        data = torch.frombuffer(text, dtype=torch.uint8).long()
        self._train, self._held_out = data.split([len(data) * 9 // 10, len(data) - len(data) * 9 // 10])
        self._generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)

    def batch(self) -> torch.Tensor:
        """Random training sequences, (BATCH, CONTEXT + 1)."""
        starts = torch.randint(len(self._train) - CONTEXT, (BATCH, 1), generator=self._generator)
        return self._train[starts + torch.arange(CONTEXT + 1)]

    def held_out(self, sequences: int = 64) -> torch.Tensor:
        """Evenly spaced held-out sequences, the same on every rank, (sequences, CONTEXT + 1)."""
        starts = torch.linspace(0, len(self._held_out) - CONTEXT - 1, sequences).long()
        return self._held_out[starts[:, None] + torch.arange(CONTEXT + 1)]


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
    """A byte-level GPT with 2.5 million parameters."""

    def __init__(self, width: int = 256, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def loss(self, sequences: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, in nats per byte, of predicting each byte from those before it."""
        inputs, targets = sequences[:, :-1], sequences[:, 1:]
        x = self.token(inputs) + self.position(torch.arange(inputs.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    forward = loss


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, for all compressors alike."""
    return torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.99))


def make_schedule(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Up over the first steps, then down to nothing: what error feedback delays still arrives before the end."""
    warmup = 20
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warmup) * max(0.0, 1 - step / steps)
    )


@torch.no_grad()
def held_out_loss(model: GPT, text: Text) -> float:
    """The loss on the held-out text, in nats per byte."""
    return model.loss(text.held_out()).item()


class Report:
    """Tells how training goes: JSON lines in a file for a program that follows, else lines to read."""

    def __init__(self, path: Path | None, main: bool) -> None:
        self._file: TextIO | None = path.open("w") if path and main else None
        self._print = main and not path
        self._started = self._last = time.perf_counter()

    def step(self, step: int, loss: float, statistics: Statistics) -> None:
        """One finished step; `loss` is its training loss."""
        now = time.perf_counter()
        total = statistics.total
        self._write(
            step=step,
            loss=loss,
            step_seconds=now - self._last,
            codec_seconds=total.codec_seconds,
            wait_seconds=total.wait_seconds,
            sent_bytes=total.sent_bytes,
            raw_bytes=total.raw_bytes,
            fp16_bytes=total.fp16_bytes,
        )
        if self._print and step % 10 == 0:
            print(
                f"step {step:4}  loss {loss:.3f}  {total.sent_bytes / 1e6:8.2f} MB sent  {now - self._started:5.1f} s"
            )
        self._last = time.perf_counter()

    def finish(self, held_out_loss: float) -> None:
        self._write(held_out_loss=held_out_loss)
        if self._print:
            print(f"held-out loss {held_out_loss:.3f}")

    def _write(self, **record: float) -> None:
        if self._file:
            print(json.dumps(record), file=self._file, flush=True)


def at_least_one(text: str) -> int:
    """For argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed are whole numbers from 1 on")
    return int(text)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of all scripts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=at_least_one, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="write JSON lines to this file instead of text")
    return parser


def parse_options(description: str | None) -> argparse.Namespace:
    """These options, and the compression."""
    parser = make_parser(description)
    parser.add_argument(
        "--compression", default="topk:ratio=0.01", help="for example none, fp16, topk:ratio=0.01, onebit"
    )
    return parser.parse_args()
