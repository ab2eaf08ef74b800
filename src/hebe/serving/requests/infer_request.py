"""An inference request and its answer, as both protocols mean them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hebe.query import FloatArray
from hebe.serving.requests.query_decoder import DecodedQuery
from hebe.serving.requests.tensors import WireTensor
from hebe.serving.statistics import ModelStatistics

DEFAULT_PRIORITY = 100
"""Of a request that names none, or 0, as in Triton's schedule policy, where 1 is the most urgent."""

MOST_PRIORITY = 2**32 - 1
"""The least urgent that may be named."""


@dataclass(slots=True)
class InferRequest:
    """One inference request, freed of its protocol.

    `version` "" is the newest. `outputs` are the requested names, None for all. `arrival_s` and `deadline_s` are on
    the host's clock; `deadline_s` is what the transport demands (a gRPC deadline), `inf` if nothing. `trace_parent`
    is the client's W3C trace context. `decoded`: what the tensors are, of a request that has none any more.
    """

    model: str
    version: str
    request_id: str
    tensors: Sequence[WireTensor]
    arrival_s: float
    outputs: Sequence[str] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float = math.inf
    trace_parent: str | None = None
    decoded: DecodedQuery | None = None


@dataclass(slots=True)
class InferAnswer:
    """`scores` float32 `[items, outputs]`, C-contiguous; `parameters` are the response's."""

    model: str
    version: int
    request_id: str
    scores: FloatArray
    parameters: dict[str, int | float]
    statistics: ModelStatistics
