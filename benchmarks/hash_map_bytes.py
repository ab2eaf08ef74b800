"""What a row takes in the hash map, by dim: memory over raw rows while a table grows, as docs/embeddings.md has it.

python benchmarks/hash_map_bytes.py [ROWS]
"""

import sys

import numpy as np

from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.options import OverflowPolicy, VolatileOptions

STEP_ROWS = 2000


def measure(dim: int, policy: OverflowPolicy, rows: int) -> tuple[float, float]:
    """The least and the most, from a quarter of the rows on."""
    store, ratios = HashMapStore({"t": dim}, VolatileOptions(4, overflow_policy=policy)), []
    keys = np.random.default_rng(0).permutation(rows)
    for first in range(0, rows, STEP_ROWS):
        part = keys[first : first + STEP_ROWS]
        store.insert("t", part, np.ones((len(part), dim), np.float32))
        if first >= rows // 4:
            ratios.append(store.memory_bytes / (4 * dim * store.size("t")))
    store.close()
    return min(ratios), max(ratios)


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{rows:,} rows: memory over raw rows at the load limit, and at most while it grows")
    for policy in OverflowPolicy:
        for dim in (1, 4, 16, 32, 64, 128):
            least, most = measure(dim, policy, rows)
            print(f"{policy:<18}dim {dim:<5}{least:6.2f}{most:7.2f}")
