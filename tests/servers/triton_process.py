"""Where kernels in the Triton language can run: here on a GPU, or, with none, interpreted in a process of its own: what
Triton reads of the environment holds for the whole process.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"


@contextmanager
def triton_process() -> Iterator[Callable[..., Any]]:
    """`call(function, *arguments)` returns what the function, a module's own, does there."""
    if torch.cuda.is_available():
        yield lambda function, *arguments: function(*arguments)
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_interpret) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()
