"""Queries drawn before the run, so that sending one is slicing bytes.

For each input there is one array of `items` drawn rows; a query of n items is n consecutive rows of all of them,
from an offset. Two queries may share rows, never a fixed set of queries repeats: with 256 MiB of `dlrm-rmc1` there are
40,000 offsets for each query size.

What is drawn once bounds how many different keys a run can send. So the pool grows with the tables' rows, as far as
its bytes go, and `key_shortages` tells where a run of so many items would have touched far more rows than it did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from hebe.load_generator.error import LoadError
from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.workload.key_skew import KeySkew, spread_seed_of

POOL_BYTES = 256 << 20
"""Unless told otherwise. More than any cache of a processor holds, so that what is sent comes from memory."""

LEAST_ITEMS = 1 << 16
"""The items of a pool where tables have no more rows than these can name, as far as its bytes go."""

LOOKUPS_PER_ROW = 3
"""Of the largest table: uniform keys then name 95% of its rows."""

MOST_QUERY_BYTES = 1 << 31
"""Neither gRPC nor most HTTP servers take a larger request."""

FEWEST_KEYS_SHARE = 0.5
"""Of the rows that independent keys would touch; with fewer, caches look warmer than they are."""

_CHUNK = 1 << 15
"""Keys drawn at once: what is computed between stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class KeyShortage:
    """An input whose keys were `drawn` different ones at most, where a run like that should touch `wanted` rows."""

    name: str
    drawn: float
    wanted: float


class QueryPool:
    """Drawn tensors of `items` items: `arrays[input]` is `[items, *columns]`, in the wire's datatype.

    Raises `LoadError` if one query would be larger than a request may be.
    """

    def __init__(
        self,
        model: ModelInputs,
        keys: KeySkew,
        largest_query: int,
        rng: np.random.Generator,
        pool_bytes: int = POOL_BYTES,
    ) -> None:
        if (query_bytes := largest_query * model.item_bytes) > MOST_QUERY_BYTES:
            raise LoadError(
                f"query sizes reach {largest_query:,} items, which take {query_bytes / 2**30:,.1f} GiB:"
                f" a request has at most {MOST_QUERY_BYTES >> 30} GiB"
            )
        self.model = model
        self._keys = keys
        wanted = max((_items_to_name_the_rows(tensor) for tensor in model.inputs), default=0)
        self.items = max(min(pool_bytes // model.item_bytes, max(wanted, LEAST_ITEMS)), largest_query)
        self.arrays = tuple(_draw(tensor, self.items, keys, rng) for tensor in model.inputs)

    @property
    def size_bytes(self) -> int:
        """Memory of the drawn tensors."""
        return sum(array.nbytes for array in self.arrays)

    def offsets(self, sizes: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Where queries of `sizes` items start in the pool: int64, same shape, uniform over what fits."""
        return rng.integers(0, self.items - sizes + 1)

    def key_shortages(self, items: int) -> list[KeyShortage]:
        """The inputs that had far fewer different keys than independent ones in queries of `items` items together."""
        # Queries begin anywhere, so they leave gaps in a pool of which they could fill the whole.
        seen = self.items * -math.expm1(-items / self.items)
        touched = cache(self._keys.rows_touched)
        found = []
        for tensor in self.model.inputs:
            if tensor.rows is not None:
                lookups = math.prod(tensor.columns)
                drawn, wanted = touched(tensor.rows, seen * lookups), touched(tensor.rows, items * lookups)
                if drawn < FEWEST_KEYS_SHARE * wanted:
                    found.append(KeyShortage(tensor.name, drawn, wanted))
        return found


def _items_to_name_the_rows(tensor: ModelInput) -> int:
    return 0 if tensor.rows is None else math.ceil(LOOKUPS_PER_ROW * tensor.rows / max(math.prod(tensor.columns), 1))


def _draw(tensor: ModelInput, items: int, keys: KeySkew, rng: np.random.Generator) -> npt.NDArray[np.generic]:
    drawn = np.empty(items * math.prod(tensor.columns), dtype=tensor.dtype)
    for start in range(0, drawn.size, _CHUNK):
        part = drawn[start : start + _CHUNK]
        if tensor.rows is None:
            part[:] = rng.standard_normal(part.size, dtype=np.float32)
        else:
            # The name picks where the hot rows lie: other runs, and other generators, find the same rows hot.
            part[:] = keys.draw(tensor.rows, part.size, rng, spread_seed_of(tensor.name))
    return drawn.reshape(items, *tensor.columns)
