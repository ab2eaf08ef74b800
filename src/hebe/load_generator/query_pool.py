"""Queries drawn before the run, so that sending one is slicing bytes.

For each input there is one array of `items` drawn rows; a query of n items is n consecutive rows of all of them,
from an offset. Two queries may share rows, never a fixed set of queries repeats: with 64 MiB of `dlrm-rmc1` there are
10,000 offsets for each query size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hebe.load_generator.model_inputs import ModelInput, ModelInputs
from hebe.workload.key_skew import KeySkew, spread_seed_of

POOL_BYTES = 64 << 20
MOST_ITEMS = 1 << 16


class QueryPool:
    """Drawn tensors of `items` items: `arrays[input]` is `[items, *columns]`, in the wire's datatype."""

    def __init__(
        self,
        model: ModelInputs,
        keys: KeySkew,
        largest_query: int,
        rng: np.random.Generator,
        pool_bytes: int = POOL_BYTES,
    ) -> None:
        self.model = model
        self.items = max(min(pool_bytes // model.item_bytes, MOST_ITEMS), largest_query)
        self.arrays = tuple(_draw(tensor, self.items, keys, rng) for tensor in model.inputs)

    def offsets(self, sizes: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Where queries of `sizes` items start in the pool: int64, same shape, uniform over what fits."""
        return rng.integers(0, self.items - sizes + 1)


def _draw(tensor: ModelInput, items: int, keys: KeySkew, rng: np.random.Generator) -> npt.NDArray[np.generic]:
    shape = (items, *tensor.columns)
    if tensor.rows is None:
        return rng.standard_normal(shape, dtype=np.float32).astype(tensor.dtype, copy=False)
    # The name picks where the hot rows lie: other runs, and other generators, find the same rows hot.
    drawn = keys.draw(tensor.rows, int(np.prod(shape)), rng, spread_seed_of(tensor.name))
    return drawn.astype(tensor.dtype, copy=False).reshape(shape)
