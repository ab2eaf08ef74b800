"""Where a batch's time goes, op by op: which ops a loaded model is made of, what each takes, and which wait for which.

The DenseNet is exported and run op by op, each timed: `torch.profiler` would tell the ops' times as well, but neither
what they wait for nor which layer they belong to, without which a recurrent layer's products look like a tower's.

What kind of work an op is (`OpClass`) follows from its ATen name, from the layer that it comes from, and from whether
it reads weights.
"""

from __future__ import annotations

import re
import statistics
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import fx

from hebe.machine.pinning import available_cores, pinned
from hebe.models.scripted_net import example_inputs
from hebe.op_graph import Op, OpGraph
from hebe.profiling.measurements.op_schedule import idle_share
from hebe.query import Batch, SubQuery
from hebe.runtime.loaded_model import LoadedModel
from hebe.spec import ModelSpec

_WARM_UPS = 3
"""Runs before the first that counts: they fault in pages and let the scripted DenseNet specialise."""


@dataclass(frozen=True)
class OpTimes:
    """One batch of `items`, on one core.

    `graph` has an op for each feature's lookup and for each of the DenseNet's. `seconds` and `classes` go by op. The
    ops' times sum up to `sparse_s`, the lookups, and `dense_s`, the DenseNet as it is served. The batch's lookups are
    one pass, whose time is shared out by the bytes that each gathers; the DenseNet's ops were timed one by one, which
    took `dense_op_by_op_s`, and share `dense_s` in that proportion.
    """

    items: int
    graph: OpGraph
    seconds: Mapping[str, float]
    classes: Mapping[str, OpClass]
    sparse_s: float
    dense_s: float
    dense_op_by_op_s: float

    def by_class(self) -> dict[OpClass, float]:
        """Seconds of the batch by class of op; 0 for a class that the model lacks."""
        sums = dict.fromkeys(OpClass, 0.0)
        for name, of in self.classes.items():
            sums[of] += self.seconds[name]
        return sums

    def idle_share(self, workers: int) -> float:
        """What so many op workers would idle, 0 to 1 of their time (Hercules Figure 5c). Raises ValueError."""
        return idle_share(self.graph, self.seconds, workers)


def measure_op_times(model: LoadedModel, dense_net: torch.nn.Module, items: int, repeats: int = 9) -> OpTimes:
    """What the ops of `model` take for a batch of `items`: medians of `repeats` runs on one core, the calling thread.

    `dense_net` is the model's own, as `StoredModel.dense_net` gives it. Not while workers run: torch's number of
    threads is changed meanwhile. Raises `StoreError` as an executor does, ValueError for a count below 1 and for a
    DenseNet whose ops change what they are given.
    """
    if items < 1 or repeats < 1:
        raise ValueError(f"items is {items} and repeats {repeats}: both must be at least 1")
    spec = model.spec
    exported = _exported(dense_net, spec, items)
    threads = torch.get_num_threads()
    try:
        with pinned(available_cores()[-1:]):
            torch.set_num_threads(1)
            sparse_s, dense_s = _served_s(model, items, repeats)
            timed_s = _timed_s(exported, spec, items, repeats)
    finally:
        torch.set_num_threads(threads)
    ops, seconds, classes = _lookups(spec, sparse_s)
    op_by_op_s = sum(timed_s.values())
    reads_sparse = [{"op": op.name} for op in ops]
    attends = bool(spec.behaviours)
    for node in exported.graph.nodes:
        if node.op == "output":
            output = node.all_input_nodes[0].name
        elif node.op == "call_function":
            reads: list[Any] = []
            for other in node.all_input_nodes:
                if other.op == "call_function":
                    reads.append({"op": other.name})
                elif other.op == "placeholder" and other.target == "sparse":
                    reads += reads_sparse
            ops.append(Op(node.name, str(node.target), tuple(reads)))
            seconds[node.name] = dense_s * timed_s[node.name] / op_by_op_s
            classes[node.name] = class_of(node, attends)
    graph = OpGraph(("dense", "sparse", "lengths", "keys"), tuple(ops), output)
    return OpTimes(items, graph, seconds, classes, sparse_s, dense_s, op_by_op_s)


def _exported(dense_net: torch.nn.Module, spec: ModelSpec, items: int) -> fx.GraphModule:
    """The DenseNet as a graph of ATen ops that know which layer they came from. Raises ValueError."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts about each other
        program = torch.export.export(dense_net.eval(), example_inputs(spec, items))
        exported = program.module(check_guards=False)
    assert isinstance(exported, fx.GraphModule)
    for node in exported.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise ValueError(f"model {spec.name}: op {node.target} changes its argument: what waits for it is unknown")
    return exported


def _served_s(model: LoadedModel, items: int, repeats: int) -> tuple[float, float]:
    """Seconds of the SparseNet and of the DenseNet, as a worker runs them."""
    executor, query = model.new_executor(items), model.random_query(items)
    batch = Batch(0, (SubQuery(query, 0, items),), items)
    outcomes = [executor.run(batch) for _ in range(_WARM_UPS + repeats)][_WARM_UPS:]
    return (
        statistics.median(outcome.sparse_s for outcome in outcomes),
        statistics.median(outcome.dense_s for outcome in outcomes),
    )


class _TimedOps(fx.Interpreter):
    """Runs a graph op by op; `seconds` has each op's times, one of each run."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[str, list[float]] = {}
        self._name = ""

    def run_node(self, node: fx.Node) -> Any:
        """See `fx.Interpreter`."""
        self._name = node.name
        return super().run_node(node)

    def call_function(self, target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `fx.Interpreter`."""
        started_s = time.perf_counter()
        result = target(*arguments, **keywords)
        self.seconds.setdefault(self._name, []).append(time.perf_counter() - started_s)
        return result


def _timed_s(exported: fx.GraphModule, spec: ModelSpec, items: int, repeats: int) -> dict[str, float]:
    """Median seconds of each op."""
    timed, inputs = _TimedOps(exported), example_inputs(spec, items)
    with torch.inference_mode():
        for _ in range(_WARM_UPS + repeats):
            timed.run(*inputs)
    return {name: statistics.median(times[_WARM_UPS:]) for name, times in timed.seconds.items()}


def _lookups(spec: ModelSpec, sparse_s: float) -> tuple[list[Op], dict[str, float], dict[str, OpClass]]:
    """An op for each feature's lookup, as op workers that take tables side by side would have them."""
    ops, gathered = [], {}
    for feature in spec.features:
        name = f"lookup.{feature.name}"
        ops.append(Op(name, "lookup", ({"input": "keys"},)))
        gathered[name] = feature.lookups * spec.table(feature.table).dim
    whole = sum(gathered.values())
    seconds = {name: sparse_s * part / whole for name, part in gathered.items()}
    return ops, seconds, dict.fromkeys(gathered, OpClass.EMBEDDING_LOOKUP)


class OpClass(StrEnum):
    """Kinds of ops, by what limits them."""

    EMBEDDING_LOOKUP = "embedding lookup"
    FULLY_CONNECTED = "fully connected"
    """Products with weights."""
    ATTENTION = "attention"
    """Weighing a behaviour sequence: its layers, and in models that have one all products without weights."""
    RECURRENT = "recurrent"
    INTERACTION = "interaction"
    """Where features meet: concatenation, products of activations with each other, cross layers."""
    ELEMENT_WISE = "element-wise"
    """Activations, arithmetic, normalisation."""
    OTHER = "other"
    """Views, copies, constants, and telling behaviours from the rest."""


_LAYERS = {
    "InterestExtractor": OpClass.RECURRENT,
    "Augru": OpClass.RECURRENT,
    "GRU": OpClass.RECURRENT,
    "LSTM": OpClass.RECURRENT,
    "RNN": OpClass.RECURRENT,
    "GRUCell": OpClass.RECURRENT,
    "LSTMCell": OpClass.RECURRENT,
    "RNNCell": OpClass.RECURRENT,
    "ActivationUnit": OpClass.ATTENTION,
    "MultiheadAttention": OpClass.ATTENTION,
    "CrossLayer": OpClass.INTERACTION,
    "Behaviours": OpClass.OTHER,
}
"""Layers all of whose ops are of one class."""

_OPS = {
    "linear": OpClass.FULLY_CONNECTED,
    "gru": OpClass.RECURRENT,
    "lstm": OpClass.RECURRENT,
    "rnn_tanh": OpClass.RECURRENT,
    "rnn_relu": OpClass.RECURRENT,
    "gru_cell": OpClass.RECURRENT,
    "lstm_cell": OpClass.RECURRENT,
    "scaled_dot_product_attention": OpClass.ATTENTION,
    "softmax": OpClass.ATTENTION,
    "cat": OpClass.INTERACTION,
    "stack": OpClass.INTERACTION,
    "index_select": OpClass.INTERACTION,
    "bilinear": OpClass.FULLY_CONNECTED,
    "prelu": OpClass.ELEMENT_WISE,
    **dict.fromkeys(
        ("sum", "mean", "max", "min", "amax", "amin", "prod", "var", "std", "var_mean", "std_mean", "logsumexp"),
        OpClass.ELEMENT_WISE,
    ),
}
_FAMILIES = {
    re.compile(r"conv(olution|(_transpose)?\dd)"): OpClass.FULLY_CONNECTED,
    re.compile(r"\w*(norm(_legit\w*)?|pool\dd)"): OpClass.ELEMENT_WISE,
}
"""Ops of which there are many, each of one class: convolutions are products with weights too."""
_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "einsum", "matmul", "mm"})
_TURNS = frozenset(
    {"expand", "mT", "numpy_T", "permute", "reshape", "select", "squeeze", "t", "transpose", "unsqueeze", "view"}
)
"""Ops that leave a weight one."""


def class_of(node: fx.Node, attends: bool) -> OpClass:
    """The class of a node that calls a function, of an exported DenseNet; `attends`: of one that weighs a behaviour
    sequence.
    """
    for _, layer in (node.meta.get("nn_module_stack") or {}).values():
        name = layer if isinstance(layer, str) else layer.__name__
        if (of := _LAYERS.get(name.rpartition(".")[2])) is not None:
            return of
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return OpClass.OTHER
    name = target.overloadpacket.__name__
    if name in _PRODUCTS:
        if any(map(_is_weight, node.all_input_nodes)):
            return OpClass.FULLY_CONNECTED
        return OpClass.ATTENTION if attends else OpClass.INTERACTION
    if name in _OPS:
        return _OPS[name]
    for family, of in _FAMILIES.items():
        if family.fullmatch(name):
            return of
    return OpClass.ELEMENT_WISE if torch.Tag.pointwise in target.tags else OpClass.OTHER


def _is_weight(node: fx.Node) -> bool:
    """Whether it is one, or one in another shape."""
    if isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket.__name__ in _TURNS:
        return _is_weight(node.all_input_nodes[0])
    return node.op == "get_attr"
