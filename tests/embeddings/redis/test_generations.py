"""Rows that only Redis has: lost, half filled, filled by two at once, and whole again."""

import logging
import threading
import time

import numpy as np
import pytest

from hebe.embeddings.circuit_breaker import BreakerOptions
from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis import generations as redis_generations
from hebe.embeddings.redis.generations import RedisGenerations
from hebe.embeddings.redis.layout import LayoutRule
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.embeddings.stores.redis_stores import FOUR, fetched, put
from tests.embeddings.stores.store_conformance import TABLES
from tests.servers.redis_servers import wait_until

KEYS = np.arange(200)
TIMEOUT_S = 60.0


class Member:
    """A server, as far as this goes: its store, and how often it has filled one."""

    def __init__(self, open_redis, redis, options=FOUR, before=lambda: None, keys=KEYS):
        self.store = open_redis(redis, options, namespace="content", rule=LayoutRule.REQUIRED)
        self.before, self.keys = before, keys
        self.attempts = 0
        self.filled: list[str] = []
        self.changes = 0
        self.forgotten: list[str] = []
        self.keeps = ""
        """Of a generation with this name something cannot be forgotten yet."""
        self.generations = RedisGenerations(self.store, self.store, "content", self._fill, self._forget)
        self.generations.changed = self._changed

    def _fill(self, store, name, step):
        self.attempts += 1
        for table in TABLES:
            put(store, self.keys, table)
            self.before()
            step()
        self.filled.append(name)

    def _forget(self, name):
        if name == self.keeps:
            raise StoreError("its group has a member")
        self.forgotten.append(name)

    def _changed(self):
        self.changes += 1

    def whole(self):
        try:
            return all(fetched(self.store, self.keys, table).all() for table in TABLES)
        except StoreUnavailable:
            return False


@pytest.fixture
def member(open_redis, redis):
    made = []

    def make(*arguments, **options):
        made.append(Member(open_redis, redis, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.generations.close()


def names_of(redis):
    with redis.client() as client:
        return {name.decode() for name in client.smembers("hebe:{content}:generations")}


def test_the_first_fills_it_and_others_find_it_whole(member):
    first, second = member(), member()
    with pytest.raises(StoreUnavailable, match="lost rows of table users"):
        fetched(first.store, KEYS)
    first.generations.join()
    second.generations.join()
    assert first.whole()
    assert second.whole()
    assert first.filled == [second.generations.current]
    assert not second.filled
    assert not fetched(second.store, [1000]).any(), "an unknown key is one"
    put(second.store, [1000])
    assert fetched(first.store, [1000]).all()


def test_of_a_generation_that_is_over_nothing_is_kept(member, redis, monkeypatch):
    """What cannot be forgotten at once is, later; until then its name stays, for who makes the next one."""
    monkeypatch.setattr(redis_generations, "_CHECK_S", 0.1)
    monkeypatch.setattr(redis_generations, "_LOOK_S", 0.1)
    first = member()
    first.generations.join()
    before = first.keeps = first.generations.current
    with redis.client() as client:
        client.flushall()
        client.sadd("hebe:{content}:generations", before)
    first.generations._look(thoroughly=True)
    now = first.generations.current
    assert now != before
    assert (names_of(redis), first.forgotten) == ({before, now}, [])
    first.generations.start()
    wait_until(lambda: first.generations._left == [before], TIMEOUT_S)
    first.keeps = ""
    wait_until(lambda: names_of(redis) == {now}, TIMEOUT_S)
    assert first.forgotten == [before]
    assert first.whole()


def test_of_a_generation_that_could_not_be_filled_nothing_is_kept(member, redis):
    failing = member(before=lambda: (_ for _ in ()).throw(StoreError("a table cannot be read")))
    with pytest.raises(StoreError, match="cannot be read"):
        failing.generations.join()
    assert len(failing.forgotten) == 1
    assert names_of(redis) == set()


def test_who_comes_while_it_is_filled_waits(member):
    halfway, on = threading.Event(), threading.Event()

    def before():
        halfway.set()
        assert on.wait(TIMEOUT_S)

    first, second = member(before=before), member()
    threads = [threading.Thread(target=each.generations.join) for each in (first, second)]
    threads[0].start()
    assert halfway.wait(TIMEOUT_S)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    assert not second.whole()
    on.set()
    for thread in threads:
        thread.join()
    assert first.whole()
    assert second.whole()
    assert not second.filled


def test_who_fills_it_or_waits_for_that_may_give_it_up(member, redis):
    def stopped():
        raise RuntimeError("the server stopped")

    first, second = member(), member()
    with pytest.raises(RuntimeError, match="stopped"):
        first.generations.join(stopped)
    with redis.client() as client:
        assert client.keys("*") == []
        client.set("hebe:{content}:filling", "other")
        with pytest.raises(RuntimeError, match="stopped"):
            second.generations.join(stopped)
        client.delete("hebe:{content}:filling")
    second.generations.join()
    assert second.whole()


@pytest.mark.parametrize("lost", ["everything", "one partition"])
def test_what_redis_has_lost_is_filled_anew_by_one_and_followed_by_all(member, redis, lost):
    members = [member(), member()]
    for each in members:
        each.generations.join()
        each.generations.start()
    before = members[0].generations.current
    with redis.client() as client:
        if lost == "everything":
            client.flushall()
        else:
            [key] = [key for key in client.keys("*:layout") if b"/users/2." in key]
            client.delete(key, key.replace(b":layout", b":rows"))
    assert not members[0].whole()
    with pytest.raises(StoreUnavailable):
        put(members[0].store, KEYS), "an update would seem to be there, and be alone"
    wait_until(lambda: all(each.whole() for each in members), TIMEOUT_S)
    wait_until(lambda: all(each.changes == 2 for each in members), TIMEOUT_S)
    after = members[0].generations.current
    assert after == members[1].generations.current != before
    assert sum(len(each.filled) for each in members) == 2, "once at first, once again"
    wait_until(lambda: names_of(redis) == {after}, TIMEOUT_S)
    with redis.client() as client:
        assert not client.keys(f"*{before}*"), "what was left of the one before is gone"


def test_who_dies_halfway_leaves_nothing_that_is_answered_from(member, redis):
    """Its claim expires, its rows go."""
    first = member()
    with redis.client() as client:
        client.set("hebe:{content}:filling", "dead", px=1500)
        client.sadd("hebe:{content}:generations", "dead")
    half = first.store.beside("content.dead", LayoutRule.AWAITED)
    put(half, KEYS[:10])
    half.close()
    first.generations.join()
    assert first.whole()
    assert names_of(redis) == {first.generations.current}
    with redis.client() as client:
        assert not client.keys("*dead*")


def test_who_took_too_long_gives_way(member, redis):
    def another_begins():
        with redis.client() as client:
            client.set("hebe:{content}:filling", "other", px=1000)
            first.before = lambda: None
        first.generations._renewed_s = -np.inf  # as if it had last told long ago

    first = member(before=another_begins)
    first.generations.join()
    assert first.whole()
    assert len(first.filled) == 1, "at the second attempt, when the other one has died"
    assert names_of(redis) == {first.generations.current}


@pytest.mark.parametrize("silent_s", [redis_generations._RENEW_S + 1, redis_generations._EXPIRES_MS / 2000 + 1])
def test_a_claim_that_is_not_renewed_at_once_is_renewed_later_while_it_cannot_have_expired(
    member, monkeypatch, silent_s
):
    def silent(script, *arguments):
        if script is redis_generations._RENEW and first.attempts == 1 and not first.filled and silences:
            silences.pop()
            raise StoreUnavailable("not answered in time")
        return run_script(script, *arguments)

    def renewed_long_ago():
        first.generations._renewed_s = time.monotonic() - silent_s

    first, silences = member(before=renewed_long_ago), [0]
    run_script = first.generations._run_script
    monkeypatch.setattr(first.generations, "_run_script", silent)
    if silent_s < redis_generations._EXPIRES_MS / 2000:
        first.generations.join()
        assert first.whole()
    else:
        with pytest.raises(StoreUnavailable, match="not answered in time"):
            first.generations.join()
    assert not silences


def test_a_fill_that_fails_is_told_and_leaves_nothing(member, redis):
    def fail():
        raise StoreError("the rows cannot be read")

    first, second = member(before=fail), member()
    with pytest.raises(StoreError, match="cannot be read"):
        first.generations.join()
    with redis.client() as client:
        assert client.keys("*") == []
    second.generations.join()
    assert second.whole()


def test_rows_of_another_layout_are_an_error_and_stay(member):
    first, other = member(), member(VolatileOptions(8))
    first.generations.join()
    with pytest.raises(StoreError, match="num_partitions=4"):
        other.generations.join()
    assert first.whole()
    assert not other.filled


def test_a_follower_that_fails_is_told_again(member):
    first = member()

    def once():
        first.generations.changed = first._changed
        raise RuntimeError("not yet")

    first.generations.changed = once
    with pytest.raises(RuntimeError):
        first.generations.join()
    first.generations.join()
    assert first.changes == 1
    assert first.whole()


def test_rows_of_an_old_snapshot_are_filled_anew_and_answer_meanwhile(member, redis):
    first = member()
    first.generations.join()
    with redis.client() as client:
        client.save()
    put(first.store, KEYS, add=1.0)
    redis.kill()
    redis.start()
    before = first.generations.current
    answered: list[bool] = []
    first.before = lambda: answered.append(first.whole())
    first.generations.join()
    assert first.generations.current != before
    assert answered == [True, True], "once each table"
    assert first.whole()
    assert len(first.filled) == 2


def stray(redis, generation, partitions="*"):
    """As if another process had come to have partitions of a generation, with all of its rows."""
    with redis.client() as client:
        for key in client.keys(f"*{generation}{partitions}:run"):
            client.set(key, "another")


def test_rows_that_a_server_doubts_are_filled_anew_by_any_and_answer_meanwhile(member):
    first, second = member(), member()
    for each in (first, second):
        each.generations.join()
    before = first.generations.current

    def fail():
        raise StoreError("the rows cannot be read")

    first.before, answered = fail, list[bool]()
    second.before = lambda: answered.append(second.whole())
    first.generations.doubt()
    with pytest.raises(StoreError, match="cannot be read"):
        first.generations._look(thoroughly=False)
    second.generations._look(thoroughly=True)
    assert answered == [True, True], "once each table"
    after = second.generations.current
    assert after != before
    first.generations.doubt()  # of what it knows as the current one
    first.generations._look(thoroughly=False)
    second.generations._look(thoroughly=True)
    assert first.generations.current == second.generations.current == after
    assert first.whole()


def generation_keys(redis, generation):
    with redis.client() as client:
        return client.keys(f"*{generation}*")


def test_a_generation_that_another_server_makes_is_not_cleaned_up(member, redis):
    """The first has published its own, whose rows another process has come to have meanwhile, and is held up."""
    first, second = member(), member()
    published, halfway, cleaned = (threading.Event() for _ in range(3))

    def held_up():
        published.set()
        assert halfway.wait(TIMEOUT_S)

    def wait_for_the_first():
        second.before = lambda: None
        halfway.set()
        assert cleaned.wait(TIMEOUT_S)

    first.generations.changed, second.before = held_up, wait_for_the_first
    joins = [threading.Thread(target=each.generations.join) for each in (first, second)]
    joins[0].start()
    assert published.wait(TIMEOUT_S)
    stray(redis, first.generations.current)
    joins[1].start()
    joins[0].join()
    cleaned.set()
    joins[1].join()
    assert second.filled == [second.generations.current]
    assert second.whole()
    assert names_of(redis) == set(second.filled)
    assert not generation_keys(redis, first.filled[0])


def evict(redis, partition):
    """Remove the rows of a partition and nothing else, as a Redis does by itself with `allkeys-*`."""
    with redis.client() as client:
        [key] = client.keys(f"*/{partition}.*}}:rows")
        client.delete(key)
    return key


def test_rows_that_redis_evicts_by_itself_are_lost_and_never_unknown(member, redis):
    first = member()
    first.generations.join()
    before = first.generations.current
    key = evict(redis, "users/2")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="lost rows of table users"):
            fetched(first.store, KEYS)
        with pytest.raises(StoreUnavailable, match="lost rows of table users"):
            put(first.store, KEYS)
        assert fetched(first.store, KEYS, "items").all()
        with redis.client() as client:  # an update that was on its way has made the hash anew
            client.hset(key, KEYS[:1].tobytes(), np.zeros(3, np.float32).tobytes())
    assert first.store.loss.is_set()
    first.generations._look(thoroughly=True)
    assert first.generations.current != before
    assert first.whole()


def put_anew_after(member, lose, words):
    """`lose` happens while the first puts rows there, which never answers from them. Returns the second, which does."""

    def once():
        first.before = lambda: None
        lose()

    first, second = member(before=once), member()
    with pytest.raises(StoreUnavailable, match=words):
        first.generations.join()
    assert first.generations.current is None
    second.generations.join()
    assert second.whole()
    return second


def test_rows_that_redis_evicts_while_they_are_put_in_are_never_answered_from(member, redis):
    put_anew_after(member, lambda: evict(redis, "users/2"), "has lost rows while they were put there")


@pytest.mark.parametrize("lost", ["everything", "one partition", "what another process has not got"])
def test_rows_that_are_lost_while_they_are_put_in_are_never_answered_from(member, redis, lost):
    def lose():
        if "process" in lost:
            [name] = names_of(redis)
            stray(redis, name, "/users/2.*")
            return
        with redis.client() as client:
            keys = client.keys("*users/2.*")
            assert len(keys) == 2, "rows and the run"
            client.delete(*(keys if lost == "one partition" else client.keys("*}:r*")))

    second = put_anew_after(member, lose, "may have lost rows while they were put there")
    assert names_of(redis) == set(second.filled)


def test_a_generation_that_answers_stays_where_the_next_one_cannot_be_read(member, redis):
    """As when the log of updates may not be read by this server."""

    def fail():
        raise StoreError("the log cannot be read")

    first, second = member(), member(before=fail)
    first.generations.join()
    stray(redis, first.generations.current)
    with pytest.raises(StoreError, match="the log cannot be read"):
        second.generations.join()
    assert second.whole()
    assert first.whole()
    assert names_of(redis) == {first.generations.current}
    assert not generation_keys(redis, "filling")
    first.generations.join()
    assert len(first.filled) == 2
    assert first.whole()


def test_what_a_lost_generation_has_still_answers_where_the_next_one_cannot_be_read(member, redis):
    def fail():
        raise StoreError("the log cannot be read")

    first = member()
    first.generations.join()
    with redis.client() as client:
        client.delete(*client.keys("*users/2.*"))
    first.before = fail
    with pytest.raises(StoreError, match="the log cannot be read"):
        first.generations.join()
    assert fetched(first.store, KEYS, "items").all()


def test_a_generation_gives_way_to_the_next_one_where_there_is_no_memory_for_both(member, redis, pauses):
    pauses(1000.0, 1000.0)
    first = member(keys=MANY)
    first.generations.join()
    before = first.generations.current
    stray(redis, before)
    with redis.client() as client:
        bound = client.info("memory")["used_memory"] + (2 << 20)
        client.config_set("maxmemory", bound)
        with pytest.raises(StoreError, match="no memory left"):
            first.generations.join()
        assert not generation_keys(redis, before)
        wait_until(lambda: client.info("memory")["used_memory"] < bound - (4 << 20), TIMEOUT_S)  # freed in background
        client.config_set("maxmemory", bound + 1)  # so that it is tried at once
    first.generations.join()
    assert first.whole()


@pytest.fixture
def pauses(monkeypatch):
    """Sets the pauses between attempts, of members made from then on; they look a hundred times a second."""
    monkeypatch.setattr("hebe.embeddings.redis.generations._LOOK_S", 0.01)

    def shortest_and_longest(pause_s, longest_pause_s):
        options = BreakerOptions(1, pause_s, longest_pause_s)
        monkeypatch.setattr("hebe.embeddings.redis.generations._PAUSES", options)

    return shortest_and_longest


def looked(member, times):
    """Wait until it has looked so often."""
    looks = [0]
    runs = member.store.runs

    def counted():
        looks[0] += 1
        return runs()

    member.store.runs = counted
    wait_until(lambda: looks[0] >= times, TIMEOUT_S)
    member.store.runs = runs


MANY = np.arange(40_000)
"""More of them than a Redis after `lose_all` has memory for."""


def lose_all(client):
    """Remove all rows, and leave 2 MB."""
    client.flushall()
    client.config_set("maxmemory", client.info("memory")["used_memory"] + (2 << 20))


def test_a_redis_without_memory_is_not_filled_again_and_again(member, redis, pauses, caplog):
    """Its reason is told once, and to those who ask; it is filled as soon as it has more."""
    pauses(1000.0, 1000.0)
    first = member(keys=MANY)
    first.generations.join()
    with redis.client() as client, caplog.at_level(logging.WARNING, "hebe.tiers"):
        lose_all(client)
        first.generations.start()
        wait_until(lambda: first.attempts == 2, TIMEOUT_S)
        looked(first, 50)
        assert first.attempts == 2
        with pytest.raises(StoreUnavailable, match=r"lost rows of table users, and they cannot.*no memory left.*OOM"):
            fetched(first.store, KEYS)
        assert [each.message for each in caplog.records if "cannot be filled" in each.message] == [
            f"Redis cannot be filled: Redis {redis.address} has no memory left: raise its maxmemory, or set a smaller "
            "overflow_margin over a persistent_db (OOM)"
        ]
        client.config_set("maxmemory", 0)
    wait_until(first.whole, TIMEOUT_S)
    assert first.attempts == 3
    assert first.store.refill_fault is None


def test_a_redis_that_was_restarted_is_filled_at_once(member, redis, pauses):
    pauses(1000.0, 1000.0)
    first = member(keys=MANY)
    first.generations.join()
    with redis.client() as client:
        lose_all(client)
        first.generations.start()
        wait_until(lambda: first.attempts == 2, TIMEOUT_S)
    redis.restart()  # without a bound
    wait_until(first.whole, TIMEOUT_S)
    assert first.attempts == 3


def test_what_heals_unseen_is_tried_again_after_longer_and_longer_pauses(member, redis, pauses, monkeypatch):
    """Up to a bound."""
    pauses(0.02, 0.08)
    first = member()
    first.generations.join()
    begun_s, ended_s = [], []

    def fail():
        begun_s.append(time.monotonic())
        raise StoreError("the rows cannot be read")

    note = first.generations._note_failure

    def noted(fault):
        note(fault)
        ended_s.append(time.monotonic())

    monkeypatch.setattr(first.generations, "_note_failure", noted)
    first.before = fail
    with redis.client() as client:
        client.flushall()
    first.generations.start()
    wait_until(lambda: first.attempts >= 6, TIMEOUT_S)
    first.before = lambda: None
    wait_until(first.whole, TIMEOUT_S)
    waited_s = [begun - ended for ended, begun in zip(ended_s, begun_s[1:], strict=False)]
    assert all(waited > pause for waited, pause in zip(waited_s, (0.019, 0.039, 0.079, 0.079), strict=False)), waited_s


def test_a_follower_of_another_server_forgets_what_it_could_not_do(member, redis, pauses):
    pauses(1000.0, 1000.0)
    first, second = member(), member()
    for each in (first, second):
        each.generations.join()

    def fail():
        raise StoreError("the rows cannot be read")

    first.before = fail
    with redis.client() as client:
        client.flushall()
    first.generations.start()
    wait_until(lambda: first.attempts == 2, TIMEOUT_S)
    second.generations.start()
    wait_until(lambda: first.whole() and first.store.refill_fault is None, TIMEOUT_S)
    assert first.attempts == 2
