"""The DenseNet without the interpreter: traced and frozen. Workers call it so, and `split_check` checks it so.

It is called with whole buffers and a count of items, and writes the scores to another: a tensor that the interpreter
knows of costs its lock each time that it is let go of, up to three times, even in the midst of a call that runs without
the lock. With sixteen workers, who would then wait for each other a dozen times a batch, that was most of their time.

It goes from batch to batch without the interpreter by the op `torch.ops.hebe.next_batch` (`kernels.batch_loop`). That
is a callback that numba has compiled, and is made known to torch through the C functions that torch keeps stable for
what others compile. It says that it changes the tensors which it is given: so nothing that reads or writes them is
moved past it.
"""

from __future__ import annotations

import ctypes
import functools
import io
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hebe.kernels.lookup import batch_loop
from hebe.spec import ModelSpec

DenseFunction = Callable[..., None]
"""`(items, scores, dense, sparse, lengths)`, and `keys` behind them where `spec.reads_keys`: to the first `items` rows
of `scores` [n, outputs], the scores of those of `dense` [n, dense_dim], `sparse` [n, sparse_width], `lengths` int64
[n, sequences] and `keys` int64 [n, lookups_per_item]. Raises where the DenseNet's have another shape."""


@dataclass(frozen=True)
class ServedNet:
    """A `DenseFunction`, and the same from batch to batch: `run_batches`, called with a block of words
    (`kernels.batch_loop`) in place of the items, returns when that is told to end, or raises as the function would for
    the batch that is under way. It holds no interpreter lock meanwhile.
    """

    score: DenseFunction
    run_batches: DenseFunction

    def __call__(self, items: int, *tensors: torch.Tensor) -> None:
        """`score`."""
        self.score(items, *tensors)


TRACED_ITEMS = 3
"""What a server traces on: so many of `example_inputs`."""


def example_inputs(spec: ModelSpec, items: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
    """Plausible DenseNet inputs of `items` rows on `device`, the same at every call: dense values, pooled rows, both
    float32, the lengths of sequences, int64, and keys where the DenseNet reads them.
    """
    return tuple(tensor.to(device) for tensor in _example_inputs(spec, items))


def _example_inputs(spec: ModelSpec, items: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([feature.lookups for feature in spec.sequences], dtype=torch.int64)
    inputs = (
        torch.rand(items, spec.dense_dim, generator=generator),
        torch.rand(items, spec.sparse_width, generator=generator) * 0.1,
        lengths.expand(items, -1).contiguous(),
    )
    if not spec.reads_keys:
        return inputs
    rows = torch.tensor([spec.table(feature.table).rows for feature in spec.features for _ in range(feature.lookups)])
    drawn = torch.rand(items, spec.lookups_per_item, generator=generator, dtype=torch.float64)
    return (*inputs, (drawn * rows).long())


def served(module: torch.nn.Module, spec: ModelSpec, device: torch.device | str = "cpu") -> ServedNet:
    """The DenseNet `module` of a `spec`, on `device`, as `scripted` makes it for a server, which has only the spec to
    trace it on.
    """
    register_next_batch()
    on_buffers = _OnBuffersWithKeys if spec.reads_keys else _OnBuffers
    net = scripted(module, example_inputs(spec, TRACED_ITEMS, device), on_buffers, ["run_batches"])
    return ServedNet(net.forward, net.run_batches)


def scores_of(function: DenseFunction, inputs: Sequence[torch.Tensor], outputs: int) -> torch.Tensor:
    """Scores float32 `[items, outputs]` of the whole of `inputs`, in a tensor of their own."""
    scores = inputs[0].new_empty(len(inputs[0]), outputs, dtype=torch.float32)
    function(len(scores), scores, *inputs)
    return scores


def write_scores(found: torch.Tensor, scores: torch.Tensor) -> None:
    """Put a DenseNet's scores where they belong. Raises ValueError where they have another shape."""
    if found.size() != scores.size():
        raise ValueError(f"the DenseNet's scores have shape {found.size()}, the model's {scores.size()}")
    scores.copy_(found)


class _OnBuffers(torch.nn.Module):
    """A `DenseFunction` of the DenseNet `net`."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, items: int, scores: torch.Tensor, dense: torch.Tensor, sparse: torch.Tensor, lengths: torch.Tensor
    ) -> None:
        """In the words of TorchScript, which knows no arguments of any number."""
        write_scores(self.net(dense[:items], sparse[:items], lengths[:items]), scores[:items])

    @torch.jit.export
    def run_batches(
        self, block: int, scores: torch.Tensor, dense: torch.Tensor, sparse: torch.Tensor, lengths: torch.Tensor
    ) -> None:
        """`forward` of every batch that there is in `block`, until there are no more."""
        items = torch.ops.hebe.next_batch(block, scores, dense, sparse, lengths, lengths)
        while items > 0:
            self.forward(items, scores, dense, sparse, lengths)
            items = torch.ops.hebe.next_batch(block, scores, dense, sparse, lengths, lengths)


class _OnBuffersWithKeys(_OnBuffers):
    """The same of one that reads keys."""

    def forward(  # type: ignore[override]
        self,
        items: int,
        scores: torch.Tensor,
        dense: torch.Tensor,
        sparse: torch.Tensor,
        lengths: torch.Tensor,
        keys: torch.Tensor,
    ) -> None:
        """As above."""
        write_scores(self.net(dense[:items], sparse[:items], lengths[:items], keys[:items]), scores[:items])

    @torch.jit.export
    def run_batches(  # type: ignore[override]
        self,
        block: int,
        scores: torch.Tensor,
        dense: torch.Tensor,
        sparse: torch.Tensor,
        lengths: torch.Tensor,
        keys: torch.Tensor,
    ) -> None:
        """As above."""
        items = torch.ops.hebe.next_batch(block, scores, dense, sparse, lengths, keys)
        while items > 0:
            self.forward(items, scores, dense, sparse, lengths, keys)
            items = torch.ops.hebe.next_batch(block, scores, dense, sparse, lengths, keys)


def scripted(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    called_by: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
    methods: Sequence[str] = (),
) -> Any:
    """The DenseNet `module`, in evaluation mode and traced on `inputs` of two items or more, as a module of which
    `forward` takes any such, or what is `called_by` makes of it, with these `methods` too, in TorchScript.

    It computes with the module's own weights. Raises whatever the module does on `inputs`, and RuntimeError where it
    cannot be traced.
    """
    # TorchScript is deprecated in favour of torch.export, but AOTInductor was slower here and does not scale over
    # threads without a copy of the weights for each (docs/serving.md); it stays behind this one function.
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        script: Any = torch.jit
        warnings.simplefilter("ignore", script.TracerWarning)
        traced = script.trace(module, inputs, check_trace=False)
        if called_by is not None:
            traced = script.script(called_by(traced)).eval()
        # Written and read back, because what is traced belongs to one store of code that lives as long as the process,
        # and freezing puts the weights into the code: every model that was ever loaded would stay. Without its
        # weights, for writing and reading hold the interpreter lock, which queries of another version would wait for.
        weights = traced.state_dict(keep_vars=True)
        written = io.BytesIO()
        with _emptied(weights.values()):
            script.save(traced, written)
        written.seek(0)
        read = script.load(written)
        for name, tensor in read.state_dict(keep_vars=True).items():
            tensor.data = weights[name].data
        # optimize_numerics folds a factor that follows a convolution into its weights, and takes the factor's
        # dimension 1 for the channels, whichever dimension it lines up with: other scores.
        return script.freeze(read, preserved_attrs=list(methods), optimize_numerics=False)


@contextmanager
def _emptied(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Meanwhile these have no elements."""
    kept = [(tensor, tensor.data) for tensor in tensors]
    try:
        for tensor, _ in kept:
            tensor.data = tensor.new_empty(0)
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


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
