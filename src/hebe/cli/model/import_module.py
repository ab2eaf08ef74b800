"""`hebe model import`: split a PyTorch module and store it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hebe.cli.model.tables import print_stored
from hebe.cli.terminal.options import NewKeysOption
from hebe.cli.terminal.output import JsonOption, foreign_lines_to_stderr, make_console, make_progress
from hebe.report.tables import Column, FittingTable
from hebe.spec import FeatureSpec, ModelSpec, OutOfRange, SlaTarget, SpecError, check_name

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hebe.models.importing.graph_capture import CapturedModel


_modules: dict[Path, ModuleType] = {}
"""The user's files that have been run, so that a factory and an example in one file share it."""

_RULES = {
    OutOfRange.WRAP: "modulo its rows",
    OutOfRange.CLAMP: "the nearest row",
    OutOfRange.CLAMP_LOW: "negative keys row 0",
    OutOfRange.CLAMP_HIGH: "greater keys the last row",
    OutOfRange.UNKNOWN: "new keys too",
}


class ModelImportError(RuntimeError):
    """A factory or weights file that cannot be used; says which and why."""


def import_model(
    factory: Annotated[
        str,
        typer.Option(
            "--factory",
            metavar="FILE.py:CALLABLE",
            help="Called without arguments; returns a torch.nn.Module, or (module, example_inputs). "
            "[bold]This runs the file's Python code.[/]",
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="What the model is called from now on.")],
    repository: Annotated[
        Path, typer.Option("--repository", help="Directory of the model repository; made if missing.")
    ],
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            help="Safetensors file, or a state dict saved by torch.save; it is read without running code. "
            "Without it, the weights are those that the factory made.",
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="FILE.py:CALLABLE",
            help="Returns example inputs of at least two items, a tuple of tensors or a mapping of them, where the "
            "factory does not. Runs code too.",
        ),
    ] = None,
    lookups: Annotated[
        list[str] | None,
        typer.Option(
            "--lookups",
            metavar="INPUT=N",
            help="Most keys an item may have in a jagged input (values of an EmbeddingBag with offsets); by default "
            "as many as in the example. May be repeated.",
        ),
    ] = None,
    rows_as_of: Annotated[
        datetime | None,
        typer.Option(
            "--rows-as-of",
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S"],
            help="When training read out the embedding rows (local time, or with +HH:MM): online updates sent before "
            "are in them. By default the time of the weights' file, else now.",
        ),
    ] = None,
    sla_ms: Annotated[float, typer.Option("--sla-ms", help="Latency bound of the SLA target.")] = 100.0,
    percentile: Annotated[float, typer.Option("--percentile", help="Percentile of the SLA target.")] = 95.0,
    new_keys: NewKeysOption = False,
    as_json: JsonOption = False,
) -> None:
    """Import any PyTorch module with Embedding or EmbeddingBag layers: its tables, and the rest as a graph.

    The embedding layers become tables and features, one INT64 input each; all other inputs become one `dense` input,
    side by side. What remains is stored as a graph of torch's own ops, so that serving needs none of the module's
    code. The import is refused unless the split model gives the module's scores, to 1e-5, on the example and on
    random inputs of other sizes.
    """
    try:
        check_name("model", name)
        sla = SlaTarget(sla_ms, percentile)
    except SpecError as fault:
        raise typer.BadParameter(str(fault)) from None
    most_lookups = _parse_lookups(lookups or [])
    make, make_example = _parse_callable(factory, "--factory"), None
    if example is not None:
        make_example = _parse_callable(example, "--example")

    import torch

    from hebe.models.importing.graph_capture import capture
    from hebe.models.importing.split_check import check_split
    from hebe.models.repository.repository import ROWS_AS_OF, ModelRepository

    with _path_set_back(), make_progress() as bar, foreign_lines_to_stderr():
        task = bar.add_task("running the factory", total=None)
        module, example_inputs = _made(make, make_example, factory)
        if weights is not None:
            bar.update(task, description="reading the weights")
            _load_weights(module, weights)
            rows_as_of = rows_as_of or datetime.fromtimestamp(weights.stat().st_mtime)
        bar.update(task, description="capturing the graph")
        captured = capture(module, example_inputs, name, sla, most_lookups)
        spec = captured.spec
        if new_keys:
            try:
                spec = spec.taking_new_keys()
            except SpecError as fault:
                raise typer.BadParameter(str(fault), param_hint="--new-keys") from None
        bar.update(task, description="comparing with the module")
        difference = check_split(
            module, example_inputs, captured, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
        bar.update(task, description="writing (MiB)", completed=0)
        stored = ModelRepository(repository).write(
            spec,
            captured.tables,
            captured.dense_state,
            captured.graph,
            provenance={
                "made_by": "hebe model import",
                "factory": f"{Path(factory.rpartition(':')[0]).name}:{factory.rpartition(':')[2]}",
                "weights": weights.name if weights is not None else "the factory's",
                ROWS_AS_OF: (rows_as_of or datetime.now()).astimezone(UTC).isoformat(timespec="milliseconds"),
                "torch": torch.__version__,
                "greatest_difference": difference,
                "inputs": {feature.name: _source_text(captured, feature) for feature in spec.features},
                "dense_inputs": _dense_texts(captured),
            },
            progress=lambda done, total: bar.update(task, completed=-(-done >> 20), total=-(-total >> 20)),
        )
    _print_inputs(captured, spec, as_json)
    print_stored(stored, repository, as_json, greatest_difference=difference)


def _parse_lookups(lookups: list[str]) -> dict[str, int]:
    parsed = {}
    for text in lookups:
        name, _, number = text.partition("=")
        if not (name and number.isdecimal() and int(number) > 0):
            raise typer.BadParameter(f"{text!r}: give INPUT=N, N at least 1", param_hint="--lookups")
        parsed[name] = int(number)
    return parsed


def _parse_callable(text: str, option: str) -> Callable[[], Any]:
    """The callable that FILE.py:CALLABLE names; the file is run when it is called."""
    file, separator, attribute = text.rpartition(":")
    if not separator or not attribute.isidentifier():
        raise typer.BadParameter(f"{text!r}: give FILE.py:CALLABLE", param_hint=option)
    path = Path(file)
    _check_file(path, option)

    def call() -> Any:
        try:
            return _attribute(path, attribute)()
        except ModelImportError:
            raise
        except (Exception, SystemExit) as fault:  # whatever the user's code raises
            raise ModelImportError(f"{text} raised {type(fault).__name__}: {fault}") from fault

    return call


@contextlib.contextmanager
def _path_set_back() -> Iterator[None]:
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


def _attribute(path: Path, attribute: str) -> Any:
    sys.path.insert(0, str(path.parent.resolve()))  # the file may import its neighbours, in its functions too
    module = _modules.get(path.resolve())
    if module is None:
        module_name = f"hebe_imported_{len(_modules)}_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ModelImportError(f"{path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
        _modules[path.resolve()] = module
    found = getattr(module, attribute, None)
    if not callable(found):
        raise ModelImportError(f"{path}: has no callable {attribute}")
    return found


def _made(make: Callable[[], Any], make_example: Callable[[], Any] | None, factory: str) -> tuple[nn.Module, Any]:
    """(module, example inputs)."""
    from torch import nn

    made = make()
    module, example_inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise ModelImportError(f"{factory} returned {type(module).__name__}: must return a torch.nn.Module")
    if make_example is not None:
        example_inputs = make_example()
    if example_inputs is None:
        raise ModelImportError(
            f"{factory} returned no example inputs: return (module, example_inputs), or give --example"
        )
    return module, example_inputs


def _load_weights(module: nn.Module, path: Path) -> None:
    """A tensor that the module has under several names may have one of them in the file: safetensors stores it once.
    Those on the device meta become the file's, in the dtype of the module: nothing can be copied to where they are.
    """
    state = _read_state(path)
    try:
        on_meta = {name: value.dtype for name, value in module.state_dict().items() if value.is_meta}
        state = {**state, **{name: state[name].to(dtype) for name, dtype in on_meta.items() if name in state}}
        missing, unexpected = module.load_state_dict(state, strict=False, assign=bool(on_meta))
        own = module.state_dict()
        given = {_place(own[name]) for name in own.keys() & state.keys()}
        faults = [f"missing {name}" for name in missing if name not in own or _place(own[name]) not in given]
        faults += [f"unexpected {name}" for name in unexpected]
    except RuntimeError as fault:
        faults = [" ".join(str(fault).split())]
    if faults:
        reason = ", ".join(faults)
        raise ModelImportError(f"{path}: its weights are not those of the module: {reason[:400]}")


def _place(value: Any) -> Hashable:
    """Where a tensor lies: equal for two names of one."""
    from torch import Tensor

    return (value.data_ptr(), value.shape, value.stride()) if isinstance(value, Tensor) else id(value)


def _check_file(path: Path, option: str) -> None:
    from hebe.models.repository.stored_file import why_no_file

    if other := why_no_file(path):
        raise typer.BadParameter(f"{path}: {other}", param_hint=option)


def _damage(path: Path, fault: str) -> str:
    """What happened to a file of weights that begins as one, where safetensors reports `fault`; else nothing."""
    with path.open("rb") as file:
        begin = file.read(4)
    if not begin:
        return "is empty"
    if "not fully covered" in fault:
        return "a safetensors file that was cut short, or whose length is wrong for another reason"
    if begin == b"PK\x03\x04" and not zipfile.is_zipfile(path):
        return "a file of torch.save that was cut short"
    return ""


def _read_state(path: Path) -> Mapping[str, Tensor]:
    """A state dict from safetensors, or from torch's format restricted to tensors and containers."""
    import safetensors
    import safetensors.torch
    import torch

    _check_file(path, "--weights")
    try:
        return dict(safetensors.torch.load_file(path))
    except safetensors.SafetensorError as fault:
        if damage := _damage(path, str(fault)):
            raise ModelImportError(f"{path}: {damage}; copy it again") from None
    try:
        # Torch's format of before 1.6 is no zip file, and cannot be mapped.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception:  # torch.load raises errors of many kinds for a file that is none of its own
        raise ModelImportError(
            f"{path}: neither a safetensors file nor a state dict that can be read without running code; save one "
            "with safetensors.torch.save_model(module, FILE)"
        ) from None
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelImportError(f"{path}: is not a state dict (names to tensors); save module.state_dict()")
    return state


def _print_inputs(captured: CapturedModel, spec: ModelSpec, as_json: bool) -> None:
    """Which inputs the served model takes, of this spec, and from which of the module's they come."""
    table = FittingTable("served input", "shape", Column("from the module's input", folds=True), "table")
    for feature in spec.features:
        jagged = captured.sources[feature.name].offsets is not None
        table.add_row(
            f"{feature.name}.values + .lengths" if jagged else feature.name,
            f"jagged, at most {feature.lookups}" if jagged else f"INT64 [items, {feature.lookups}]",
            _source_text(captured, feature),
            feature.table,
        )
    if spec.dense_dim:
        table.add_row("dense", f"FP32 [items, {spec.dense_dim}]", ", ".join(_dense_texts(captured)), "")
    make_console(as_json).print(table, "", crop=False)


def _source_text(captured: CapturedModel, feature: FeatureSpec) -> str:
    """Where a feature's keys come from, and what the server makes of those outside of its table."""
    source = str(captured.sources[feature.name])
    return source if feature.out_of_range is OutOfRange.REFUSE else f"{source}, {_RULES[feature.out_of_range]}"


def _dense_texts(captured: CapturedModel) -> list[str]:
    """The inputs that stand side by side in `dense`, and which of their columns."""
    from hebe.models.importing.layer_tables import FeatureSource

    return [str(FeatureSource(name, columns)) for name, columns in captured.dense_columns.items()]
