"""`torch.ops.hebe.next_batch`, by which a scripted DenseNet goes from batch to batch without the interpreter
(`kernels.batch_loop`).

The op is a callback that numba has compiled, and is made known to torch through the C functions that torch keeps stable
for what others compile. It says that it changes the tensors which it is given: so nothing that reads or writes them is
moved past it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import torch

from hebe.kernels.lookup import batch_loop

NEXT_BATCH = "next_batch"
_SCHEMA = (
    f"{NEXT_BATCH}(int block, Tensor(a!) scores, Tensor(b!) dense, Tensor(c!) sparse, Tensor(d!) lengths, "
    "Tensor(e!) keys) -> int"
)
"""Where keys are not read, the lengths stand in their place."""

_registering = threading.Lock()


@functools.cache
def _torch_library() -> ctypes.CDLL:
    return ctypes.CDLL(torch._C.__file__)  # and what that is linked to


@functools.cache
def release_address() -> int:
    """Of the C function that lets go of a tensor which an op was given."""
    return ctypes.cast(_torch_library().aoti_torch_delete_tensor_object, ctypes.c_void_p).value or 0


def register_next_batch() -> None:
    """Make the op known to torch, once in a process. Raises RuntimeError where torch does not take it."""
    with _registering:
        _register()


@functools.cache
def _register() -> tuple[Any, ...]:
    """What must live as long as the process."""
    callback = batch_loop.next_batch()
    definition, implementation = ctypes.c_void_p(), ctypes.c_void_p()
    torch_library, here = _torch_library(), __file__.encode()
    name, catch_all = NEXT_BATCH.encode(), b"CompositeExplicitAutograd"
    failed = (
        torch_library.aoti_torch_library_init_fragment(b"hebe", here, 0, ctypes.byref(definition))
        or torch_library.aoti_torch_library_def(definition, _SCHEMA.encode())
        or torch_library.aoti_torch_library_init_impl(b"hebe", catch_all, here, 1, ctypes.byref(implementation))
        or torch_library.aoti_torch_library_impl(implementation, name, ctypes.c_void_p(callback.address))
    )
    if failed:
        raise RuntimeError(f"torch {torch.__version__} does not take the op hebe::{NEXT_BATCH}")
    return callback, definition, implementation
