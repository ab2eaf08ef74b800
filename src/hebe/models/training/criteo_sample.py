"""Made-up click logs of Criteo's form, so that training and the demo need no download.

Categorical values follow a Zipf law over vocabularies from 3 to 20,000 values, integers are heavy-tailed, a part of
the fields is missing, and a planted logistic model draws the labels: about one click in four, and an AUC near 0.84
for whoever knows the planted weights.
"""

from __future__ import annotations

import gzip
import os
from io import BufferedWriter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.models.training.criteo import CATEGORICAL_COLUMNS, INTEGER_COLUMNS

_VOCABULARY_SIZES = (
    1000, 500, 20_000, 10_000, 200, 15, 8000, 400, 3, 5000, 4000, 15_000, 3000,
    25, 5000, 10_000, 10, 3000, 1500, 4, 12_000, 12, 15, 8000, 60, 6000,
)  # fmt: skip
_BATCH_ROWS = 10_000


def generate_criteo(path: str | Path, rows: int, seed: int = 0) -> None:
    """Write `rows` rows to `path`: tab-separated, no header, gzipped if the name ends in `.gz`.

    The same seed gives the same bytes. The file appears whole or not at all. Raises ValueError for rows < 1.
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}: must be at least 1")
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0, compresslevel=1) as file:
                    _write_rows(file, rows, seed)
            else:
                _write_rows(raw, rows, seed)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class _Planted:
    """The made-up world: vocabularies, the law of each column, and the logistic model that draws the labels."""

    def __init__(self, random: np.random.Generator) -> None:
        self.vocabularies = []
        for size in _VOCABULARY_SIZES:
            values = [f"{value:08x}" for value in random.choice(2**32, size, replace=False).tolist()]
            self.vocabularies.append(np.array([*values, ""], dtype=object))  # the last, which -1 finds: missing
        self.weights = [np.append(random.normal(0.0, 0.35, size), 0.0) for size in _VOCABULARY_SIZES]
        self.slopes = random.normal(0.0, 0.15, len(INTEGER_COLUMNS))
        self.scales = random.uniform(0.5, 4.0, len(INTEGER_COLUMNS))
        self.integer_gaps = random.choice([0.0, 0.05, 0.2, 0.45], len(INTEGER_COLUMNS))
        self.category_gaps = random.choice([0.0, 0.0, 0.03, 0.4], len(CATEGORICAL_COLUMNS))
        # Every seed's clicks are equally frequent and equally predictable.
        _, _, value = self.draw(random, _BATCH_ROWS)
        self.mean, self.deviation = float(value.mean()), float(value.std())

    def draw(
        self, random: np.random.Generator, rows: int
    ) -> tuple[npt.NDArray[np.float64], list[npt.NDArray[np.int64]], npt.NDArray[np.float64]]:
        """(integers `[rows, 13]`, NaN where missing; vocabulary indices of each of 26 columns; value `[rows]`)."""
        integers = np.floor(np.exp(random.normal(self.scales, 1.5, (rows, len(self.scales))))) - 1.0
        integers[random.random(integers.shape) < self.integer_gaps] = np.nan
        value = np.nan_to_num(np.log1p(np.maximum(integers, 0.0)) - self.scales) @ self.slopes
        categories = []
        for weight, gap in zip(self.weights, self.category_gaps, strict=True):
            indices = _zipf(random, len(weight) - 1, rows)
            indices[random.random(rows) < gap] = -1
            value += weight[indices]
            categories.append(indices)
        return integers, categories, value

    def lines(self, random: np.random.Generator, rows: int) -> str:
        """`rows` lines of the file."""
        integers, categories, value = self.draw(random, rows)
        logit = 1.7 * (value - self.mean) / self.deviation - 1.6
        labels = random.random(rows) < 1.0 / (1.0 + np.exp(-logit))
        columns = [np.where(labels, "1", "0").tolist()]
        columns += [["" if count != count else str(int(count)) for count in column] for column in integers.T.tolist()]
        columns += [words[picked].tolist() for words, picked in zip(self.vocabularies, categories, strict=True)]
        return "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))


def _write_rows(file: gzip.GzipFile | BufferedWriter, rows: int, seed: int) -> None:
    planted_seed, rows_seed = np.random.SeedSequence(seed).spawn(2)
    planted, random = _Planted(np.random.default_rng(planted_seed)), np.random.default_rng(rows_seed)
    for start in range(0, rows, _BATCH_ROWS):
        file.write(planted.lines(random, min(_BATCH_ROWS, rows - start)).encode())


def _zipf(random: np.random.Generator, size: int, count: int) -> npt.NDArray[np.int64]:
    """`count` ids below `size` with probability proportional to 1 / (id + 1), by the inverse of the continuous law."""
    ranks: npt.NDArray[np.int64] = np.exp(random.random(count) * np.log(size + 1.0)).astype(np.int64)
    return np.minimum(ranks, size) - 1
