"""Which Redis it is that has rows over a level 3.

A name that others may change: who follows it is told, or has not followed.
"""

import numpy as np
import pytest

from hebe.embeddings.redis.identity import FollowedName, RedisIdentity
from hebe.embeddings.store import StoreError
from tests.embeddings.stores.redis_stores import fetched, put

KEYS = np.arange(100)


def names_of(identity, redis) -> tuple[str | None, bytes | None]:
    """As the server has it, and as Redis has it."""
    with redis.client() as client:
        return identity.current, client.get(identity._key)


def test_the_first_server_names_it_for_all(open_redis, redis) -> None:
    one, other, elsewhere = (RedisIdentity(open_redis(redis, namespace="ads.1"), name) for name in ("a", "a", "b"))
    for identity in (one, other, elsewhere, one):
        identity.look()
    assert one.current == other.current != elsewhere.current
    assert names_of(one, redis) == (one.current, one.current.encode())
    with redis.client() as client:
        assert client.get("hebe:{a}:identity") == one.current.encode(), "as told to operators"


def test_rows_without_it_go_once(open_redis, redis) -> None:
    """They may lack updates that were given to servers of another Redis."""
    store = open_redis(redis)
    put(store, KEYS)
    first, second = RedisIdentity(store, "content"), RedisIdentity(store, "content")
    first.look()
    assert not fetched(store, KEYS).any()
    put(store, KEYS)
    for identity in (second, first):
        identity.look()
    assert fetched(store, KEYS).all()


def test_who_knows_it_puts_it_back_and_follows_another_one(open_redis, redis) -> None:
    store, told = open_redis(redis), []
    identity = RedisIdentity(store, "content")
    identity.changed = lambda: told.append(identity.current)
    identity.look()
    name = identity.current
    redis.restart()
    put(store, KEYS)
    identity.look()
    assert names_of(identity, redis) == (name, name.encode())
    assert fetched(store, KEYS).all(), "others may have filled it since"
    with redis.client() as client:
        client.set(identity._key, "other")
    identity.look()
    assert told == [name, "other"]


def test_what_fails_when_it_has_changed_is_tried_again(open_redis, redis) -> None:
    identity, told = RedisIdentity(open_redis(redis), "content"), []

    def fails() -> None:
        told.append(identity.current)
        if len(told) == 1:
            raise StoreError("the log is away")

    identity.changed = fails
    with pytest.raises(StoreError):
        identity.look()
    identity.look()
    assert len(set(told)) == 1
    assert told[0] == identity.current


def test_while_redis_is_away_it_is_not_known(open_redis, redis) -> None:
    identity = RedisIdentity(open_redis(redis), "content")
    redis.kill()
    with pytest.raises(StoreError):
        identity.look()
    assert identity.current is None


def test_who_follows_is_told_of_another_name():
    name, told = FollowedName(), []
    name.follow("a")
    assert name.current == "a", "nobody need listen"
    name.changed = lambda: told.append(name.current)
    name.follow("b")
    assert (name.current, told) == ("b", ["b"])


def test_a_name_that_could_not_be_followed_counts_as_not_told():
    name = FollowedName()
    name.follow("a")

    def fail():
        raise OSError("the log is gone")

    name.changed = fail
    with pytest.raises(OSError, match="gone"):
        name.follow("b")
    assert name.current is None
    name.changed = None
    name.follow("b")
    assert name.current == "b"
