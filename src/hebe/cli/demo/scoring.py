"""Scores rows of a Criteo-format file over HTTP, as any Open Inference Protocol client would, and reads from the
server's metrics where its queries spent their time between two looks.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families

from hebe.models.training.criteo import CriteoFile
from hebe.models.training.criteo_features import CriteoTransform

_TIMEOUT_S = 30.0


class ScoringError(RuntimeError):
    """The server did not answer a query with scores; says what it answered instead."""


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Labels and scores of some rows, float32 `[n]` each."""

    labels: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]


class HttpScorer:
    """One connection to one model. Use as a context."""

    def __init__(self, url: str, model: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        self._path = f"/v2/models/{quote(model, safe='')}/infer"

    def __enter__(self) -> HttpScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def score(self, inputs: Mapping[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """Scores float32 `[items]` of one query; float32 and int64 inputs by name, sent as binary tensors.

        Raises `ScoringError`.
        """
        tensors = {name: np.ascontiguousarray(values) for name, values in inputs.items()}
        described = {
            "inputs": [
                {
                    "name": name,
                    "shape": list(values.shape),
                    "datatype": "FP32" if values.dtype == np.float32 else "INT64",
                    "parameters": {"binary_data_size": values.nbytes},
                }
                for name, values in tensors.items()
            ],
            # Without a time-out the deadline is the SLA, and a busy machine may refuse: here every row is wanted.
            "parameters": {"binary_data_output": True, "timeout": int(_TIMEOUT_S * 1e6)},
        }
        head = json.dumps(described).encode()
        body = head + b"".join(values.tobytes() for values in tensors.values())
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        try:
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as fault:
            raise ScoringError(f"POST {self._path}: {fault or type(fault).__name__}") from None
        if answer.status != 200:
            raise ScoringError(f"POST {self._path}: answer {answer.status}: {content[:300].decode(errors='replace')}")
        length = int(answer.headers.get("Inference-Header-Content-Length", len(content)))
        scores = np.frombuffer(content, dtype="<f4", offset=length)
        items = len(next(iter(tensors.values())))
        if len(scores) != items:
            raise ScoringError(f"POST {self._path}: {len(scores)} scores for {items} items")
        return scores


def score_rows(
    scorer: HttpScorer, transform: CriteoTransform, file: CriteoFile, start: int, stop: int, items: int
) -> ScoredRows:
    """Score rows `[start, stop)` of `file` in queries of `items` rows. Raises `ScoringError`, `CriteoFormatError`."""
    labels, scores = [], []
    for rows in file.batches(items, start, stop):
        if len(rows):
            labels.append(rows.labels)
            scores.append(scorer.score(transform.inputs(rows)))
    return ScoredRows(np.concatenate(labels), np.concatenate(scores))


STAGES = ("queue", "sparse", "dense")
_METRIC = "hebe_stage_seconds"


class MetricsError(RuntimeError):
    """A metrics page that cannot be read."""


@dataclass(frozen=True, slots=True)
class StageTotals:
    """Queries answered since the server started, and the seconds that they spent in each stage."""

    queries: int
    seconds: dict[str, float]

    def mean_ms_since(self, before: StageTotals) -> dict[str, float]:
        """Mean milliseconds per query in each stage since `before`; empty if no query was answered."""
        queries = self.queries - before.queries
        if queries <= 0:
            return {}
        return {stage: (self.seconds[stage] - before.seconds[stage]) / queries * 1e3 for stage in STAGES}


def read_stages(metrics_url: str, model: str) -> StageTotals:
    """Look at the metrics page now. Raises `MetricsError`."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=10.0) as answer:
            return parse_stages(answer.read().decode(), model)
    except (urllib.error.URLError, OSError) as fault:
        raise MetricsError(f"{metrics_url}: cannot be read: {fault}") from None


def parse_stages(page: str, model: str) -> StageTotals:
    """The totals over all versions of `model` on a Prometheus text page."""
    seconds = dict.fromkeys(STAGES, 0.0)
    queries = 0
    for family in text_string_to_metric_families(page):
        if family.name != _METRIC:
            continue
        for sample in family.samples:
            stage = sample.labels.get("stage")
            if sample.labels.get("model") != model or stage not in seconds:
                continue
            if sample.name == f"{_METRIC}_sum":
                seconds[stage] += sample.value
            elif sample.name == f"{_METRIC}_count" and stage == STAGES[0]:
                queries += int(sample.value)
    return StageTotals(queries, seconds)
