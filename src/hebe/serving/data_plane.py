"""The protocol-neutral half of serving: a decoded request in, scores out, counted.

HTTP and gRPC convert bytes to `InferRequest` and `InferAnswer` to bytes; everything between is here, so that both
answer alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hebe.query import FloatArray, JaggedKeys, KeyArray, KeyCounts, Query
from hebe.serving.access.refusal_throttle import RefusalPace
from hebe.serving.requests.errors import (
    ErrorKind,
    InvalidInput,
    ModelNotReady,
    RequestError,
    UnknownModel,
    as_request_error,
    quoted,
)
from hebe.serving.requests.infer_request import DEFAULT_PRIORITY, MOST_PRIORITY, InferAnswer, InferRequest
from hebe.serving.requests.query_decoder import SCORE, QueryDecoder
from hebe.serving.statistics import CANCELLED, ModelStatistics, Statistics

if TYPE_CHECKING:
    from hebe.serving.hosting.hosted_model import HostedModel
    from hebe.serving.hosting.model_host import ModelHost
    from hebe.serving.monitoring.tracing import Tracer

MAX_DEFAULTED = "max_defaulted_fraction"
"""Request parameter: refuses an answer in which a larger share of the keys got a default vector."""

LARGE_INPUT = 1e9
"""Where a score is not finite, a dense value beyond this is held to be why: such values soon leave float32's range when
they are multiplied. Otherwise it is the model's fault."""

_FIELDS_BESIDE_INPUTS = 64


class _Endpoint:
    """What is kept for one model version: how to decode, where to count. Holds nothing of the model itself."""

    __slots__ = ("decoder", "statistics")

    def __init__(self, decoder: QueryDecoder, statistics: ModelStatistics) -> None:
        self.decoder = decoder
        self.statistics = statistics


class DataPlane:
    """Answers inference requests from the models of `host`."""

    def __init__(self, host: ModelHost, statistics: Statistics, tracer: Tracer | None = None) -> None:
        self.host = host
        self._tracer = tracer
        self.clock = host.clock
        self.statistics = statistics
        self.most_fields = _FIELDS_BESIDE_INPUTS
        """Fields that the protobuf message of a request may have: enough for every model that was loaded."""
        self._endpoints: dict[tuple[str, int], _Endpoint] = {}
        self._pace = RefusalPace(host.clock)

    @property
    def traces(self) -> bool:
        """Whether there are traces of requests."""
        return self._tracer is not None

    def model_loaded(self, model: HostedModel) -> None:
        """Count the batches of `model` from now on; for `ModelHost.on_loaded`."""
        endpoint = self._endpoint(model)
        # Each input is a field that describes it and one that holds its keys.
        self.most_fields = max(self.most_fields, 2 * endpoint.decoder.most_inputs + _FIELDS_BESIDE_INPUTS)
        model.observe_batches(endpoint.statistics.batch_ran)

    def model_unloaded(self, model: HostedModel) -> None:
        """Forget `model` and its counters, unless the same version is loaded again; for `ModelHost.on_unloaded`."""
        key = (model.spec.name, model.version)
        if key not in ((hosted.spec.name, hosted.version) for hosted in self.host.hosted):
            self._endpoints.pop(key, None)
            self.statistics.forget(*key)

    def statistics_of(self, model: HostedModel) -> ModelStatistics:
        """Where the queries of `model` are counted."""
        return self._endpoint(model).statistics

    def decoder(self, name: str, version: str) -> QueryDecoder:
        """Which says how much a request to a model may have. Raises what `ModelHost.find` raises."""
        return self._endpoint(self.host.find(name, version or None)).decoder

    def count_refused(self, error: RequestError, asked: InferRequest | None = None) -> None:
        """Count a request that was answered with `error`, unless that was counted already; if it asked for scores,
        trace it: `asked` is what is known of it then.

        It is counted on the model (and version) that it asks, if it names one and that is loaded. What it names
        otherwise is the client's invention, and no name of anything here.
        """
        if error.counted:
            return
        endpoint: _Endpoint | None = None
        if asked is not None:
            with contextlib.suppress(UnknownModel, ModelNotReady):
                endpoint = self._endpoint(self.host.find(asked.model, asked.version or None))
        self._count_refused(error, asked, endpoint)

    def _endpoint(self, model: HostedModel) -> _Endpoint:
        spec = model.spec
        key = (spec.name, model.version)
        endpoint = self._endpoints.get(key)
        if endpoint is None or endpoint.decoder.spec is not spec:
            statistics = self.statistics.of(spec.name, model.version, model.sla_s)
            endpoint = self._endpoints[key] = _Endpoint(QueryDecoder(spec, model.max_items), statistics)
        return endpoint

    def statistics_documents(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """The protocol's `model_stats`: of all loaded models, of one, or of one version.

        Raises what `ModelHost.find` raises if that one is not loaded.
        """
        if name:
            self.host.find(name, version or None)
        return [
            self.statistics_of(model).document()
            for model in self.host.hosted
            if (not name or model.spec.name == name) and (not version or str(model.version) == version)
        ]

    def refuses_of_late(self, name: str, version: str) -> bool:
        """Whether it pays to ask for `refusal` before a request to a model is read. Raises as `ModelHost.find`."""
        return self.host.find(name, version or None).refuses_of_late

    def refusal(self, request: InferRequest, items: int) -> RequestError | None:
        """The refusal of a request of `items` items whose tensors have not come yet, counted; None to go on reading.

        Raises `RequestError`, uncounted, where the request is wrong: reading it whole will tell.
        """
        model = self.host.find(request.model, request.version or None)
        priority, deadline_s, _ = _options(request, model.sla_s)
        if items > model.max_items:
            return None
        refused = model.refusal(Query(0, items, request.arrival_s, deadline_s, priority))
        if refused is None:
            return None
        error = as_request_error(refused)
        self._count_refused(error, request, self._endpoint(model))
        return error

    def _count_refused(self, error: RequestError, asked: InferRequest | None, endpoint: _Endpoint | None) -> None:
        """Count, pace and trace a refusal; without `endpoint` one that reached no model."""
        error.counted = True
        if beside := max((model.workers_beside_front_end for model in self.host.hosted), default=0):
            error.rest_s = self._pace.refused(beside)
        if asked is None or endpoint is None:
            self.statistics.refused[error.reason] += 1
        else:
            after_s, failed = self.clock() - asked.arrival_s, error.kind.is_failure
            endpoint.statistics.query_refused(error.reason, after_s, _allowed_s(asked), failed=failed)
        if asked is not None:
            self._trace_refused(asked, error.reason, error.message)

    def _trace_refused(self, asked: InferRequest, reason: str, message: str) -> None:
        if self._tracer is not None:
            self._tracer.refused(asked, reason, message, self.clock() - asked.arrival_s)

    async def infer(self, request: InferRequest) -> InferAnswer:
        """Decode, run, count. Raises `RequestError`; cancelling the task withdraws the query."""
        endpoint: _Endpoint | None = None
        try:
            model = self.host.find(request.model, request.version or None)
            endpoint = self._endpoint(model)
            return await self._infer(request, model, endpoint)
        except asyncio.CancelledError:
            if endpoint is not None:
                endpoint.statistics.query_refused(CANCELLED, self.clock() - request.arrival_s)
            self._trace_refused(request, CANCELLED, "its client did not wait for the answer")
            raise
        except Exception as fault:
            error = as_request_error(fault)
            self._count_refused(error, request, endpoint)
            if error is fault:
                raise
            raise error from fault

    async def prefetch(self, request: InferRequest) -> bool:
        """Have the rows of a request's keys brought into level 1; one feature of the model's is enough.

        False if there is too much to do already. Raises `RequestError`, counted with those that reached no model: the
        model's own counters are of queries.
        """
        try:
            model = self.host.find(request.model, request.version or None)
            decoded = request.decoded or self._endpoint(model).decoder.decode(request.tensors, complete=False)
            by_table: dict[str, list[KeyArray]] = {}
            for feature in model.spec.features:
                keys = decoded.features.get(feature.name)
                if keys is not None:
                    flat = keys.values if isinstance(keys, JaggedKeys) else keys.reshape(-1)
                    by_table.setdefault(feature.table, []).append(flat)
            if not by_table:
                raise InvalidInput(f"there are no keys to prefetch; give those of a feature of model {model.spec.name}")
            return await model.prefetch({table: np.concatenate(parts) for table, parts in by_table.items()})
        except Exception as fault:
            error = as_request_error(fault)
            self.count_refused(error)
            if error is fault:
                raise
            raise error from fault

    async def _infer(self, request: InferRequest, model: HostedModel, endpoint: _Endpoint) -> InferAnswer:
        start_s = self.clock()
        spec = model.spec
        if request.outputs is not None:
            _check_outputs(request.outputs)
        priority, deadline_s, max_defaulted_fraction = _options(request, model.sla_s)
        decoded = request.decoded or endpoint.decoder.decode(request.tensors)
        decoded_s = self.clock()
        if decoded_s >= deadline_s:
            raise RequestError(
                ErrorKind.TIMED_OUT,
                f"timeout: the request's deadline passed {(decoded_s - deadline_s) * 1e3:.1f} ms ago, before it was "
                "read; allow more time",
                reason="expired",
            )
        query = Query(
            model.new_query_id(),
            decoded.items,
            request.arrival_s,
            deadline_s,
            priority,
            decoded.features,
            decoded.dense,
            max_defaulted_fraction,
            described=decoded.described,
        )
        result = await model.infer(query)
        self._pace.answered()
        if 0 in np.isfinite(result.scores).tobytes():  # a third of the time that `all` takes for so few
            raise _not_finite(result.scores, decoded.dense)
        keys = result.keys
        if keys.defaulted > max_defaulted_fraction * keys.total:
            raise RequestError(
                ErrorKind.UNAVAILABLE,
                f"the rows of {keys.defaulted} of {keys.total} keys were not there in time, more than the "
                f"{MAX_DEFAULTED} of {max_defaulted_fraction:g} that may get a default vector",
                retry_after_s=1.0,
                reason="defaulted",
            )
        endpoint.statistics.query_answered(decoded.items, result, decoded_s - start_s, decoded_s - request.arrival_s)
        if self._tracer is not None:
            self._tracer.answered(request, model.version, decoded.items, result)
        parameters = _told_of_keys(keys) if model.tells_of_keys else {}
        return InferAnswer(spec.name, model.version, request.request_id, result.scores, parameters, endpoint.statistics)


def _not_finite(scores: FloatArray, dense: FloatArray | None) -> RequestError:
    """Names the first item of which a score is NaN or infinite, which JSON cannot say, and what is to blame for it."""
    item, output = divmod(int(np.argmin(np.isfinite(scores))), scores.shape[1])
    score = f"score {scores[item, output]} of item {item} is not finite"
    if dense is not None and dense.shape[1]:
        column = int(np.argmax(np.abs(dense[item])))
        if abs(dense[item, column]) > LARGE_INPUT:
            return InvalidInput(
                f"input 'dense': value {dense[item, column]:g} of item {item}, column {column} is too large for the "
                f"model: {score}",
                reason="not_finite",
            )
    return RequestError(
        ErrorKind.INTERNAL,
        f"{score}: the model's weights or rows are not, or its range is left by what it was asked",
        reason="not_finite",
    )


def _told_of_keys(keys: KeyCounts) -> dict[str, int | float]:
    """The response's parameters of a model whose rows may be late, stale or unknown."""
    total = max(keys.total, 1)
    return {
        "defaulted_fraction": keys.defaulted / total,
        "cut_by_deadline_fraction": keys.cut / total,
        "stale_fraction": keys.stale / total,
        "unknown_fraction": keys.unknown / total,
        "total_keys": keys.total,
    }


def _check_outputs(outputs: Sequence[str]) -> None:
    for name in outputs:
        if name != SCORE:
            raise InvalidInput(f"output {name!r:.100} is unknown; the only output is {SCORE!r}")
    if len(outputs) > 1:
        raise InvalidInput(f"output {SCORE!r} is requested {len(outputs)} times; request it once")


def _options(request: InferRequest, sla_s: float) -> tuple[int, float, float]:
    """Priority, deadline (the transport's or the request's own `timeout`, whichever is nearer; `inf` if neither) and
    the largest share of defaulted keys.

    The transport's deadline alone can only be nearer than `sla_s` after the arrival: clients set one of half a minute
    for safety, and that asks for no queue of half a minute. The sequence parameters are refused where they would
    matter; those of other servers are ignored.
    """
    parameters = request.parameters
    transport_s = request.deadline_s if request.deadline_s - request.arrival_s < sla_s else math.inf
    if not parameters:
        return DEFAULT_PRIORITY, transport_s, 1.0
    priority = _whole_number(parameters, "priority", MOST_PRIORITY) or DEFAULT_PRIORITY
    timeout_us = _whole_number(parameters, "timeout", 2**63 - 1)
    if parameters.get("sequence_id") not in (None, 0, ""):
        raise InvalidInput("parameter 'sequence_id': models here keep no state between requests; leave it out")
    most = parameters.get(MAX_DEFAULTED, 1.0)
    if isinstance(most, bool) or not isinstance(most, int | float) or not 0 <= most <= 1:
        raise InvalidInput(f"parameter {MAX_DEFAULTED!r} is {quoted(most)}; it must be a number in 0..1")
    deadline_s = min(request.deadline_s, request.arrival_s + timeout_us / 1e6) if timeout_us else transport_s
    return priority, deadline_s, float(most)


def _allowed_s(request: InferRequest) -> float:
    """The time that a request gives, seconds; `inf` if it gives none that is one."""
    timeout_us = request.parameters.get("timeout", 0) if request.parameters else 0
    own_s = timeout_us / 1e6 if type(timeout_us) is int and 0 < timeout_us < 2**63 else math.inf
    return min(own_s, request.deadline_s - request.arrival_s)


def _whole_number(parameters: Mapping[str, Any], name: str, most: int) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidInput(f"parameter {name!r} is {quoted(value)}; it must be a whole number in 0..{most}")
    return value
