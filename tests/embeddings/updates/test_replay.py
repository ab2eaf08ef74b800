import time
from dataclasses import replace

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import UpdateConfig, UpdateType
from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates import replay as update_replay
from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.embeddings.updates.replay import forget_group, group_name, look_at_group, replay, shared_group
from hebe.spec import check_name
from tests.embeddings.stores.dict_store import DictStore

DIMS = {"users": 2, "items": 1}
NO_UPDATES = UpdateConfig()


@pytest.fixture
def updates(tmp_path) -> UpdateConfig:
    return UpdateConfig(UpdateType.LOG_DIRECTORY, str(tmp_path / "log"), interval_s=0.0, poll_timeout_ms=10.0)


def send(updates: UpdateConfig, key: int, table: str = "users") -> None:
    with LogDirectory(updates.address).producer() as producer:
        producer.send("m", table, np.array([key]), np.full((1, DIMS[table]), key, np.float32))


def replayed(updates: UpdateConfig, since_s: float | None = None, group: str = "g") -> list[int]:
    """The keys of users."""
    store = DictStore(DIMS)
    replay("m", DIMS, updates, group, store, since_s, lambda: None)
    return sorted(store.tables["users"])


def test_rows_get_all_that_the_log_has_of_their_tables(updates) -> None:
    assert replayed(updates) == [], "there is no log yet"
    for key in range(3):
        send(updates, key)
    assert replayed(updates, group="other") == [0, 1, 2]
    assert replayed(updates, since_s=4e9, group="later") == [], "they have all that was sent before then"
    assert replayed(NO_UPDATES) == []


def test_all_of_the_log_is_applied_and_not_at_the_rate_at_which_it_is_while_queries_are_answered(updates) -> None:
    for key in range(30):
        send(updates, key)
    store = DictStore(DIMS)
    replay("m", DIMS, replace(updates, max_rows_per_s=0.001, max_batch_size=1), "g", store, None, lambda: None)
    assert sorted(store.tables["users"]) == [*range(30)]


def test_a_log_that_is_away_is_waited_for_a_while(updates, monkeypatch, caplog) -> None:
    """It may be back in a moment; but who waits is to answer some time."""
    monkeypatch.setattr(update_replay, "PATIENCE_S", 60.0)
    monkeypatch.setattr(update_replay, "_STEP_S", 0.001)
    send(updates, 1)
    opened, steps, away = update_replay.open_configured_log, list[int](), [2]

    def open_or_fail(source):
        if len(steps) < away[0]:
            raise StoreUnavailable("the log is away")
        return opened(source)

    monkeypatch.setattr(update_replay, "open_configured_log", open_or_fail)
    store = DictStore(DIMS)
    replay("m", DIMS, updates, "g", store, None, lambda: steps.append(0))
    assert list(store.tables["users"]) == [1]
    assert len(steps) == 2
    away[0] = 10**9
    with pytest.raises(ZeroDivisionError):
        replay("m", DIMS, updates, "g", store, None, lambda: 1 / 0)
    monkeypatch.setattr(update_replay, "PATIENCE_S", 0.01)
    assert replayed(updates, group="other") == []
    assert "without the updates of the log until it can be read: the log is away" in caplog.text


def test_rows_that_nothing_more_comes_to_go_on_without(updates, monkeypatch, caplog) -> None:
    monkeypatch.setattr(update_replay, "PATIENCE_S", 0.05)
    send(updates, 1)
    store = DictStore(DIMS)
    store.fault = StoreUnavailable("it takes no writes")
    replay("m", DIMS, updates, "g", store, None, lambda: None)
    assert "rows of m have not caught up with the log, and go on: it takes no writes" in caplog.text


def test_how_much_a_group_has_written_is_asked_of_the_log(updates) -> None:
    send(updates, 1)
    unread = look_at_group("m", DIMS, updates, "g")
    assert unread is not None
    assert set(unread.committed.values()) == {-1}
    assert sorted(unread.ends.values())[-1] >= 0
    replayed(updates)
    asked_s = time.monotonic()
    written = look_at_group("m", DIMS, updates, "g")
    assert written is not None
    assert written.asked_s >= asked_s
    assert written.committed == written.ends == unread.ends
    assert all(at == TopicPartition("m", "users", at.partition) for at, end in written.ends.items() if end >= 0)


def test_of_a_group_that_is_no_more_nothing_is_kept(updates) -> None:
    send(updates, 1)
    replayed(updates)
    log = LogDirectory(updates.address)
    assert log.groups() == ["g"]
    for group in ("nobody", "g", "g"):
        forget_group(updates, group)
    assert log.groups() == []


@pytest.mark.parametrize("source", [NO_UPDATES, UpdateConfig(UpdateType.KAFKA, "127.0.0.1:1")])
def test_a_log_that_keeps_nothing_for_groups_is_not_asked_to_forget_any(source, monkeypatch) -> None:
    """Kafka refuses it, and a generation of rows that is over would never be done with."""
    monkeypatch.setattr(update_replay, "open_configured_log", lambda _source: 1 / 0)
    forget_group(source, "g")


def test_groups_of_models_with_long_names_have_names_too() -> None:
    assert group_name("hebe", "ads", "1") == "hebe.ads.1"
    long = [group_name("hebe", "m" * 128, last) for last in "ab"]
    assert long[0] != long[1]
    for name in long:
        check_name("group", name)


def test_each_generation_of_rows_has_a_group_of_its_own() -> None:
    assert {shared_group(NO_UPDATES, "ads.1", generation) for generation in (None, "a", "b")} == {
        "hebe.ads.1",
        "hebe.ads.1.a",
        "hebe.ads.1.b",
    }
