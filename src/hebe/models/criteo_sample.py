"""Made-up click logs of Criteo's form, so that training and the demo need no download.

Categorical values follow a Zipf law over vocabularies from 3 to 20,000 values, integers are heavy-tailed, a part of
the fields is missing, and a planted logistic model draws the labels: about one click in four, and an AUC near 0.8
for whoever knows the planted weights.
"""

from __future__ import annotations

import gzip
import os
from io import BufferedWriter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.models.criteo import CATEGORICAL_COLUMNS, INTEGER_COLUMNS

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


def _write_rows(file: gzip.GzipFile | BufferedWriter, rows: int, seed: int) -> None:
    truth_seed, draw_seed = np.random.SeedSequence(seed).spawn(2)
    truth = np.random.default_rng(truth_seed)
    draw = np.random.default_rng(draw_seed)
    vocabularies = []
    for size in _VOCABULARY_SIZES:
        values = [f"{value:08x}" for value in truth.choice(2**32, size, replace=False).tolist()]
        vocabularies.append(np.array([*values, ""], dtype=object))  # index -1: missing
    weights = [np.append(truth.normal(0.0, 0.35, size), 0.0) for size in _VOCABULARY_SIZES]
    slopes = truth.normal(0.0, 0.15, len(INTEGER_COLUMNS))
    scales = truth.uniform(0.5, 4.0, len(INTEGER_COLUMNS))
    integer_gaps = truth.choice([0.0, 0.05, 0.2, 0.45], len(INTEGER_COLUMNS))
    category_gaps = truth.choice([0.0, 0.0, 0.03, 0.4], len(CATEGORICAL_COLUMNS))
    for start in range(0, rows, _BATCH_ROWS):
        count = min(_BATCH_ROWS, rows - start)
        integers = np.floor(np.exp(draw.normal(scales, 1.5, (count, len(scales))))) - 1.0
        integers[draw.random(integers.shape) < integer_gaps] = np.nan
        logit = np.nan_to_num(np.log1p(np.maximum(integers, 0.0)) - scales) @ slopes - 1.9
        categories = []
        for size, weight, gap in zip(_VOCABULARY_SIZES, weights, category_gaps, strict=True):
            ids = _zipf(draw, size, count)
            ids[draw.random(count) < gap] = -1
            logit += weight[ids]
            categories.append(ids)
        labels = draw.random(count) < 1.0 / (1.0 + np.exp(-logit))
        columns = [np.where(labels, "1", "0").tolist()]
        columns += [["" if value != value else str(int(value)) for value in column] for column in integers.T.tolist()]
        columns += [words[ids].tolist() for words, ids in zip(vocabularies, categories, strict=True)]
        file.write("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)).encode())


def _zipf(draw: np.random.Generator, size: int, count: int) -> npt.NDArray[np.int64]:
    """`count` ids below `size` with probability proportional to 1 / (id + 1), by the inverse of the continuous law."""
    ranks: npt.NDArray[np.int64] = np.exp(draw.random(count) * np.log(size + 1.0)).astype(np.int64)
    return np.minimum(ranks, size) - 1
