"""The scheduler's refusals in words, for the client and for who reads the log."""

from __future__ import annotations

from hebe.scheduling.events import RejectQuery, RejectReason
from hebe.scheduling.node.node import NodeConfig
from hebe.serving.requests.errors import QueryRefused

_MESSAGES = {
    RejectReason.QUEUE_FULL: "refused: the queue is full, max_queue is {max_queue}",
    RejectReason.NO_WORKER: "refused: no worker is up",
    RejectReason.SHUTTING_DOWN: "refused: the model is being unloaded, or the server stops",
}
_TOO_LONG = "refused: expected to take {expected_ms:,.1f} ms or more, with {left_ms:,.1f} ms left of its {bound}"
_LIKELY_TOO_LONG = (
    "refused: predicted to take {expected_ms:,.1f} ms, but up to {likely_ms:,.1f} ms if it is as far behind prediction "
    "as queries have been of late, with {left_ms:,.1f} ms left of its {bound}"
)
_TIMED_OUT = "its {bound} passed before it could be answered"
_TOO_LATE = "refused: after waiting it could not be answered within its {bound} any more"


def refusal(rejected: RejectQuery, now: float, config: NodeConfig, *, has_timeout: bool) -> QueryRefused:
    """How a query is told that a scheduler with this `config` rejected it at `now`. `has_timeout`: its bound is what
    the request itself allows, rather than the model's.
    """
    query, reason = rejected.query, rejected.reason
    allowed_s = query.deadline_s - query.arrival_s if has_timeout else config.sla_s
    left_s = max(query.arrival_s + allowed_s - now, 0.0)
    timed_out = reason is RejectReason.EXPIRED and has_timeout
    if reason is RejectReason.DEADLINE:
        message = _LIKELY_TOO_LONG if rejected.retry_after_s <= left_s else _TOO_LONG
    elif reason is RejectReason.EXPIRED:
        message = _TIMED_OUT if timed_out else _TOO_LATE
    else:
        message = _MESSAGES[reason]
    said = message.format(
        expected_ms=rejected.retry_after_s * 1e3,
        likely_ms=rejected.likely_within_s * 1e3,
        left_ms=left_s * 1e3,
        bound=f"{'timeout' if has_timeout else 'latency bound'} of {allowed_s * 1e3:,.1f} ms",
        max_queue=config.max_queue,
    )
    return QueryRefused(reason, said, rejected.retry_after_s, timed_out=timed_out)
