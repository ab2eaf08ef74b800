import pytest
from redis import exceptions

from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.redis.errors import HandshakeTimeout, is_no_cluster, is_no_connection, store_error
from hebe.embeddings.store import StoreUnavailable


def said(kind, code, text):
    """As redis-py's parser makes it."""
    return kind(text, status_code=code)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (said(exceptions.BusyLoadingError, "LOADING", "for now"), "Redis h:1: LOADING for now"),
        (said(exceptions.ClusterDownError, "CLUSTERDOWN", "for now"), "Redis h:1: CLUSTERDOWN for now"),
        (said(exceptions.MasterDownError, "MASTERDOWN", "for now"), "Redis h:1: MASTERDOWN for now"),
        (said(exceptions.ReadOnlyError, "READONLY", "for now"), "Redis h:1: READONLY for now"),
        (said(exceptions.MovedError, "MOVED", "7 h:2"), "Redis h:1: MOVED 7 h:2"),
        (exceptions.ResponseError("BUSY a script runs"), "Redis h:1: BUSY a script runs"),
        (exceptions.TimeoutError("Timeout reading from socket"), "Redis h:1 has not answered within 0.5 s"),
        (
            HandshakeTimeout("Timeout in the TLS handshake"),
            "Redis h:1 has not answered the TLS handshake within 0.5 s: it is stalled, or speaks no TLS (enable_tls)",
        ),
        (exceptions.ConnectionError("Error 111"), "Redis h:1 cannot be reached: Error 111"),
    ],
)
def test_what_may_heal(fault, message):
    error = store_error("h:1", fault, 0.5)
    assert isinstance(error, StoreUnavailable)
    assert str(error) == message
    assert "h:1" not in error.client_message


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (exceptions.ResponseError("ERR unknown command"), "Redis h:1: ERR unknown command"),
        (said(exceptions.NoPermissionError, "NOPERM", "no"), "Redis h:1: NOPERM no"),
        (said(exceptions.AuthenticationError, "WRONGPASS", "no"), "Redis h:1: WRONGPASS no"),
        (said(exceptions.OutOfMemoryError, "OOM", "full"), "Redis h:1 has no memory left: raise its maxmemory"),
        (exceptions.ResponseError("ERR @user_script:3: -OOM full"), "Redis h:1 has no memory left"),
        (exceptions.InvalidResponse("HTTP"), "Redis h:1: what it answers is not the Redis protocol: HTTP"),
    ],
)
def test_what_does_not_heal(fault, message):
    error = store_error("h:1", fault, 0.5)
    assert not isinstance(error, StoreUnavailable)
    assert isinstance(error, RedisFull) is ("no memory left" in message)
    assert str(error).startswith(message)


def ask_for_slots():
    """As redis-py's `NodesManager` wraps what a server says."""
    try:
        try:
            raise exceptions.ResponseError("This instance has cluster support disabled")
        except exceptions.ResponseError:
            raise exceptions.RedisClusterException("Cluster mode is not enabled on this node")  # noqa: B904
    except exceptions.RedisClusterException as inner:
        raise exceptions.RedisClusterException("Redis Cluster cannot be connected") from inner


def test_what_is_behind_the_exceptions_of_a_cluster():
    with pytest.raises(exceptions.RedisClusterException) as raised:
        ask_for_slots()
    assert is_no_cluster(raised.value)
    assert "cluster support disabled" in str(store_error("h:1", raised.value, 0.5))
    assert not is_no_cluster(exceptions.ResponseError("NOPERM no"))


def test_all_connections_in_use():
    assert is_no_connection(exceptions.ConnectionError("No connection available."))
    assert not is_no_connection(exceptions.ConnectionError("Error 111"))
