"""OpenTelemetry spans, one for each inference request, where the extra `otel` is installed and asked for.

A span is written when its request is answered, refused or given up by its client: from arrival to then, a child of the
client's span if the request carries a W3C `traceparent`; that of an answer has two children of its own, `queue` and
`compute`. There is none of who has no token, who might fill the queue of spans, nor of what is not known to be an
inference request: an HTTP head that is none, a gRPC call whose message does not come. Where spans go is set by
OpenTelemetry's own environment (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, ...).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hebe._version import __version__
from hebe.serving.requests.errors import ServeError
from hebe.serving.requests.infer_request import InferRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from hebe.query import QueryResult

_INSTALL = "tracing needs OpenTelemetry: pip install 'hebe-serve[otel]', or start without --otel"

_MOST_CHARACTERS = 200
"""Of a name or id that a client wrote: thousands of spans may wait to be sent."""


class Tracer:
    """Writes spans; made by `start_tracing`."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("hebe", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def answered(self, request: InferRequest, version: int, items: int, result: QueryResult) -> None:
        """The span of an answered request, which ends now."""
        from opentelemetry.trace import set_span_in_context

        end_ns = time.time_ns()
        arrival_ns = end_ns - round(result.latency_s * 1e9)
        span = self._start(request, arrival_ns)
        span.set_attributes(
            {
                "hebe.model.version": version,
                "hebe.items": items,
                "hebe.sparse_s": result.sparse_s,
                "hebe.dense_s": result.dense_s,
                "hebe.defaulted_keys": result.keys.defaulted,
            }
        )
        started_ns = min(end_ns, arrival_ns + round(result.queue_s * 1e9))
        inside = set_span_in_context(span)
        for name, start_ns, stop_ns in (("queue", arrival_ns, started_ns), ("compute", started_ns, end_ns)):
            self._tracer.start_span(name, inside, start_time=start_ns).end(stop_ns)
        span.end(end_ns)

    def refused(self, request: InferRequest, reason: str, message: str, after_s: float) -> None:
        """The span of a request that was answered with an error, or whose client has gone, `after_s` after its
        arrival; `reason` as in the metrics.
        """
        from opentelemetry.trace import Status, StatusCode

        end_ns = time.time_ns()
        span = self._start(request, end_ns - round(after_s * 1e9))
        span.set_attribute("hebe.reason", reason)
        span.set_status(Status(StatusCode.ERROR, message))
        span.end(end_ns)

    def _start(self, request: InferRequest, arrival_ns: int) -> Any:
        from opentelemetry.trace import SpanKind

        parent = None
        if request.trace_parent is not None:
            parent = self._propagator.extract({"traceparent": request.trace_parent})
        told = {"hebe.model": request.model, "hebe.request_id": request.request_id}
        attributes = {name: value[:_MOST_CHARACTERS] for name, value in told.items() if value}
        return self._tracer.start_span(
            "infer", parent, kind=SpanKind.SERVER, start_time=arrival_ns, attributes=attributes
        )

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def start_tracing(exporter: SpanExporter | None = None) -> Tracer:
    """A tracer that sends spans to `exporter`, by default over OTLP/HTTP.

    Raises `ServeError` naming the extra if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
    except ImportError:
        raise ServeError(_INSTALL) from None
    ours = Resource.create({"service.name": "hebe", "service.version": __version__})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()))  # the environment may name them
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracer(provider)
