"""The global random generators of the process: a run must leave them as it found them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept() -> Iterator[None]:
    """Leaves torch's, NumPy's and Python's global generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # samplers may draw from it
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002  # likewise
