import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from hebe.embeddings.options import RocksDbOptions
from hebe.embeddings.rocksdb import process as store_process
from hebe.embeddings.rocksdb import process_wire as store_wire
from hebe.embeddings.rocksdb.process import StoreProcess
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.embeddings.stores.store_conformance import TABLES, StoreConformance, refuses_wrong_updates

DIMS = {"users": 3}
WITHIN_S = 20.0


def started(path, dims=DIMS, readers=2):
    return StoreProcess.take_over(RocksDbStore(path, dims), readers)


def rows_of(count, value=0.0):
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3) + np.float32(value)


def queried(store, keys):
    rows, found = np.zeros((len(keys), 3), np.float32), np.zeros(len(keys), np.bool_)
    assert store.query("users", keys, rows, found) == found.sum()
    return rows, found


def retried(call):
    """What `call` returns once the process is there again."""
    give_up_s = time.monotonic() + WITHIN_S
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < give_up_s
            time.sleep(0.05)


def lives(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


class TestStoreProcess(StoreConformance):
    examples = 5  # each starts a process

    @pytest.fixture
    def make_store(self, tmp_path):
        count = itertools.count()
        return lambda: started(tmp_path / str(next(count)), TABLES)


def test_it_takes_over_and_gives_back(tmp_path, threads_begun) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    store = started(tmp_path / "store")
    process_id = store.process_id
    assert process_id is not None
    with pytest.raises(StoreError, match="in use by another process"):
        RocksDbStore(tmp_path / "store", DIMS)
    keys = np.array([-(2**63), -1, 0, 7, 2**63 - 1])
    assert store.apply("users", keys, rows_of(5), ("log", 3))
    assert not store.apply("users", keys, rows_of(5, 1), ("log", 3)), "it is there already"
    assert store.apply("users", keys[1:2], None, ("log", 4))
    rows, found = queried(store, keys[::-1].copy())
    assert found.tolist() == [True, True, True, False, True]
    assert np.array_equal(rows[found], rows_of(5)[::-1][found])
    assert not rows[~found].any()
    assert (store.positions(), store.marks()) == ({"log": 4}, {"log": ""})
    assert store.apply("users", keys[:0], rows_of(0), ("log", 2), mark="p/7", anew=True)
    assert (store.positions(), store.marks()) == ({"log": 2}, {"log": "p/7"})
    assert not store.apply("users", keys, rows_of(5, 1), ("log", 1), mark="p/8")
    assert store.apply("users", keys[:0], rows_of(0), ("log", 4), mark="p/9")
    assert np.concatenate(list(store.dump_keys("users", 2))).tolist() == [-(2**63), 0, 7, 2**63 - 1]
    with pytest.raises(StoreError, match=r"rows float32 \[2, 3\] for 1 keys of table users"):
        store.insert("users", keys[:1], rows_of(2))
    assert store.size("users") == store.known_rows == 4, "a mistake of the caller's harms nothing"
    store.close()
    assert not lives(process_id)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not threads_begun()
    with contextlib.closing(RocksDbStore(tmp_path / "store", read_only=True)) as again:
        assert (again.positions(), again.size("users")) == ({"log": 4}, 4)


def test_what_writes_gives_way_to_the_server_and_what_reads_does_not(tmp_path) -> None:
    with contextlib.closing(started(tmp_path / "store", readers=2)) as store:
        process_id = store.process_id
        assert process_id is not None
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        threads = [int(name) for name in os.listdir(f"/proc/{process_id}/task")]
        niceness = {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
        assert niceness.pop(process_id) > mine
        assert list(niceness.values()).count(mine) >= 2, "its readers; some libraries have threads too"
        assert max(niceness.values()) > mine, "RocksDB's own"
        assert os.getsid(process_id) == os.getsid(0), "between sessions the kernel may not heed niceness"
        assert os.getpgid(process_id) != os.getpgid(0), "Ctrl-C is for the server"


def test_how_many_rows_there_are_is_known_without_asking(tmp_path) -> None:
    with contextlib.closing(RocksDbStore(tmp_path / "store", {"users": 3, "items": 3})) as store:
        store.insert("items", np.arange(7), rows_of(7))
        assert store.known_rows == 7
    with contextlib.closing(started(tmp_path / "store", {})) as store:
        known = [store.known_rows]
        for write in (
            lambda: store.insert("users", np.arange(5), rows_of(5)),
            lambda: store.apply("users", np.arange(4, 8), rows_of(4)),
            lambda: store.delete("items", np.arange(2)),
            lambda: store.apply("users", np.arange(1), None, ("log", 1)),
            lambda: store.update("users", np.arange(9), rows_of(9)),
        ):
            write()
            known.append(store.known_rows)
        assert known == [7, 12, 15, 13, 12, 12]
        os.kill(store.process_id, signal.SIGKILL)
        assert store.known_rows == 12
        store.known_rows = 0
        assert retried(lambda: store.size("users")) == 7
        assert store.known_rows == 12, "the new one has told"


def test_one_that_dies_is_started_anew_with_all_that_was_written(tmp_path, caplog) -> None:
    with contextlib.closing(started(tmp_path / "store")) as store:
        store.apply("users", np.arange(100), rows_of(100), ("log", 9))
        first = store.process_id
        os.kill(first, signal.SIGKILL)
        with pytest.raises(StoreUnavailable, match=r"its process ended \(-9\)"):
            queried(store, np.arange(3))
        assert "it is started anew" in caplog.text
        rows, found = retried(lambda: queried(store, np.arange(101)))
        assert found.sum() == 100
        assert np.array_equal(rows[:100], rows_of(100))
        assert store.positions() == {"log": 9}
        assert store.process_id != first


def test_one_that_dies_is_told_to_all_who_wait(tmp_path) -> None:
    with contextlib.closing(started(tmp_path / "store", readers=2)) as store:
        os.kill(store.process_id, signal.SIGSTOP)
        faults, answers = [], []
        all_ask = threading.Barrier(5)

        def ask() -> None:
            all_ask.wait()
            try:
                answers.append(queried(store, np.arange(3)))
            except StoreError as fault:
                faults.append(fault)

        threads = [threading.Thread(target=ask) for _ in range(4)]  # two of them wait for a connection
        for thread in threads:
            thread.start()
        all_ask.wait()
        os.kill(store.process_id, signal.SIGKILL)
        for thread in threads:
            thread.join(WITHIN_S)
        assert not any(thread.is_alive() for thread in threads)
        assert len(faults) + len(answers) == 4, "one that asks late on a busy machine may find it started anew"
        assert all(isinstance(fault, StoreUnavailable) for fault in faults)
        assert retried(lambda: store.size("users")) == 0


def test_one_that_does_not_answer_is_ended(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(store_process, "_ANSWER_S", 1)
    monkeypatch.setattr(store_process, "_DYING_S", 0.2)
    with contextlib.closing(started(tmp_path / "store")) as store:
        store.insert("users", np.arange(4), rows_of(4))
        stopped = store.process_id
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match="its process did not answer within 1 s"):
            store.insert("users", np.arange(4, 8), rows_of(4))
        assert not lives(stopped)
        assert retried(lambda: store.size("users")) == 4
        os.kill(store.process_id, signal.SIGSTOP)
        stopped = store.process_id
    assert not lives(stopped), "nor does it keep a store from being closed"


@pytest.mark.parametrize("fault", [MemoryError, KeyboardInterrupt])
def test_a_call_that_is_broken_off_leaves_no_answer_for_the_next_one(tmp_path, monkeypatch, fault, caplog) -> None:
    receive = store_process.receive

    def breaks_off(_connection):
        monkeypatch.setattr(store_process, "receive", receive)
        raise fault

    with contextlib.closing(started(tmp_path / "store", readers=1)) as store:
        store.insert("users", np.arange(4), rows_of(4))
        first = store.process_id
        monkeypatch.setattr(store_process, "receive", breaks_off)
        with pytest.raises(fault):
            queried(store, np.array([0]))
        assert f"a call was broken off ({fault.__name__}) and its process ended; it is started anew" in caplog.text
        rows, found = retried(lambda: queried(store, np.array([3])))
        assert found.all()
        assert np.array_equal(rows, rows_of(4)[3:])
        assert not lives(first)


def test_a_connection_with_half_a_message_is_nobody_elses(tmp_path) -> None:
    """Not even of one who waits for it."""
    with contextlib.closing(started(tmp_path / "store", readers=1)) as store:
        child = store._child
        with pytest.raises(MemoryError), child.connection(writes=False):
            raise MemoryError
        with pytest.raises(EOFError), child.connection(writes=False):
            pass
        assert retried(lambda: store.size("users")) == 0


def test_one_that_cannot_take_a_call_ends(tmp_path, monkeypatch) -> None:
    """It would not know where the next one begins."""
    with contextlib.closing(started(tmp_path / "store")) as store:
        huge = store_wire._SIZES.pack(2, 2**60)
        with monkeypatch.context() as patch:
            patch.setattr(store_process, "send", lambda connection, *_: connection.sendall(huge))
            with pytest.raises(StoreUnavailable, match=r"its process ended \(1\)"):
                queried(store, np.array([0]))
        assert retried(lambda: store.size("users")) == 0


def test_it_ends_with_its_parent(tmp_path) -> None:
    """A server that is killed leaves nobody who has the store, which the next one opens."""
    program = (
        "import sys, os, signal; from pathlib import Path; import numpy as np\n"
        "from hebe.embeddings.rocksdb.store import RocksDbStore\n"
        "from hebe.embeddings.rocksdb.process import StoreProcess\n"
        "store = StoreProcess.take_over(RocksDbStore(Path(sys.argv[1]), {'users': 3}), 2)\n"
        "store.apply('users', np.arange(5), np.ones((5, 3), np.float32), ('log', 1))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    with contextlib.closing(RocksDbStore(tmp_path / "store", read_only=True)) as store:
        assert (store.positions(), store.size("users")) == ({"log": 1}, 5)


def test_a_store_that_cannot_be_opened_is_told_as_in_this_process(tmp_path) -> None:
    with pytest.raises(StoreError, match="there is none"):
        StoreProcess(tmp_path / "none", DIMS, RocksDbOptions(), 2)
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)):
        with pytest.raises(StoreError, match="in use by another process"):
            StoreProcess(tmp_path / "store", DIMS, RocksDbOptions(), 2)


def test_an_update_that_the_store_does_not_take_is_not_noted(tmp_path):
    store = started(tmp_path)
    refuses_wrong_updates(store)
    store.close()
