from pathlib import Path

import pytest

from hebe.embeddings.config.hierarchy_config import UpdateConfig, UpdateType
from hebe.embeddings.online_updates import group_of_store, remove_store
from hebe.embeddings.rocksdb.directory import update_member
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.directory.log import LogDirectory

DIMS = {"users": 2}


@pytest.fixture
def place(tmp_path) -> Path:
    """Of a store that has taken updates."""
    place = tmp_path / "m" / "1"
    RocksDbStore(place, DIMS).close()
    update_member(place)
    return place


@pytest.fixture
def updates(tmp_path) -> UpdateConfig:
    """A log that has the group of that store, and another one."""
    return UpdateConfig(UpdateType.LOG_DIRECTORY, str(tmp_path / "log"))


def begin(updates: UpdateConfig, group: str | None) -> LogDirectory:
    """The log, with a group that has begun to read it and has no member now."""
    log = LogDirectory(Path(updates.address))
    assert group is not None
    source = log.source(group, [Topic("m", "users")])
    source.poll(1, 0.0)
    source.close()
    return log


def test_the_log_keeps_nothing_for_a_store_that_is_no_more(place, updates) -> None:
    begin(updates, "hebe.m.other")
    log = begin(updates, group_of_store(updates, "m", place))
    assert len(log.groups()) == 2
    remove_store("m", place, updates)
    assert not place.exists()
    assert log.groups() == ["hebe.m.other"]


def test_a_store_that_is_in_use_keeps_its_group(place, updates) -> None:
    log = begin(updates, group_of_store(updates, "m", place))
    store = RocksDbStore(place, read_only=True)
    with pytest.raises(StoreError, match="is in use"):
        remove_store("m", place, updates)
    store.close()
    assert len(log.groups()) == 1


def test_a_log_that_cannot_forget_is_told_and_the_store_is_gone(place, updates, caplog) -> None:
    group = group_of_store(updates, "m", place)
    log = begin(updates, group)
    source = log.source(group, [Topic("m", "users")])
    remove_store("m", place, updates)
    assert not place.exists()
    assert f"keeps messages for group {group}" in caplog.text
    assert "a server is still in this group" in caplog.text
    source.close()


@pytest.mark.parametrize("source", [UpdateConfig(), UpdateConfig(UpdateType.KAFKA, "127.0.0.1:1")])
def test_a_log_that_keeps_nothing_for_groups_is_not_asked(place, source, caplog) -> None:
    remove_store("m", place, source)
    assert not place.exists()
    assert not caplog.records


def test_a_store_that_never_took_updates_has_no_group(tmp_path, updates) -> None:
    RocksDbStore(tmp_path / "store", DIMS).close()
    assert group_of_store(updates, "m", tmp_path / "store") is None
    remove_store("m", tmp_path / "store", updates)
    assert not (tmp_path / "log").exists()
