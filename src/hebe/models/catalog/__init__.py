"""The catalog: every published configuration under its own name, with its own SLA target and its source.

One file per source. Plain names belong to one source each (`dlrm-rmc1` is Hercules', `ncf` Hera's); every
configuration is also reachable as SOURCE-NAME (`hercules-dlrm-rmc1`, `hera-ncf`), which is the only name where two
sources use the same one. Where a source leaves a figure open, `notes` says which value stands here and why.
Sizes are "small" and "production"; most configurations are published in the latter alone.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import replace

from hebe.models.catalog import deeprecsys, hera, hercules, kairos, mlperf, own, recos
from hebe.spec import ModelSpec, SpecError

LEAST_ROWS = 64
"""No table is scaled to fewer rows than this, unless it is published with fewer."""

_SOURCES = {
    "": own.ENTRIES,
    "hercules": hercules.ENTRIES,
    "hera": hera.ENTRIES,
    "kairos": kairos.ENTRIES,
    "recos": recos.ENTRIES,
    "deeprecsys": deeprecsys.ENTRIES,
    "mlperf": mlperf.ENTRIES,
}
_ENTRIES: dict[str, dict[str, ModelSpec]] = {}
_ALIASES: dict[str, str] = {}
for _source, _entries in _SOURCES.items():
    for _variants in _entries:
        _name = _variants[0].name
        _ENTRIES[_name] = {spec.size: spec for spec in _variants}
        if _source and not _name.startswith(f"{_source}-"):
            _ALIASES[f"{_source}-{_name}"] = _name


def names() -> list[str]:
    """The names of all entries, grouped by source; `entry` takes SOURCE-NAME for each as well."""
    return list(_ENTRIES)


def sizes(name: str) -> list[str]:
    """The sizes in which `name` is published, the one that `entry` takes by default first; raises `SpecError`."""
    return list(_sizes_of(name))


def entry(name: str, size: str | None = None, scale: float = 1.0) -> ModelSpec:
    """The configuration `name`; `scale` in (0, 1] shrinks the rows of every table and is recorded in the spec.

    No table shrinks below `LEAST_ROWS` rows. Raises `SpecError` for an unknown name (naming close ones), an unknown
    size (naming the entry's sizes) and a scale outside (0, 1].
    """
    variants = _sizes_of(name)
    if size is None:
        size = next(iter(variants))
    if size not in variants:
        raise SpecError(f"model {name}: size {size!r} is unknown; its sizes: {', '.join(variants)}")
    if not (math.isfinite(scale) and 0 < scale <= 1):
        raise SpecError(f"model {name}: scale is {scale!r}: must be above 0 and at most 1")
    spec = variants[size]
    if scale == 1.0:
        return spec
    tables = tuple(
        replace(table, rows=max(min(table.rows, LEAST_ROWS), round(table.rows * scale))) for table in spec.tables
    )
    return replace(spec, tables=tables, scale=scale)


def _sizes_of(name: str) -> dict[str, ModelSpec]:
    known = _ENTRIES.get(_ALIASES.get(name, name))
    if known is None:
        close = difflib.get_close_matches(name.lower(), [*_ENTRIES, *_ALIASES], n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(_ENTRIES)}"
        raise SpecError(f"model {name!r} is not in the catalog; {hint}")
    return known
