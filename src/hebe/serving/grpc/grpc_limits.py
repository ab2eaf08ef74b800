"""The limits that calls over gRPC keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What calls may cost. Times in seconds.

    `max_json_bytes` bounds a message without its raw tensors, which takes as long to read as JSON. Connections beyond
    `max_connections` are closed, and those that have not shaken hands within `handshake_timeout_s`. Beyond `max_calls`
    calls and `max_streams` streams under way, or as many streams as messages can be received at once, further ones are
    refused with RESOURCE_EXHAUSTED; health checks and watches have places of their own, watches those with a token and
    those without each. A message must have come `message_timeout_s` after its turn, that to a health check or watch
    sooner (`health_timeout_s`). A stream is ended when nothing came on it for `stream_idle_s`, a watch when it is
    `watch_age_s` old: its client begins another; both when an answer could not be written within `write_timeout_s`.
    """

    max_request_bytes: int = 64 * 1024 * 1024
    max_json_bytes: int = 8 * 1024 * 1024
    max_calls: int = 1024
    max_streams: int = 512
    max_health_calls: int = 64
    max_watches: int = 64
    max_connections: int = 768
    message_timeout_s: float = 30.0
    health_timeout_s: float = 2.0
    handshake_timeout_s: float = 10.0
    write_timeout_s: float = 30.0
    stream_idle_s: float = 3600.0
    watch_age_s: float = 3600.0
