"""Models as lists of parameter shapes, for benchmarks that need realistic gradients and no model."""

from __future__ import annotations

__all__ = ["resnet50", "tiny"]

Shape = tuple[int, ...]

#: blocks, bottleneck width, and channels that come in, of the four stages (1512.03385, table 1)
_STAGES = ((3, 64, 64), (4, 128, 256), (6, 256, 512), (3, 512, 1024))


def resnet50() -> list[Shape]:
    """ResNet-50 for 1000 classes: 161 tensors, 25.6 M values, in the order of the forward pass."""
    shapes: list[Shape] = [*_convolution(64, 3, 7)]
    for blocks, width, channels in _STAGES:
        for block in range(blocks):
            entering = channels if block == 0 else 4 * width
            shapes += [*_convolution(width, entering, 1), *_convolution(width, width, 3)]
            shapes += _convolution(4 * width, width, 1)
            if block == 0:
                shapes += _convolution(4 * width, entering, 1)
    return [*shapes, (1000, 2048), (1000,)]


def tiny() -> list[Shape]:
    """148 tensors of 64 values, as many as a GPT of 12 layers has: all overhead, no bytes."""
    return [(8, 8)] * 148


def _convolution(out: int, entering: int, kernel: int) -> list[Shape]:
    """A convolution without bias, and its batch norm."""
    return [(out, entering, kernel, kernel), (out,), (out,)]
