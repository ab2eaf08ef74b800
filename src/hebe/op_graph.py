"""A model's ops as plain data: what a captured DenseNet is stored as, and what stream schedulers will read.

Plain data so that it can be written to JSON, read without torch and checked before anything runs. Turning it
into something that computes is `hebe.models.architectures.graph_module`'s work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class OpGraphError(ValueError):
    """A graph that is not well formed; the message names the op."""


@dataclass(frozen=True, slots=True)
class Op:
    """One op: `target` names the operator (`aten.addmm.default`), `arguments` its positional arguments.

    An argument is a JSON value; `{"op": NAME}` refers to another op's output, `{"weight": NAME}` to a weight,
    `{"input": NAME}` to a graph input.
    """

    name: str
    target: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self) -> tuple[str, ...]:
        """Names of the ops whose outputs this one reads, in order of appearance."""
        return self._named("op")

    def graph_inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs that this one reads, in order of appearance."""
        return self._named("input")

    def _named(self, kind: str) -> tuple[str, ...]:
        found: list[str] = []

        def walk(value: Any) -> None:
            if isinstance(value, Mapping):
                if set(value) == {kind}:
                    if not isinstance(value[kind], str):
                        raise OpGraphError(f"op {self.name}: {value!r} does not name an {kind}")
                    found.append(value[kind])
                else:
                    for inner in value.values():
                        walk(inner)
            elif isinstance(value, list | tuple):
                for inner in value:
                    walk(inner)

        walk(self.arguments)
        walk(self.keywords)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class OpGraph:
    """Ops in an order in which they can run, the names of the inputs, and the op whose output is the result.

    Raises `OpGraphError` for ops that are named twice or read what comes after them.
    """

    inputs: tuple[str, ...]
    ops: tuple[Op, ...]
    output: str

    def __post_init__(self) -> None:
        done: set[str] = set()
        for op in self.ops:
            if op.name in done:
                raise OpGraphError(f"op {op.name} appears twice")
            missing = [name for name in op.inputs() if name not in done]
            if missing:
                raise OpGraphError(f"op {op.name} reads {', '.join(missing)} before it is computed")
            done.add(op.name)
        if self.output not in done:
            raise OpGraphError(f"output {self.output} is not an op of the graph")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `from_dict` reads it back to an equal graph."""
        return {
            "inputs": list(self.inputs),
            "output": self.output,
            "ops": [
                {
                    "name": op.name,
                    "target": op.target,
                    "arguments": list(op.arguments),
                    "keywords": dict(op.keywords),
                }
                for op in self.ops
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OpGraph:
        """The inverse of `to_dict`; raises `OpGraphError` on anything else."""
        try:
            ops = tuple(
                Op(op["name"], op["target"], tuple(op["arguments"]), dict(op["keywords"])) for op in data["ops"]
            )
            inputs = tuple(data["inputs"])
            for name in (*inputs, data["output"], *(text for op in ops for text in (op.name, op.target))):
                if not isinstance(name, str):
                    raise OpGraphError(f"op graph: {name!r} stands where a name should")
            return cls(inputs, ops, data["output"])
        except (KeyError, TypeError, ValueError) as fault:
            if isinstance(fault, OpGraphError):
                raise
            raise OpGraphError(f"op graph: malformed field {fault}") from None
