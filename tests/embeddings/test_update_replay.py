import numpy as np
import pytest

from hebe.embeddings.hierarchy_config import UpdateConfig, UpdateType
from hebe.embeddings.update_replay import forget_group, group_name, replay, shared_group, written_offsets
from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.log_directory import LogDirectory
from hebe.spec import check_name

from .dict_store import DictStore

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


def test_how_much_a_group_has_written_is_asked_of_the_log(updates) -> None:
    send(updates, 1)
    unread = written_offsets("m", DIMS, updates, "g")
    assert unread is not None
    assert set(unread.values()) == {-1}
    replayed(updates)
    written = written_offsets("m", DIMS, updates, "g")
    assert written is not None
    assert sorted(written.values())[-1] >= 0
    assert all(at == TopicPartition("m", "users", at.partition) for at, end in written.items() if end >= 0)


def test_of_a_group_that_is_no_more_nothing_is_kept(updates) -> None:
    send(updates, 1)
    replayed(updates)
    log = LogDirectory(updates.address)
    assert log.groups() == ["g"]
    for group in ("nobody", "g", "g"):
        forget_group(updates, group)
    assert log.groups() == []
    forget_group(NO_UPDATES, "g")


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
