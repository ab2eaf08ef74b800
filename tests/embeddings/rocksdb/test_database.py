import contextlib
import threading

import pytest

from hebe.embeddings.rocksdb import database as rocksdb_database
from hebe.embeddings.rocksdb.database import Database, Gate
from hebe.embeddings.store import StoreError

TIMEOUT_S = 20.0


def started(target) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_who_wants_to_be_alone_waits_for_those_inside_and_goes_before_those_who_come_later() -> None:
    gate, order = Gate(), []
    inside, leave, wants = threading.Event(), threading.Event(), threading.Event()

    def reads_long() -> None:
        with gate.shared():
            inside.set()
            assert leave.wait(TIMEOUT_S)
            order.append("inside")

    def is_alone() -> None:
        with gate.exclusive():
            order.append("alone")

    def comes_later() -> None:
        with gate.shared():
            order.append("later")

    reading = started(reads_long)
    assert inside.wait(TIMEOUT_S)
    changed, wait = gate._changed, gate._changed.wait

    def waits(timeout: float | None = None) -> bool:
        wants.set()
        return wait(timeout)

    changed.wait = waits  # type: ignore[method-assign]
    alone = started(is_alone)
    assert wants.wait(TIMEOUT_S)
    wants.clear()
    later = started(comes_later)
    assert wants.wait(TIMEOUT_S)
    assert not order
    leave.set()
    for thread in (reading, alone, later):
        thread.join(TIMEOUT_S)
    assert order == ["inside", "alone", "later"]


def test_many_may_be_inside_at_once_and_who_fails_there_leaves() -> None:
    gate = Gate()
    with gate.shared(), gate.shared():
        pass
    for enter in (gate.shared, gate.exclusive):
        with pytest.raises(RuntimeError, match="inside"), enter():
            raise RuntimeError("inside")
    with gate.exclusive():
        pass


@pytest.mark.parametrize("way", ["shared", "exclusive"])
def test_who_is_interrupted_on_the_way_out_is_out(way) -> None:
    """As by Ctrl-C while another thread has the lock of the gate: nobody may wait for ever for who was inside."""
    gate = Gate()
    lock = gate._changed

    class Interrupted:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            """Never entered."""

    with contextlib.suppress(KeyboardInterrupt), getattr(gate, way)():
        gate._changed = Interrupted()  # type: ignore[assignment]
    gate._changed = lock
    entered = threading.Event()

    def is_alone() -> None:
        with gate.exclusive():
            entered.set()

    started(is_alone)
    assert entered.wait(TIMEOUT_S)


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path, ["t", "u"], read_only=False, creates=True)
    yield made
    made.close()


def test_a_walk_sees_every_key_once_however_it_is_cut(database, monkeypatch) -> None:
    keys = [bytes([number]) for number in range(10)]
    database.write("t", keys, [key * 4 for key in keys], [])
    for at_once in (1, 3, 10, 64):
        monkeypatch.setattr(rocksdb_database, "_SCAN_KEYS", at_once)
        parts = list(database.scan("t"))
        assert [key for part in parts for key in part] == keys
        assert max(map(len, parts)) <= at_once
        assert [key for part in database.scan("t", after=keys[3]) for key in part] == keys[4:]
        assert [pair for part in database.scan("t", rows=True) for pair in part] == [(key, key * 4) for key in keys]
    assert list(database.scan("t", after=keys[-1])) == list(database.scan("u")) == []


def test_what_is_written_comes_with_its_notes_or_not_at_all(database) -> None:
    database.write("t", [b"a", b"b"], [b"1", b"2"], [(b"n", b"first")])
    database.write("t", [b"a"], None, [(b"n", b"second")])
    with pytest.raises(StoreError, match="shorter"):
        database.write("t", [b"c", b"d"], [b"3"], [(b"n", b"third")])
    assert database.get("t", [b"a", b"b", b"c"]) == [None, b"2", None]
    assert database.get("u", [b"b"]) == [None]
    assert database.notes() == [(b"n", b"second")]


def test_nothing_is_read_or_written_once_it_is_closed(database) -> None:
    database.write("t", [b"a"], [b"1"], [])
    assert database.close() is not None, "all that its list of files says is there"
    for call in (
        lambda: database.get("t", [b"a"]),
        database.notes,
        lambda: list(database.scan("t")),
        lambda: database.write("t", [b"a"], [b"2"], []),
    ):
        with pytest.raises(StoreError, match="is closed"):
            call()
    assert database.close() is None
