"""The disk under a server's persistent store: full, read-only, damaged. Clients read all the while."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from tests.integration.serving.served import HebeServe, eventually
from tests.integration.serving.test_serve_startup import run_here, with_free_ports
from tests.integration.updates.trainer import QUICK, Trainer

from .row_reader import LATE_S, Load, Reader, Versions, percentile_s, row_reader, serving, store_reader, write_hierarchy
from .test_store_faults import mount

SPEC = row_reader(dim=16)
[ROWS] = [table.rows for table in SPEC.tables]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def tiers(root: Path, place: Path, *, updates: bool) -> dict[str, dict[str, Any]]:
    """Level 1 and level 3, with or without online updates."""
    described: dict[str, dict[str, Any]] = {
        "cache": {"cache_fraction": 0.1},
        "persistent_db": {"type": "rocks_db", "path": str(place)},
    }
    if updates:
        described["update_source"] = {
            "type": "log_directory",
            "address": str(root / "log"),
            "poll_timeout_ms": 50,
        }
    return described


def wait_until_newest(server: HebeServe, versions: Versions) -> None:
    with Reader(server, SPEC, versions) as reader:
        eventually(reader.all_newest, "every row is right")


def refused(root: Path, described: dict[str, dict[str, Any]]) -> str:
    """The log of a server that must not come up."""
    with serving(root, described, name="refused", ready=False) as server:
        ended = eventually(lambda: server.process.poll() is not None or "all models loaded" in server.log, "it ends")
        assert ended
        assert server.process.poll() == 1, server.log
        return server.log


def fill(disk: Path) -> Path:
    """Leave no room on `disk`, whatever is written meanwhile; the file to be removed."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    return ballast


def test_a_disk_that_is_full_and_then_read_only(tmp_path: Path, disk: Path):
    """Full: queries are answered, and updates go on where they were once there is room. Read-only: it is read from."""
    store_reader(tmp_path / "models", SPEC)
    versions, updates = Versions(SPEC), LogDirectory(tmp_path / "log")
    with serving(tmp_path, tiers(tmp_path, disk / "rows", updates=True)) as server:
        with updates.producer(QUICK) as producer, Load([server], SPEC, versions) as load:
            with Trainer(producer, SPEC.name, versions, np.arange(ROWS)):
                eventually(lambda: (versions.sent > 0).sum() > ROWS / 2, "updates come")
                ballast = fill(disk)
                eventually(lambda: "free some disk space" in server.log, "it tells that the disk is full")
                load.wait_for(200)
            load.wait_for(200)
            assert server.process.poll() is None
            ballast.unlink()
            wait_until_newest(server, versions)
            versions.settled[:] = versions.sent
            load.wait_for(100)
            assert percentile_s(load.answers, 99) < LATE_S
        assert server.end(signal.SIGTERM) == 0

    mount("-o", "remount,ro", str(disk))
    fault = refused(tmp_path, tiers(tmp_path, disk / "rows", updates=True))
    assert str(disk / "rows") in fault
    assert "Read-only file system" in fault
    with (
        serving(tmp_path, tiers(tmp_path, disk / "rows", updates=False)) as server,
        Load([server], SPEC, versions) as load,
    ):
        load.wait_for(100)
        wait_until_newest(server, versions)


@pytest.mark.usefixtures("this_process")
@pytest.mark.parametrize("part", ["rows", "record"])
def test_a_damaged_store_is_named_at_start_and_not_served(
    tmp_path: Path, stored: Path, part: str, capsys: pytest.CaptureFixture[str]
):
    """Whatever the disk has changed: the server ends with status 1, and says which store it is and what to do."""
    described = tiers(tmp_path, tmp_path / "rocksdb", updates=False)
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    place = tmp_path / "rocksdb" / SPEC.name / "1"
    damage(place, part)
    hierarchy = write_hierarchy(tmp_path / "tiers.toml", described)
    arguments = [str(tmp_path / "models"), "--hierarchy", str(hierarchy), "--workers", "1", "--verify"]
    status, fault = run_here(with_free_ports(arguments), capsys)
    assert status == 1, fault
    assert str(place) in fault
    assert "remove the directory" in fault


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository, and the store that loading it has made of it."""
    root = tmp_path_factory.mktemp("stored")
    store_reader(root / "models", SPEC)
    config = HierarchyConfig.from_mapping(tiers(root, root / "rocksdb", updates=False))
    LoadedModel.load(root / "models", SPEC.name, options=LoadOptions(hierarchy=config)).close()
    return root


@pytest.mark.parametrize("updates", [False, True], ids=["in the server", "in a process of its own"])
def test_a_block_that_is_damaged_under_a_running_server(tmp_path: Path, stored: Path, updates: bool):
    """A query that needs it gets no row that is none: default vectors, which the response tells, and the log says why.

    Once the disk has the block again it is read again.
    """
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    place = tmp_path / "rocksdb" / SPEC.name / "1"
    with serving(tmp_path, tiers(tmp_path, tmp_path / "rocksdb", updates=updates)) as server:
        damage(place, "rows")
        with Load([server], SPEC, Versions(SPEC), items=32) as load:
            load.wait_for(20, lambda answer: answer.told is not None and answer.told.defaulted > 0)
            said = f"persistent_db has damaged rows, and queries do without them: persistent store {place}: "
            eventually(lambda: said in server.log, "the log tells")
            assert "Corruption: block checksum mismatch" in server.log
            assert "circuit open" not in server.log, "rows of other blocks are read"
            damage(place, "rows")  # which undoes it
            load.wait_until_whole()
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log


@pytest.mark.usefixtures("this_process")
def test_a_model_is_not_to_be_served_once_its_warm_up_has_met_damage(tmp_path: Path, stored: Path):
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    config = HierarchyConfig.from_mapping(tiers(tmp_path, tmp_path / "rocksdb", updates=False))
    damage(tmp_path / "rocksdb" / SPEC.name / "1", "rows")
    model = LoadedModel.load(tmp_path / "models", SPEC.name, options=LoadOptions(hierarchy=config))
    model.check_level_3()
    (feature,) = SPEC.features
    model.predict({feature.name: np.arange(ROWS).reshape(-1, feature.lookups)})
    with pytest.raises(StoreError, match=r"(?s)persistent_db has rows that cannot be read: .*remove the directory"):
        model.check_level_3()
    model.close()


def damage(place: Path, part: str) -> None:
    """Change some bytes of a store, of its rows or of the record beside them: the second time they are as they were."""
    largest = max((place / "rows").glob("*.sst"), key=lambda file: file.stat().st_size)
    file = largest if part == "rows" else place / "store.json"
    with file.open("r+b") as content:
        content.seek(file.stat().st_size // 2)
        wrong = bytes(byte ^ 0x5A for byte in content.read(8))
        content.seek(-8, os.SEEK_CUR)
        content.write(wrong)
