"""One model's rows in a Redis, looked after by servers that share it."""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import UNKNOWN_POSITION, StoreError, StoreUnavailable
from hebe.embeddings.tiers import redis_keeper
from hebe.embeddings.tiers.redis_keeper import RedisKeeper
from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions
from hebe.spec import EmbeddingTableSpec
from tests.servers.redis_servers import wait_until

TABLES = (EmbeddingTableSpec("users", 200, 4), EmbeddingTableSpec("items", 50, 1))
SOURCES = {
    table.name: np.repeat(np.arange(table.rows, dtype=np.float32)[:, None], table.dim, axis=1) for table in TABLES
}
PATIENCE_S = 60.0
ONE = LogDirectoryOptions(partitions=1, segment_bytes=1 << 10)


class Server:
    """What one has of a Redis: its keeper, and the store that answers its queries."""

    def __init__(self, redis, log: Path | None, level_3: Path | None, tables=TABLES, sources=SOURCES) -> None:
        following = {"type": "log_directory", "address": str(log), "poll_timeout_ms": 10, "interval_s": 0}
        config = HierarchyConfig.from_mapping(
            {
                "volatile_db": {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 30_000},
                "update_source": {} if log is None else following,
            }
        )
        rows, volatile = ModelRows("model", 1, tables, sources, "identity"), config.volatile_db
        self.store = RedisStore(
            rows.dims,
            redis.address,
            volatile.options(),
            namespace=rows.content,
            access=volatile.redis_access(),
            alone=level_3 is None,
        )
        self._written = self.store.sibling()
        self.keeper = RedisKeeper(self._written, self.store, rows, config, level_3)

    def ask(self, *keys: int) -> list[float | None]:
        """The first number of each user's row; None where there is none."""
        return [None if row is None else row[0] for row in self._rows(keys)]

    def positions(self, *keys: int) -> list[int | None]:
        """Up to where each user's row has all updates."""
        return [None if row is None else row[1] for row in self._rows(keys)]

    def _rows(self, keys) -> list[tuple[float, int] | None]:
        count = len(keys)
        rows, found, (at, own) = np.empty(4 * count, np.float32), np.zeros(count, np.bool_), np.empty((2, count), int)
        starts, bases = np.array([0, count]), np.array([0, 4 * count])
        self.store.fill_tables(
            ("users",), np.array(keys), starts, rows, bases, np.ones(count, np.bool_), found, at, own
        )
        each = zip(rows[::4].tolist(), at.tolist(), found, strict=True)
        return [(row, position) if there else None for row, position, there in each]

    def has(self, expected: dict[int, float | None]) -> bool:
        """Whether users have these rows by now; not while there are none."""
        with contextlib.suppress(StoreUnavailable):
            return self.ask(*expected) == [*expected.values()]
        return False

    @property
    def reached(self) -> int | None:
        """Up to where all users have the updates of the log."""
        return self.keeper.positions().get(TopicPartition("model", "users", 0))

    @property
    def writes(self) -> bool:
        """Whether it is the one that writes."""
        return self.keeper.ingestion is not None

    def close(self) -> None:
        self.keeper.close()
        self.store.close()
        self._written.close()


@pytest.fixture
def log_path(tmp_path):
    (tmp_path / "disk of the log").mkdir()
    point(tmp_path / "disk", tmp_path / "disk of the log")
    LogDirectory(tmp_path / "disk" / "log", ONE).close()
    return tmp_path / "disk" / "log"


def point(link: Path, target: Path) -> None:
    """Have `link` lead to `target`, in one step: servers that look meanwhile find one or the other."""
    made = link.with_name("made")
    made.symlink_to(target)
    made.replace(link)


@contextlib.contextmanager
def away(log_path: Path) -> Iterator[None]:
    """Within, the disk that the log is on is not there."""
    disk = log_path.parent
    there = disk.resolve()
    point(disk, disk)
    yield
    point(disk, there)


@pytest.fixture
def serve(redis, log_path, tmp_path, monkeypatch):
    """Starts servers, with a log but where told otherwise; alone with the Redis, or over a level 3."""
    monkeypatch.setattr(redis_keeper, "_LOOK_S", 0.05)
    servers: list[Server] = []

    def start(*, over_level_3: bool = False, updates: bool = True, **rows) -> Server:
        place = tmp_path / "model" / "1" if over_level_3 else None
        servers.append(Server(redis, log_path if updates else None, place, **rows))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def send(log_path):
    """Appends a message of users to the log, made where there is none: a row, or None to delete."""

    def append(keys: list[int], row: float | None) -> None:
        with contextlib.closing(LogDirectory(log_path, ONE)) as log, log.producer() as producer:
            if row is None:
                producer.delete("model", "users", np.array(keys))
            else:
                producer.send("model", "users", np.array(keys), np.full((len(keys), 4), row, np.float32))

    return append


@pytest.fixture
def client(redis):
    with contextlib.closing(redis.client()) as client:
        yield client


@pytest.fixture
def pass_s(monkeypatch):
    """Lets seconds pass for keepers."""
    ahead_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0], sleep=time.sleep)
    monkeypatch.setattr(redis_keeper, "time", clock)

    def passed(seconds: float) -> None:
        ahead_s[0] += seconds

    return passed


def test_a_redis_alone_is_filled_with_the_models_rows_and_then_what_the_log_has(serve, send) -> None:
    send([5, 1000], 55)
    send([6], None)
    server = serve()
    with pytest.raises(StoreUnavailable):
        server.ask(5)
    assert not server.keeper.drain(0.0)
    server.keeper.join()
    assert server.ask(4, 5, 6, 1000, 2000) == [4, 55, None, 55, None]
    assert (server.store.size("users"), server.store.size("items")) == (200, 50)
    assert server.reached == 1
    assert server.positions(4, 5) == [1, 1]
    server.keeper.start()
    send([4], 44)
    assert server.keeper.drain(PATIENCE_S)
    assert server.reached == 2
    assert server.ask(4, 5, 6) == [44, 55, None]
    assert server.keeper.lost_log is None


def test_without_updates_a_redis_is_filled_once(serve) -> None:
    first, second = serve(updates=False), serve(updates=False)
    first.keeper.join()
    second.keeper.join()
    assert second.ask(0, 199, 200) == [0, 199, None]
    assert not second.writes
    assert second.keeper.positions() == {}


def test_a_table_whose_rows_are_nowhere_is_an_error(serve) -> None:
    with pytest.raises(StoreError, match="items"):
        serve(sources={"users": SOURCES["users"]}).keeper.join()


def test_who_waits_for_rows_may_be_ended(serve, client) -> None:
    def end() -> None:
        raise KeyboardInterrupt

    first, second = serve(), serve()
    assert first.keeper.look()
    client.delete(*client.keys("hebe2:*:rows"))
    with pytest.raises(KeyboardInterrupt):
        second.keeper.join(end)


def test_two_keepers_at_once_do_no_harm_and_one_writes(serve, send) -> None:
    send([5], 55)
    servers = [serve(), serve()]
    joining = [threading.Thread(target=server.keeper.join) for server in servers]
    for each in joining:
        each.start()
    for each in joining:
        each.join()
    for server in servers:
        assert server.ask(4, 5, 199) == [4, 55, 199]
        server.keeper.start()
    writer, other = sorted(servers, key=lambda server: not server.writes)
    assert (writer.writes, other.writes) == (True, False)
    send([4], 44)
    assert other.keeper.drain(PATIENCE_S)
    assert other.ask(4, 5) == [44, 55]
    assert not other.writes
    writer.close()
    send([4], 45)
    wait_until(lambda: other.writes, PATIENCE_S)
    assert other.keeper.drain(PATIENCE_S)
    assert other.ask(4, 5) == [45, 55]


def lease_ends(client) -> None:
    """Who has it has not prolonged it."""
    [name] = client.keys("hebe2:*:writer")
    assert 0 < client.pttl(name) <= 5000
    client.delete(name)


def test_another_server_goes_on_where_the_one_that_wrote_was_killed(serve, send, client) -> None:
    killed, other = serve(), serve()
    killed.keeper.join()  # and is never heard of again
    other.keeper.join()
    assert not other.writes, "it may be alive"
    killed.keeper.ingestion.close()
    send([5], 55)
    lease_ends(client)
    other.keeper.start()
    assert other.keeper.drain(PATIENCE_S)
    assert other.writes
    assert other.ask(5) == [55]


def test_the_lease_is_prolonged_while_rows_are_put_in(serve, client) -> None:
    left_ms: list[int] = []

    def look() -> None:
        [name] = client.keys("hebe2:*:writer")
        left_ms.append(client.pttl(name))
        client.pexpire(name, 1000)

    serve().keeper.join(look)
    assert min(left_ms) > 1000


def test_a_server_that_stood_still_writes_nothing_old(serve, send, client) -> None:
    slow, other = serve(), serve()
    slow.keeper.join()
    lease_ends(client)
    other.keeper.start()
    wait_until(lambda: other.writes, PATIENCE_S)
    assert slow.writes, "it does not know yet"
    for row in range(20):
        send([5], row)
        send([6], None if row % 2 else row)
    assert other.keeper.drain(PATIENCE_S)
    assert slow.keeper.look()
    assert not slow.writes
    assert slow.ask(5, 6, 7) == [19, None, 7]


@pytest.mark.parametrize("loss", ["all", "a partition", "part of the rows"])
def test_a_redis_that_lost_rows_is_filled_again(serve, send, client, loss) -> None:
    server = serve()
    server.keeper.join()
    server.keeper.start()
    send([*range(0, 200, 2)], 55)
    send([*range(0, 200, 4)], None)
    assert server.keeper.drain(PATIENCE_S)
    if loss == "all":
        client.flushall()
    elif loss == "a partition":
        client.delete(*[name for name in client.keys("hebe2:*:rows") if b"users%2F0." in name or b"users/0." in name])
    else:
        send([7], 77)  # while it is being filled
        client.flushall()
    send([5], 5.5)
    expected = {key: None if key % 4 == 0 else 55 if key % 2 == 0 else key for key in range(200)}
    expected |= {5: 5.5} if loss != "part of the rows" else {5: 5.5, 7: 77}
    wait_until(lambda: server.has(expected), PATIENCE_S)
    assert server.keeper.drain(PATIENCE_S)
    assert server.has(expected)


def test_a_redis_that_went_back_is_brought_up_again(serve, send, client) -> None:
    """As with a replica that takes over."""
    server = serve()
    server.keeper.join()
    server.keeper.start()
    send([5], 55)
    assert server.keeper.drain(PATIENCE_S)
    old = {name: client.dump(name) for name in client.keys("hebe2:*:rows")}
    send([5, 6], 56)
    send([7], None)
    assert server.keeper.drain(PATIENCE_S)
    assert server.ask(5, 6, 7) == [56, 56, None]
    for name, value in old.items():
        client.restore(name, 0, value, replace=True)
    wait_until(lambda: server.has({5: 56, 6: 56, 7: None, 8: 8}), PATIENCE_S)
    assert server.keeper.drain(PATIENCE_S)
    assert server.positions(8) == [2]


def test_a_redis_without_memory_for_the_rows_is_reported_and_tried_again_after_pauses(serve, client, pass_s) -> None:
    tables = (EmbeddingTableSpec("users", 40_000, 4),)
    server = serve(tables=tables, sources={"users": np.ones((40_000, 4), np.float32)})
    client.config_set("maxmemory-policy", "noeviction")
    for pause_s in (1, 2, 4):
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + (512 << 10))
        with pytest.raises(RedisFull):
            server.keeper.join()
        with pytest.raises(StoreUnavailable, match="memory"):
            server.ask(5)
        client.config_set("maxmemory", 0)
        pass_s(pause_s - 0.5)
        rows = server.store.size("users")
        with pytest.raises(StoreError, match="memory"):
            server.keeper.look()
        assert server.store.size("users") == rows < 40_000, "it is left alone for a while"
        pass_s(0.5)
    assert server.keeper.look()
    assert server.ask(5, 39_999) == [1, 1]


def test_a_log_that_is_away_at_first_is_waited_for(serve, send, log_path, pass_s) -> None:
    send([5], 55)
    server = serve()
    with away(log_path):
        assert not server.keeper.look()
        pass_s(redis_keeper.PATIENCE_S - 5)
        assert not server.keeper.look()
    assert server.keeper.look()
    assert server.ask(5, 6) == [55, 6]
    assert server.positions(5, 6) == [0, 0]


def test_a_log_that_is_away_for_long_leaves_rows_stale_until_it_is_back(serve, send, log_path, monkeypatch) -> None:
    monkeypatch.setattr(redis_keeper, "PATIENCE_S", 0.3)
    send([5], 55)
    server = serve()
    with away(log_path):
        server.keeper.join()
        assert server.ask(5, 6) == [5, 6]
        assert server.positions(5, 6) == [UNKNOWN_POSITION] * 2
        assert server.keeper.look()
        assert not server.keeper.drain(0.1), "nobody knows what the log has"
    server.keeper.start()
    wait_until(lambda: server.has({5: 55, 6: 6}), PATIENCE_S)
    assert server.keeper.drain(PATIENCE_S)
    assert server.positions(5, 6) == [0, 0]
    assert server.keeper.lost_log is None


def test_a_log_that_goes_away_leaves_rows_as_they_are(serve, send, log_path, monkeypatch) -> None:
    """Also for a server that starts then, however long that takes."""
    monkeypatch.setattr(redis_keeper, "PATIENCE_S", 0.1)
    first, second = serve(), serve()
    send([5], 55)
    first.keeper.join()
    first.keeper.start()
    with away(log_path):
        time.sleep(0.3)
        assert first.ask(5, 6) == [55, 6]
        first.close()
        second.keeper.join()
        second.keeper.start()
        time.sleep(0.3)
        assert second.ask(5, 6) == [55, 6]
        assert second.positions(5, 6) == [0, 0]
    send([6], 66)
    wait_until(lambda: second.has({5: 55, 6: 66}), PATIENCE_S)


@pytest.mark.parametrize("restarted", [False, True])
def test_another_log_is_reported_and_rows_are_stale_until_it_updates_them(serve, send, log_path, restarted) -> None:
    server = serve()
    send([5, 6], 55)
    server.keeper.join()
    server.keeper.start()
    lost = server.keeper.identity
    shutil.rmtree(log_path)
    if restarted:
        server.close()
        server = serve()
    send([5], 56)
    if restarted:
        server.keeper.join()
        server.keeper.start()
    wait_until(lambda: server.has({5: 56, 6: 6, 7: 7}), PATIENCE_S)
    assert server.keeper.drain(PATIENCE_S)
    assert server.positions(5, 6, 7) == [0, UNKNOWN_POSITION, UNKNOWN_POSITION]
    assert lost in server.keeper.lost_log
    send([6], 66)
    assert server.keeper.drain(PATIENCE_S)
    assert server.ask(6) == [66]
    later = serve()
    later.keeper.join()
    assert lost in later.keeper.lost_log
    for each in (server, later):
        assert each.positions(5, 6, 7) == [1, 1, UNKNOWN_POSITION]


def test_another_log_after_one_without_updates_is_no_loss(serve, send, log_path) -> None:
    server = serve()
    server.keeper.join()
    shutil.rmtree(log_path)
    send([5], 55)
    server.keeper.start()
    wait_until(lambda: server.has({5: 55, 6: 6}), PATIENCE_S)
    assert server.keeper.lost_log is None
    assert server.keeper.drain(PATIENCE_S)
    assert server.positions(5, 6) == [0, 0]


def remove_beginning(log_path: Path) -> None:
    """As its retention does."""
    segments = sorted((log_path / "topics/model/users/0").glob("*.segment"))
    assert len(segments) > 1
    for segment in segments[:-1]:
        segment.unlink()


def test_of_a_redis_alone_updates_that_the_log_has_lost_are_reported(serve, send, log_path) -> None:
    for row in range(20):
        send([row], 55)
    remove_beginning(log_path)
    server = serve()
    server.keeper.join()
    server.keeper.start()
    send([0], 66)
    assert server.keeper.drain(PATIENCE_S)
    assert server.ask(0, 1, 19) == [66, 1, 55]
    statistics = server.keeper.ingestion.statistics()
    assert (statistics.gaps, statistics.missing) == (1, 16)
    assert statistics.messages == 5, "each is read once"


def test_over_a_level_3_a_redis_begins_where_the_log_ends(serve, send) -> None:
    send([5], 55)
    writer, other = serve(over_level_3=True), serve(over_level_3=True)
    filled = []
    for server in (writer, other):
        server.keeper.fill = lambda go_on, server=server: filled.append((server, go_on()))
        assert server.keeper.look()
    assert filled == [(writer, True)], "by the one that writes"
    assert (writer.reached, other.reached) == (0, 0)
    assert (writer.store.size("users"), writer.ask(5)) == (0, [None])
    send([6], 66)
    writer.keeper.start()
    assert other.keeper.drain(PATIENCE_S)
    assert other.ask(5, 6) == [None, 66]
    assert other.reached == 1


def test_over_a_level_3_what_is_there_follows_updates(serve, send, client) -> None:
    server = serve(over_level_3=True)
    server.keeper.look()
    put(server, [5, 6, 7], -1)
    server.keeper.start()
    send([5], 55)
    send([6], None)
    assert server.keeper.drain(PATIENCE_S)
    assert server.ask(5, 6, 7) == [55, None, 7]
    assert server.positions(5, 7) == [1, 1]
    client.flushall()
    wait_until(lambda: server.reached == 1, PATIENCE_S)
    assert server.ask(5, 6, 7) == [None] * 3


def put(server: Server, keys: list[int], position: int) -> None:
    """As level 3 has them, up to `position`."""
    count, rows = len(keys), np.repeat(np.array(keys, np.float32), 4)
    starts, bases = np.array([0, count]), np.array([0, 4 * count])
    positions, numbers = np.full(count, position), np.zeros(count, np.int64)
    server.store.fill(("users",), np.array(keys), starts, rows, bases, np.ones(count, np.bool_), positions, numbers)


@pytest.mark.parametrize("loss", ["removed", "all removed", "another log", "went back"])
def test_over_a_level_3_rows_that_the_log_cannot_bring_up_to_date_are_removed(serve, send, log_path, loss) -> None:
    first = serve(over_level_3=True)
    for row in range(40):
        send([5], row)
    first.keeper.look()
    put(first, [5, 6], 39)
    assert first.ask(5, 6) == [5, 6]
    first.close()
    copy = log_path.with_name("copy")
    if loss == "went back":
        shutil.copytree(log_path, copy)
    for row in range(100):
        send([5], row)
    if loss == "another log":
        shutil.rmtree(log_path)
        send([5], 55)
    elif loss == "removed":
        remove_beginning(log_path)
    elif loss == "all removed":
        shutil.rmtree(log_path / "topics")
    else:
        ahead = serve(over_level_3=True)
        ahead.keeper.start()
        assert ahead.keeper.drain(PATIENCE_S)
        put(ahead, [6], 139)
        ahead.close()
        shutil.rmtree(log_path)
        copy.rename(log_path)
    server = serve(over_level_3=True)
    server.keeper.start()
    wait_until(lambda: server.has({5: None, 6: None}), PATIENCE_S)
    end = {"removed": 139, "all removed": -1, "another log": 0, "went back": 39}[loss]
    wait_until(lambda: server.reached == end, PATIENCE_S)
    assert (server.keeper.lost_log is not None) == (loss == "another log")
