"""Numbers overflow in tests, which Triton's interpreter would report by numpy's warnings; GPUs report nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
