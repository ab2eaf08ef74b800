"""What the studies of HPS share: its synthetic data set made smaller, its model, where files lie meanwhile, and lines
over iterations or batch sizes.

The paper's "synthetic dataset A" mimics the Criteo terabyte logs: 26 features of one key each, rows of 128 numbers
drawn at random, keys from a power law with alpha 1.2 (HPS 7.1). Its rows, 650 GB of them, are fewer here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import LogLocator, NullLocator

from hebe.models.catalog.layout import plain
from hebe.query import Query
from hebe.report.plots.style import drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.spec import ModelSpec
from hebe.workload.key_skew import ZipfKeys

DIM = 128
ROW_BYTES = 4 * DIM
DENSE_DIM = 13
BOTTOM, TOP = (512, 256, 128), (1024, 1024, 512, 256, 1)
"""Towers of the DLRM for the Criteo logs; 9.5 MB of weights, where the paper says at most 10."""

PAPER_TABLES = 26
PAPER_ROWS = round(650e9 / ROW_BYTES / PAPER_TABLES)
"""Rows of each table of the synthetic dataset A, were they all alike."""
PAPER_BATCH = 1024
POWER_LAW = ZipfKeys(1.2)

HASH_MAP, REDIS, ROCKSDB = "hash map", "Redis", "RocksDB"
"""Stores, as tables and pictures name them."""

REDIS_NODES, REDIS_PARTITIONS = 3, 40
"""Of the paper's Redis Cluster (its Table 2 and Fig. 10)."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DataSet:
    """`tables` tables of `rows` rows of `DIM` float32 each, and queries with one key of each table an item."""

    tables: int
    rows: int

    @property
    def table_bytes(self) -> int:
        """Of all rows."""
        return self.tables * self.rows * ROW_BYTES

    @property
    def spec(self) -> ModelSpec:
        """The DLRM over these tables."""
        tables, features = plain([self.rows] * self.tables, DIM, 1)
        return ModelSpec(
            name="hps-synthetic",
            architecture="dlrm",
            tables=tables,
            features=features,
            dense_dim=DENSE_DIM,
            towers={"bottom": BOTTOM, "top": TOP},
        )

    def draw(self, items: int, rng: np.random.Generator, skew: ZipfKeys = POWER_LAW) -> npt.NDArray[np.int64]:
        """Keys of `items` items, int64 `[items, tables]`; popular rows lie elsewhere in each table."""
        columns = [skew.draw(self.rows, items, rng, spread_seed=table) for table in range(self.tables)]
        return np.stack(columns, axis=1)

    def query(self, items: int, rng: np.random.Generator) -> Query:
        """A query of so many items, as `spec`'s model takes it."""
        keys = self.draw(items, rng)
        features = {feature.name: np.ascontiguousarray(keys[:, [n]]) for n, feature in enumerate(self.spec.features)}
        return Query(0, items, 0.0, features=features, dense=rng.random((items, DENSE_DIM), dtype=np.float32))

    def __str__(self) -> str:
        return f"{self.tables} tables of {self.rows:,} rows of {DIM} floats, {self.table_bytes / 1e9:.3g} GB"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory for stores and models, in that of `TMPDIR`, which is gone afterwards, also after Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="hebe-study-", ignore_cleanup_errors=True) as path:
        yield Path(path)


_MEDIAN_OF = 9


def lines(
    series: Mapping[str, tuple[Sequence[float] | Values, Sequence[float] | Values]],
    x_label: str,
    y_label: str,
    title: str,
    *,
    marked: bool = False,
    logarithmic: bool = False,
) -> str:
    """One line of (x, y) a series, six at most, over a logarithmic x axis.

    The y axis begins at 0 unless it is `logarithmic`. `marked`: a mark and a tick at each x.
    """
    with drawing(height=4.2) as (canvas, axes):
        for name, (x, y) in series.items():
            axes.plot(x, y, label=name, marker="o" if marked else None)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
        if marked:
            axes.set_xticks(sorted({float(value) for x, _ in series.values() for value in x}))
        axes.xaxis.set_minor_locator(NullLocator())
        plain_ticks(axes.xaxis, format_number)
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(bottom=0)
        plain_ticks(axes.yaxis, format_number)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(title)
        canvas.legend(loc="outside lower center", ncols=2 if len(series) == 4 else 3)
        return to_svg(canvas, f"{title}: {', '.join(series)}")


def running_median(values: Values) -> Values:
    """The median of each value and those around it: a busy machine's outliers hide the course."""
    reach = _MEDIAN_OF // 2
    padded = np.pad(values, reach, mode="edge")
    median: Values = np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_OF), axis=1)
    return median
