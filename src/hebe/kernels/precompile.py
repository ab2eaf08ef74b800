"""All kernels at once, so that no process that starts later compiles any."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hebe.kernels.hash_tables import hash_map, key_positions, slab_cache, xxh64
from hebe.kernels.hot_rows import add_hot_rows, hot_keys
from hebe.kernels.lookup import (
    batch_loop,
    deduplicate,
    find_keys,
    fused_lookup,
    padding,
    row_format,
    sealed_rows,
    table_batch,
)
from hebe.kernels.lookup.row_format import RowFormat

STEPS: tuple[tuple[str, Callable[[], object]], ...] = (
    ("xxh64", xxh64.warm_up),
    ("padding", padding.warm_up),
    ("find_keys", find_keys.warm_up),
    ("row_format", row_format.warm_up),
    ("table_batch", table_batch.warm_up),
    ("sealed_rows", sealed_rows.warm_up),
    ("key_positions", key_positions.warm_up),
    ("deduplicate", deduplicate.warm_up),
    ("hot_keys", hot_keys.warm_up),
    *((f"fused_lookup {each}", partial(fused_lookup.warm_up, each)) for each in RowFormat),
    ("batch_loop", batch_loop.next_batch),
    *((f"add_hot_rows {each}", partial(add_hot_rows.warm_up, each)) for each in RowFormat),
    ("slab_cache", slab_cache.warm_up),
    ("hash_map", hash_map.kernels),
)
"""What makes kernels, with a name for people: a kernel's signature never depends on data, so these are all."""


def precompile(report: Callable[[str, int], object]) -> None:
    """Compile all kernels that run on the CPU, or load them from the cache; `kernel_cache.counts` has their numbers.

    `report` receives each step's name and the number of steps done before it, and at the end "" and all of them.
    """
    for done, (name, make) in enumerate(STEPS):
        report(name, done)
        make()
    report("", len(STEPS))
