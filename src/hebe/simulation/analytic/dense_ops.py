"""What a DenseNet computes for one item, op by op, told from its spec alone: no torch, no weights.

The ops are those of the architectures in `hebe.models`, in stages: the chains of one stage do not depend on each other
and may run side by side (`Op-parallelism`), the ops of a chain run one after another, and a stage begins when the one
before it is done. Stage 0 is what does not wait for the SparseNet: DLRM's bottom tower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hebe.planning.error import PlanningError
from hebe.spec import ModelSpec, Pooling

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class DenseOp:
    """One matrix product with what follows it, or one step that only moves data (`flops` 0).

    For each item: `flops` (a multiply-add is two), `moved_bytes` read and written. For each batch: `weight_bytes`,
    and `kernels`, the launches. One launch has `rows` rows an item and `columns` columns, which says how far a batch
    fills the hardware.
    """

    name: str
    flops: float
    rows: int
    columns: int
    moved_bytes: float
    weight_bytes: int
    kernels: int


Chain = tuple[DenseOp, ...]
Stage = tuple[Chain, ...]


def dense_stages(spec: ModelSpec) -> tuple[Stage, ...]:
    """The DenseNet of `spec`. Raises `PlanningError` for an architecture whose ops are not known (imported ones)."""
    build = _STAGES.get(spec.architecture)
    if build is None:
        raise PlanningError(
            f"model {spec.name}: architecture {spec.architecture!r} cannot be estimated: its work is known for "
            f"{', '.join(sorted(_STAGES))}; measure it with a latency profile instead"
        )
    return build(spec)


def _product(
    name: str, inner: int, columns: int, *, rows: int = 1, bias: bool = True, followers: int = 0, slope: bool = False
) -> DenseOp:
    """Rows times a weight `[inner, columns]`; `followers` element-wise kernels after it, `slope` if a PReLU."""
    weight = inner * columns + (columns if bias else 0) + (1 if slope else 0)
    moved = rows * (inner + columns + 2 * followers * columns)
    return DenseOp(
        name, 2.0 * rows * inner * columns, rows, columns, FLOAT_BYTES * moved, FLOAT_BYTES * weight, 1 + followers
    )


def _batched(name: str, rows: int, inner: int, columns: int, *, followers: int = 0) -> DenseOp:
    """A product of two of the item's own matrices, `[rows, inner] x [inner, columns]`."""
    moved = rows * inner + inner * columns + (1 + 2 * followers) * rows * columns
    return DenseOp(name, 2.0 * rows * inner * columns, rows, columns, FLOAT_BYTES * moved, 0, 1 + followers)


def _move(name: str, floats: int, kernels: int = 1) -> DenseOp:
    """`kernels` steps that together read and write `floats` an item."""
    return DenseOp(name, 0.0, 0, 0, FLOAT_BYTES * floats, 0, kernels)


def _tower(
    name: str, inputs: int, widths: Sequence[int], *, rows: int = 1, end: bool = False, slope: bool = False
) -> Chain:
    """Layers followed by an activation each; with `end` the last one stays linear."""
    ops = []
    for i, width in enumerate(widths):
        activated = not end or i + 1 < len(widths)
        ops.append(
            _product(f"{name}.{i}", inputs, width, rows=rows, followers=int(activated), slope=slope and activated)
        )
        inputs = width
    return tuple(ops)


def _predict(spec: ModelSpec, inputs: int, *, slope: bool = False) -> Chain:
    """The tower `top`, the difference of two classes where it ends in two, and the sigmoid."""
    widths = spec.towers["top"]
    two_class = spec.outputs == 1 and widths[-1] == 2
    return (*_tower("top", inputs, widths, end=True, slope=slope), _move("score", 2 * spec.outputs, 1 + two_class))


def _last(inputs: int, widths: Sequence[int]) -> int:
    return widths[-1] if widths else inputs


def _dlrm(spec: ModelSpec) -> tuple[Stage, ...]:
    bottom = spec.towers.get("bottom", ())
    bottom_width = _last(spec.dense_dim, bottom)
    width = bottom_width + spec.sparse_width
    joined: list[DenseOp] = [_move("join", 2 * width)]
    if spec.settings.get("interaction", "dot") == "dot":
        dim = spec.slots[0].dim
        vectors = width // dim
        pairs = vectors * (vectors - 1) // 2
        width = bottom_width + pairs
        joined += [_batched("interaction", vectors, dim, vectors), _move("pairs", 2 * pairs + 2 * width, 2)]
    return ((_tower("bottom", spec.dense_dim, bottom),), ((*joined, *_predict(spec, width)),))


def _dlrm_dcnv2(spec: ModelSpec) -> tuple[Stage, ...]:
    bottom = spec.towers.get("bottom", ())
    width = _last(spec.dense_dim, bottom) + spec.sparse_width
    rank = int(spec.settings.get("cross_rank", 512))
    crosses: list[DenseOp] = []
    for i in range(int(spec.settings.get("cross_layers", 3))):
        crosses += [
            _product(f"cross{i}.down", width, rank, bias=False),
            _product(f"cross{i}.up", rank, width, followers=1),
        ]
    rear = (_move("join", 2 * width), *crosses, *_predict(spec, width))
    return ((_tower("bottom", spec.dense_dim, bottom),), (rear,))


def _wide_and_deep(spec: ModelSpec) -> tuple[Stage, ...]:
    width = spec.dense_dim + spec.sparse_width
    deep = _tower("deep", width, spec.towers["deep"])
    predict = _product("predict", deep[-1].columns, spec.outputs)
    wide = _product("wide", width, spec.outputs, bias=False)
    join, score = _move("join", 2 * width), _move("score", 5 * spec.outputs, 2)
    return ((), ((join,),), ((*deep, predict), (wide,)), ((score,),))


def _multi_task_wide_and_deep(spec: ModelSpec) -> tuple[Stage, ...]:
    width = spec.dense_dim + spec.sparse_width
    trunk, count = spec.towers.get("trunk", ()), spec.outputs
    inputs, widths = _last(width, trunk), (*spec.towers["task"], 1)
    # All tasks' towers at once: one wide product, then batched ones, `count` rows an item.
    tasks = [_product("task.0", inputs, count * widths[0])]
    for i, (inner, outer) in enumerate(pairwise(widths), start=1):
        layer = _product(f"task.{i}", inner, outer, rows=count)
        moved = layer.moved_bytes + FLOAT_BYTES * 2 * count * inner
        tasks.append(replace(layer, moved_bytes=moved, weight_bytes=count * layer.weight_bytes, kernels=2))
    wide = _product("wide", width, count, bias=False)
    join, score = _move("join", 2 * width), _move("score", 5 * count, 2)
    return ((), ((join,),), ((*_tower("trunk", width, trunk), *tasks), (wide,)), ((score,),))


def _ncf(spec: ModelSpec) -> tuple[Stage, ...]:
    user = next(slot for slot in spec.slots if slot.feature.name == "gmf_user").width
    inputs = spec.dense_dim + spec.sparse_width - 2 * user
    mlp = (_move("join", 2 * inputs), *_tower("mlp", inputs, spec.towers["mlp"]))
    both = user + _last(inputs, spec.towers["mlp"])
    predict = (_move("meet", 2 * both), _product("predict", both, spec.outputs, followers=1))
    return ((), (mlp, (_move("product", 3 * user),)), (predict,))


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What attention models read: `steps` behaviours `dim` wide, `context` columns of everything else."""

    steps: int
    dim: int
    context: int
    parts: int

    @classmethod
    def of(cls, spec: ModelSpec) -> _Sequence:
        behaviours = [slot for slot in spec.slots if slot.feature.pooling is Pooling.ATTENTION]
        if not behaviours:
            raise PlanningError(f"model {spec.name}: {spec.architecture} has no feature of pooling 'attention'")
        context = spec.sparse_width - sum(slot.width for slot in behaviours)
        return cls(behaviours[0].feature.lookups, sum(slot.dim for slot in behaviours), context, len(behaviours))

    def split(self) -> DenseOp:
        """Candidate, context and behaviours out of the SparseNet's output, and which steps are valid."""
        parts = self.parts > 1
        floats = 2 * self.steps * self.dim * parts + 2 * self.dim + 2 * self.context + self.steps
        return _move("split", floats, 2 + 2 * parts + (self.parts - 1))


def _din(spec: ModelSpec) -> tuple[Stage, ...]:
    seen = _Sequence.of(spec)
    hidden, rest = spec.towers["attention"][0], spec.towers["attention"][1:]
    width = spec.dense_dim + seen.context + seen.dim
    unit = FLOAT_BYTES * (4 * seen.dim * hidden + hidden + 1)
    chain = (
        seen.split(),
        _product("attention.candidate", seen.dim, hidden, bias=False),
        DenseOp(
            "attention.weights",
            0.0,
            0,
            0,
            FLOAT_BYTES * seen.dim * (hidden + 1),
            unit - FLOAT_BYTES * seen.dim * hidden,
            3,
        ),
        _batched("attention.behaviours", seen.steps, seen.dim, hidden, followers=1),
        *_tower("attention", hidden, rest, rows=seen.steps, end=True, slope=True),
        _batched("interest", 1, seen.steps, seen.dim, followers=1),
        _move("join", 2 * width),
        *_predict(spec, width, slope=True),
    )
    return ((), (chain,))


def _dien(spec: ModelSpec) -> tuple[Stage, ...]:
    seen = _Sequence.of(spec)
    hidden = int(spec.settings.get("hidden", seen.dim))
    steps, width = seen.steps, spec.dense_dim + seen.context + hidden

    def each_step(name: str, columns: int, floats: int, kernels: int, bias: int = 0) -> DenseOp:
        """A product of the state with `[hidden, columns]` and its followers, `steps` times one after another."""
        flops = 2.0 * steps * hidden * columns
        return DenseOp(
            name,
            flops,
            1,
            columns,
            FLOAT_BYTES * steps * floats,
            FLOAT_BYTES * (hidden * columns + bias),
            steps * kernels,
        )

    chain = (
        seen.split(),
        _product("extractor.inputs", seen.dim, 3 * hidden, rows=steps),
        each_step("extractor.states", 3 * hidden, 16 * hidden, 11, bias=3 * hidden),
        _product("attention.candidate", seen.dim, hidden, bias=False),
        _batched("attention.scores", steps, hidden, 1, followers=4),
        _product("evolution.inputs", hidden, 3 * hidden, rows=steps, followers=1),
        each_step("evolution.gates", 2 * hidden, 5 * hidden, 3),
        each_step("evolution.states", hidden, 9 * hidden, 4),
        _move("join", 2 * width),
        *_predict(spec, width, slope=True),
    )
    return ((), (chain,))


def _bst(spec: ModelSpec) -> tuple[Stage, ...]:
    seen = _Sequence.of(spec)
    dim, places, heads = seen.dim, seen.steps + 1, int(spec.settings.get("heads", 8))
    forward = int(spec.settings.get("feed_forward", 4 * dim))
    norm = DenseOp("norm", 0.0, 0, 0, FLOAT_BYTES * 5 * places * dim, FLOAT_BYTES * 2 * dim, 2)
    positions = DenseOp("positions", 0.0, 0, 0, FLOAT_BYTES * 4 * places * dim, FLOAT_BYTES * places * dim, 4)
    blocks: list[DenseOp] = []
    for _ in range(int(spec.settings.get("blocks", 1))):
        blocks += [
            _product("attention.inputs", dim, 3 * dim, rows=places),
            _batched("attention.scores", places * heads, dim // heads, places),
            _batched("attention.mixed", places * heads, places, dim // heads),
            _product("attention.merge", dim, dim, rows=places),
            norm,
            _product("feed_forward.widen", dim, forward, rows=places, followers=1),
            _product("feed_forward.narrow", forward, dim, rows=places),
            norm,
        ]
    width = spec.dense_dim + seen.context + places * dim
    chain = (seen.split(), positions, *blocks, _move("join", 2 * places * dim + 2 * width, 2), *_predict(spec, width))
    return ((), (chain,))


_STAGES: dict[str, Callable[[ModelSpec], tuple[Stage, ...]]] = {
    "bst": _bst,
    "dien": _dien,
    "din": _din,
    "dlrm": _dlrm,
    "dlrm-dcnv2": _dlrm_dcnv2,
    "multi-task-wide-and-deep": _multi_task_wide_and_deep,
    "ncf": _ncf,
    "wide-and-deep": _wide_and_deep,
}
