"""What redis-py raises, as errors of a store that say which server it was and whether it may heal by itself."""

from __future__ import annotations

import ssl

from hebe.embeddings.redis.connection import CLIENT_MESSAGE, NEEDS_REDIS, RedisFull
from hebe.embeddings.store import StoreError, StoreUnavailable

try:
    from redis.exceptions import (
        AskError,
        AuthenticationError,
        AuthorizationError,
        BusyLoadingError,
        ClusterDownError,
        ConnectionError,
        InvalidResponse,
        OutOfMemoryError,
        ReadOnlyError,
        RedisClusterException,
        ResponseError,
        TimeoutError,
        TryAgainError,
    )
except ImportError as fault:
    raise StoreError(NEEDS_REDIS) from fault


class HandshakeTimeout(TimeoutError):
    """A server that was connected to, and then left TLS' first message unanswered."""


_HEALING = (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ReadOnlyError,
    TryAgainError,
)
"""And their kinds, as MovedError."""
_HEALING_CODES = ("BUSY", "NOREPLICAS")
_NO_CLUSTER = ("cluster support disabled", "unknown command")
_NO_CONNECTION = "No connection available"


def store_error(where: object, fault: BaseException, timeout_s: float) -> StoreError:
    """The error for what the server at `where` said, or for what happened to its connection.

    `StoreUnavailable` where it may heal by itself, `RedisFull` where it lacks memory.
    """
    fault = _reason(fault)
    certificate = _certificate_fault(fault)
    if certificate is not None:
        return StoreError(f"Redis {where}: its certificate is not accepted: {certificate}", CLIENT_MESSAGE)
    if isinstance(fault, HandshakeTimeout):
        what = (
            f"has not answered the TLS handshake within {timeout_s:g} s: it is stalled, or speaks no TLS (enable_tls)"
        )
        return StoreUnavailable(f"Redis {where} {what}", CLIENT_MESSAGE)
    if isinstance(fault, TimeoutError):
        return StoreUnavailable(f"Redis {where} has not answered within {timeout_s:g} s", CLIENT_MESSAGE)
    if isinstance(fault, InvalidResponse | ValueError | LookupError | TypeError):
        return StoreError(f"Redis {where}: what it answers is not the Redis protocol: {fault}", CLIENT_MESSAGE)
    code = getattr(fault, "status_code", None)
    said = f"Redis {where}: {f'{code} ' if code else ''}{str(fault)[:200]}"
    if isinstance(fault, _HEALING) or str(fault).startswith(_HEALING_CODES):
        return StoreUnavailable(said, CLIENT_MESSAGE)
    if isinstance(fault, OutOfMemoryError) or "-OOM" in str(fault):
        help_ = "raise its maxmemory, or set a smaller overflow_margin over a persistent_db"
        return RedisFull(f"Redis {where} has no memory left: {help_} (OOM)", CLIENT_MESSAGE)
    if isinstance(fault, ConnectionError | OSError) and not isinstance(fault, AuthenticationError | AuthorizationError):
        return StoreUnavailable(f"Redis {where} cannot be reached: {fault}", CLIENT_MESSAGE)
    return StoreError(said, CLIENT_MESSAGE)


def is_no_cluster(fault: BaseException) -> bool:
    """Whether a server, asked about its slots, said that it is no node of a cluster."""
    reason = _reason(fault)
    return isinstance(reason, ResponseError) and any(text in str(reason) for text in _NO_CLUSTER)


def is_no_connection(fault: BaseException) -> bool:
    """Whether all connections to a server were in use."""
    return isinstance(fault, ConnectionError) and _NO_CONNECTION in str(fault)


def _reason(fault: BaseException) -> BaseException:
    """What is behind it: redis-py wraps what servers say when they are asked about slots."""
    while isinstance(fault, RedisClusterException) and (behind := fault.__cause__ or fault.__context__) is not None:
        fault = behind
    return fault


def _certificate_fault(fault: BaseException | None) -> str | None:
    while fault is not None:
        if isinstance(fault, ssl.SSLCertVerificationError):
            return fault.verify_message
        fault = fault.__context__
    return None
