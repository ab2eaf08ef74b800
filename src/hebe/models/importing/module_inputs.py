"""The inputs of a module to import: one flat list of named tensors, whatever the form of its arguments."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hebe.models.importing.user_code import user_line_of

_LONGEST_NAME = 128
"""Of a table or feature (`spec.NAME_PATTERN`)."""

_PLAIN, _NAMED = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


class GraphCaptureError(ValueError):
    """A module that cannot be split; names the layer, input or op, and says what is supported."""


def usable_name(text: str, default: str, taken: Container[str], suffix: str = "") -> str:
    """`text` as a table or feature may be called, and none of `taken`: other characters become `_`, what is too long is
    cut, and `_` are added to what is taken. `suffix` stays as it is; `default` stands where nothing is left of `text`.
    """
    base = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).lstrip("_.-") or default
    names = (base[: _LONGEST_NAME - len(suffix) - more] + "_" * more + suffix for more in itertools.count())
    return next(name for name in names if name not in taken)


@dataclass(frozen=True)
class ModuleInput:
    """One tensor that the module takes.

    `items_offset` is its first dimension less the number of items: 0, or 1 for offsets that end with the total;
    None where its first dimension is not the number of items (the values of a jagged feature).
    """

    name: str
    example: Tensor
    items_offset: int | None

    @property
    def columns(self) -> int:
        """Values per item."""
        return self.example[0].numel()


class FlatModule(nn.Module):
    """A module to import, in evaluation mode, with its tensors as positional arguments in the order of `inputs`.

    A mapping of example inputs gives keyword arguments, or the single argument of a `forward` that takes a mapping;
    a sequence gives positional arguments. `items` is the number of items of the example, and `outputs` the scores
    per item. Both are brought to the CPU where they are elsewhere, the module as `Module.cpu` does. Raises
    `GraphCaptureError` for modules that cannot be read, and for inputs and results of other dtypes and shapes than
    documented.
    """

    def __init__(self, module: nn.Module, example_inputs: Mapping[str, Any] | Sequence[Any] | Tensor) -> None:
        super().__init__()
        self.module = _evaluating(module)
        arguments, keywords = _arguments(module, example_inputs)
        leaves, self._structure = pytree.tree_flatten_with_path((arguments, keywords))
        names = _names(module, [path for path, _ in leaves], arguments)
        tensors = [_checked(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]
        try:
            with torch.no_grad():
                result = self(*tensors)
        except (Exception, SystemExit) as fault:  # whatever the user's module raises
            reason, line = next(iter(str(fault).splitlines()), ""), user_line_of(fault)
            where = f" ({line})" if line else ""
            if isinstance(example_inputs, Mapping) and arguments:
                taker, given = (
                    next(iter(inspect.signature(module.forward).parameters)),
                    ", ".join(map(str, example_inputs)),
                )
                reason += f"; {taker} was given the whole example, as forward has no argument called {given}"
            raise GraphCaptureError(
                f"the module fails on the example inputs{where}: {type(fault).__name__}: {reason}"
            ) from fault
        self.items, self.outputs = _checked_result(result)
        self.inputs = tuple(_classified(n, t, self.items) for n, t in zip(names, tensors, strict=True))

    def forward(self, *tensors: Tensor) -> Any:
        """The module's result on the flat inputs."""
        arguments, keywords = pytree.tree_unflatten(list(tensors), self._structure)
        return self.module(*arguments, **keywords)


def _evaluating(module: nn.Module) -> nn.Module:
    """The module, on the CPU and in evaluation mode."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise GraphCaptureError(
                f"{f'its part {name}' if name else 'the module'} is TorchScript, made by torch.jit.trace or "
                "torch.jit.script, which torch.export cannot read: give the torch.nn.Module that it was made of"
            )
    held = dict(itertools.chain(module.named_parameters(), module.named_buffers()))
    for name, value in held.items():
        if value.is_meta:
            raise GraphCaptureError(
                f"{name} is on the device meta, where it has no values: give its weights, or make the module on the CPU"
            )
    if not all(value.is_cpu for value in held.values()):
        module.cpu()
    try:
        return module.eval()
    except NotImplementedError as fault:
        raise GraphCaptureError(
            f"the module has no evaluation mode ({fault}): where torch.export made it, give the torch.nn.Module that "
            "it was made of"
        ) from fault


def _arguments(
    module: nn.Module, example_inputs: Mapping[str, Any] | Sequence[Any] | Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Sequence):
        return tuple(example_inputs), {}
    if not isinstance(example_inputs, Mapping):  # whatever the user's factory returned
        raise GraphCaptureError(
            f"example inputs are {type(example_inputs).__name__}: give a tensor, a sequence or a mapping of tensors"
        )
    signature = inspect.signature(module.forward)
    parameters = signature.parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = [str(name) for name in example_inputs if name not in parameters]
    if takes_any or not unknown:
        return (), dict(example_inputs)
    try:
        signature.bind(example_inputs)
    except TypeError:
        raise GraphCaptureError(
            f"the example has {', '.join(unknown)}: forward takes {', '.join(parameters) or 'nothing'}"
        ) from None
    return (dict(example_inputs),), {}


def _names(module: nn.Module, paths: list[Any], arguments: tuple[Any, ...]) -> list[str]:
    """A name for each input: its parameter's; below it, the keys of the mapping, the positions of the sequence."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    positional = [p.name for p in parameters if p.kind in (_PLAIN, _NAMED)]
    rest_name = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "input")
    names: list[str] = []
    for path in paths:
        steps: list[Any] = [getattr(key, "key", getattr(key, "idx", None)) for key in path]
        group, first, *below = steps
        parts = [str(part) for part in below]
        if not (len(arguments) == 1 and below and isinstance(below[0], str)):
            if group == 0:
                known = first < len(positional)
                parts.insert(0, positional[first] if known else f"{rest_name}_{first - len(positional)}")
            else:
                parts.insert(0, str(first))
        names.append(usable_name(re.sub(r"[^A-Za-z0-9_]+", "_", "_".join(parts)), "input", names))
    return names


def _checked(name: str, leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor):
        raise GraphCaptureError(f"example input {name} is {type(leaf).__name__}: every input must be a torch tensor")
    if leaf.dtype not in (torch.int64, torch.int32, torch.float32, torch.bool):
        dtype = str(leaf.dtype).removeprefix("torch.")
        raise GraphCaptureError(
            f"example input {name} is {dtype}: must be float32 or bool (dense features) or int64 (keys)"
        )
    if leaf.is_meta:
        raise GraphCaptureError(
            f"example input {name} is on the device meta, where it has no values: make the example on the CPU"
        )
    return leaf.detach().cpu()


def _checked_result(result: Any) -> tuple[int, int]:
    """(items, outputs) of what the module returned."""
    if not isinstance(result, Tensor):
        raise GraphCaptureError(
            f"the module returns {type(result).__name__}: it must return one tensor of scores, [items] or "
            "[items, outputs]; wrap it in a module that does (torch.cat joins several heads)"
        )
    if result.dtype != torch.float32 or result.dim() not in (1, 2):
        raise GraphCaptureError(
            f"the module returns {str(result.dtype).removeprefix('torch.')} {list(result.shape)}: "
            "must be float32 [items] or [items, outputs]"
        )
    if result.shape[0] < 2:
        raise GraphCaptureError(
            f"the example inputs give {result.shape[0]} score(s): give an example of at least two items, so that "
            "the dimension of the items can be told"
        )
    return result.shape[0], 1 if result.dim() == 1 else result.shape[1]


def _classified(name: str, tensor: Tensor, items: int) -> ModuleInput:
    if tensor.dim() and tensor.shape[0] == items:
        return ModuleInput(name, tensor, 0)
    if tensor.dim() == 1 and not tensor.dtype.is_floating_point:
        return ModuleInput(name, tensor, 1 if tensor.shape[0] == items + 1 else None)
    raise GraphCaptureError(
        f"example input {name} has shape {list(tensor.shape)} but there are {items} scores: the first dimension of "
        "every input must be the items (only the values of a jagged feature may have another)"
    )
