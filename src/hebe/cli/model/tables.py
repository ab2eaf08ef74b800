"""How `hebe model` shows models: rich tables for people, plain data for `--json`."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from hebe.cli.terminal.output import make_console, make_progress, print_json
from hebe.report.tables import Column, FittingTable
from hebe.spec import ModelSpec

if TYPE_CHECKING:
    from hebe.models.repository.memory_estimate import MemoryEstimate
    from hebe.models.repository.repository import StoredModel


_SOURCE_PATTERN = re.compile(r"[^(,;:]*(\([^)]*\))?")
"""A source without its table, section and remarks: `Hera (Choi et al., HPCA 2023)`."""


def size_text(size_bytes: float) -> str:
    """A size for people: 512 B, 1.5 MiB, 12.3 GiB."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def summary(spec: ModelSpec) -> dict[str, Any]:
    """What `list` says of one configuration."""
    return {
        "name": spec.name,
        "size": spec.size,
        "architecture": spec.architecture,
        "tables": len(spec.tables),
        "rows": sum(table.rows for table in spec.tables),
        "lookups_per_item": spec.lookups_per_item,
        "table_bytes": spec.table_bytes,
        "sla_ms": spec.sla.latency_ms,
        "percentile": spec.sla.percentile,
        "source": spec.source,
    }


def list_table(specs: Iterable[ModelSpec]) -> FittingTable:
    """One line a configuration, under a line for each source."""
    table = FittingTable(
        "model",
        "size",
        Column("tables", right=True, spare=1),
        Column("rows", right=True),
        Column("lookups", right=True, spare=2),
        Column("memory", right=True),
        Column("SLA", right=True),
    )
    source = ""
    for spec in specs:
        before, source = source, _SOURCE_PATTERN.match(spec.source)[0]  # type: ignore[index]
        if source != before:
            table.add_title(source)
        table.add_row(
            spec.name,
            spec.size,
            str(len(spec.tables)),
            _count_text(sum(held.rows for held in spec.tables)),
            f"{spec.lookups_per_item:,}",
            size_text(spec.table_bytes),
            f"p{spec.sla.percentile:g} {spec.sla.latency_ms:g} ms",
        )
    return table


def _count_text(count: int) -> str:
    """A count for people: 640, 20 k, 10 M, 1.1 G."""
    value, unit = float(count), ""
    for unit in ("", "k", "M", "G"):
        if value < 1000 or unit == "G":
            break
        value /= 1000
    return f"{value:.3g} {unit}".strip()


def sla_text(spec: ModelSpec) -> str:
    """The SLA target for people: p95 <= 25 ms."""
    return f"p{spec.sla.percentile:g} <= {spec.sla.latency_ms:g} ms"


def spec_table(spec: ModelSpec) -> FittingTable:
    """What a model is, one field a row."""
    table = FittingTable("model", Column(spec.name, folds=True))
    rows = {
        "architecture": spec.architecture,
        "size": spec.size or "-",
        "scale": f"{spec.scale:g}" + ("" if spec.scale == 1 else " of the published rows"),
        "dense input": f"{spec.dense_dim} columns" if spec.dense_dim else "none",
        "towers": ", ".join(f"{name} {'-'.join(map(str, widths))}" for name, widths in spec.towers.items()),
        "settings": ", ".join(f"{name} = {value}" for name, value in spec.settings.items()),
        "scores": f"{spec.outputs} per item",
        "lookups": f"{spec.lookups_per_item} per item",
        "SLA target": sla_text(spec),
        "table memory": f"{size_text(spec.table_bytes)} in {len(spec.tables)} tables",
        "source": spec.source,
        "notes": spec.notes,
    }
    for field, value in rows.items():
        if value:
            table.add_row(field, value)
    return table


def features_table(spec: ModelSpec) -> FittingTable:
    """The embedding features; those alike in all but name and table share a row."""
    table = FittingTable(
        Column("features", folds=True),
        Column("lookups", right=True),
        "pooling",
        Column("dim", right=True),
        Column("rows", right=True),
        Column("tables", folds=True),
    )
    alike: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for feature in spec.features:
        kind = (
            feature.lookups,
            str(feature.pooling),
            spec.table(feature.table).dim,
            spec.table(feature.table).rows,
        )
        alike.setdefault(kind, []).append((feature.name, feature.table))
    for (lookups, pooling, dim, rows), names in alike.items():
        tables = list(Counter(table for _, table in names))
        table.add_row(
            _abridged([name for name, _ in names]),
            str(lookups),
            pooling,
            str(dim),
            f"{rows:,}",
            _abridged(tables),
        )
    return table


def memory_table(spec: ModelSpec, estimate: MemoryEstimate, available_bytes: int | None) -> FittingTable:
    """What an estimate consists of, and whether it fits."""
    table = FittingTable("memory of", Column(spec.name, right=True), Column(folds=True))
    workers = "worker" if estimate.workers == 1 else f"{estimate.workers} workers"
    threads = f", {estimate.worker_threads} threads each" if estimate.worker_threads > 1 else ""
    held = f"{len(spec.tables)} tables of {estimate.row_format} rows, in whole huge pages"
    all_rows = sum(table.rows * estimate.row_format.row_bytes(table.dim) for table in spec.tables)
    if estimate.table_bytes < all_rows:
        held = "a part of the rows; what RocksDB caches of the others is not counted"
    rows = (
        ("tables", estimate.table_bytes, held),
        ("DenseNet", estimate.dense_net_bytes, "weights and graph"),
        (
            workers,
            estimate.workers * estimate.worker_bytes,
            f"buffers and activations, {estimate.batch_size} items{threads}",
        ),
        ("a query", estimate.query_bytes, f"of {estimate.batch_size} items, whose memory is kept"),
        ("process", estimate.process_bytes, "Python, torch, front ends: once, however many models"),
    )
    for part, size_bytes, note in rows:
        table.add_row(part, size_text(size_bytes), Text(note, "dim"))
    in_all = Text("in all", "bold"), Text(size_text(estimate.total_bytes), "bold")
    table.add_row(*in_all, _fits(estimate, available_bytes))
    table.add_row("more queries", size_text(estimate.query_bytes), Text("on top, each while it waits or runs", "dim"))
    if estimate.batch_bytes:
        table.add_row("each batch", size_text(estimate.batch_bytes), Text("on top, while it runs", "dim"))
    if estimate.background_bytes:
        on_their_way = Text("on top at most: rows and keys on their way between tiers", "dim")
        table.add_row("background", size_text(estimate.background_bytes), on_their_way)
    return table


def _fits(estimate: MemoryEstimate, available_bytes: int | None) -> Text:
    if available_bytes is None:
        return Text()
    if estimate.total_bytes <= available_bytes:
        return Text(f"fits: {size_text(available_bytes)} are available here", "green")
    return Text.assemble(
        (f"does not fit: {size_text(available_bytes)} are available here", "bold red"),
        "; shrink it with --scale, or bound it with --table-memory",
    )


def _abridged(names: list[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} ... {names[-1]} ({len(names)})"


@contextmanager
def byte_progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes, counted in MiB: gives the callback (bytes done, bytes in all)."""
    with make_progress() as bar:
        task = bar.add_task(f"{description} (MiB)", total=None)
        yield lambda done, total: bar.update(task, completed=-(-done >> 20), total=-(-total >> 20))


def print_stored(
    stored: StoredModel, repository: Path, as_json: bool, *, unmeasured: str = "not measured", **more: Any
) -> None:
    """What was stored, and what to type next. `unmeasured`: why a number of `more` is NaN, and what to do."""
    console = make_console(as_json)
    size = size_text(sum(stored.file_bytes.values()))
    console.print(
        f"stored [bold]{escape(stored.name)}[/] version {stored.version}: {size} at {escape(str(stored.path))}"
    )
    for field, value in more.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        console.print(f"  {field.replace('_', ' ')}: {unmeasured if text == 'nan' else text}", soft_wrap=True)
    console.print(f"serve it: hebe serve {escape(shlex.quote(str(repository)))}")
    if as_json:
        print_json(stored_summary(stored) | more)


def stored_summary(stored: StoredModel) -> dict[str, Any]:
    """What `--json` says of a stored model."""
    return {
        "name": stored.name,
        "version": stored.version,
        "path": str(stored.path),
        "architecture": stored.spec.architecture,
        "disk_bytes": sum(stored.file_bytes.values()),
        "table_bytes": stored.spec.table_bytes,
        "provenance": dict(stored.provenance),
    }
