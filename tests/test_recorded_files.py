"""Files that an earlier commit wrote are read: `scripts/record_files.py` wrote `recorded_files`, whose `expected.json`
says what is in them. A test works on copies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import socket
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest

import hebe
from hebe.capacity.files.colocation_inputs import read_scalability, read_shared_server
from hebe.capacity.files.colocation_plan import read_colocation_plan
from hebe.capacity.files.entries import read_efficiency
from hebe.capacity.files.plan_content import plan_kind
from hebe.capacity.files.pool_plan import read_pool_plan
from hebe.capacity.files.provisioning_plan import read_provisioning_plan
from hebe.capacity.files.server_specs import read_server_spec
from hebe.capacity.files.service_times import read_service_times
from hebe.cli.main import main
from hebe.embeddings.cache.cache_keys import read_keys
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hps.tables import find_tables
from hebe.embeddings.online_updates import reader_of_store
from hebe.embeddings.rocksdb.directory import update_member
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.updates.contract import Delivery, Topic, UpdateSource
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.models.repository.repository import ModelRepository
from hebe.profiling.files.journal import open_journal
from hebe.profiling.files.profile_to_serve import configurations_to_serve
from hebe.profiling.files.server_profile import read_server_profile
from hebe.report.figures import FigureFile
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.server_configuration import from_dict, to_dict
from hebe_lab.saved_parts import KeptParts
from hebe_lab.studies.hercules.server import Measured

RECORDED = Path(__file__).parent / "recorded_files"
EXPECTED: dict[str, Any] = json.loads((RECORDED / "expected.json").read_text())
SERVING, PROFILES, PLANS, HPS = (EXPECTED[name] for name in ("serving", "profiles", "plans", "hps"))
PATIENCE_S = 60.0
PACKAGES = (
    "bench", "cli", "embeddings", "kernels", "load_generator", "models", "planning", "profiling", "report", "runtime",
    "scheduling", "serving", "simulation", "studies", "workload",
)  # fmt: skip
"""Of `hebe`, when the files were written."""

Rows = npt.NDArray[np.float32]
History = dict[int, list[list[float] | None]]
"""By key its rows in order, None where it was deleted."""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all, in which the test works."""
    copy = tmp_path / "files"
    shutil.copytree(RECORDED, copy)
    monkeypatch.chdir(copy)
    return copy


def same(found: Any, expected: Any, where: str = "") -> None:
    """Assert that plain data are equal, numbers but for rounding."""
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping), where
        assert set(found) == set(expected), where
        for name, value in expected.items():
            same(found[name], value, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for at, value in enumerate(expected):
            same(found[at], value, f"{where}[{at}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, nan_ok=True), where
    else:
        assert found == expected, where


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """Run a command of `hebe` that ends well; what `--json` prints."""
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert not exit_.value.code, captured.err
    printed: dict[str, Any] = json.loads(captured.out.splitlines()[-1])
    return printed


def never(*_arguments: object) -> NoReturn:
    """Stands for a measurement that is not to be made."""
    raise AssertionError("what is on disk is measured again")


def recorded() -> list[Path]:
    return sorted(path for path in RECORDED.rglob("*") if path.is_file() and path.parent != RECORDED)


def test_every_file_is_as_it_was_recorded() -> None:
    """Whatever Git, an editor or a script that renames modules made of them."""
    found = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(RECORDED)}" for path in recorded()]
    assert found == (RECORDED / "SHA256SUMS").read_text().splitlines()


def test_no_file_names_a_module() -> None:
    """A format that did would break when modules move."""
    module = re.compile(rb"\bhebe\.(?:" + "|".join(PACKAGES).encode() + rb")\b")
    assert [str(path) for path in recorded() if module.search(path.read_bytes())] == []


# The model repository


def test_the_repository_has_all_models_and_versions() -> None:
    repository = ModelRepository("models")
    found = [f"{name}/{version}" for name in repository.names() for version in repository.versions(name)]
    assert found == list(EXPECTED["models"])
    assert repository.incomplete() == ()


@pytest.mark.parametrize("version", EXPECTED["models"])
def test_a_model_is_read_and_scores_as_when_it_was_written(version: str) -> None:
    expected = EXPECTED["models"][version]
    name, number = version.split("/")
    stored = ModelRepository("models").open(name, int(number))
    stored.verify()
    spec = json.loads(json.dumps(stored.spec.to_dict()))
    same(spec, expected["spec"])
    assert stored.identity == expected["identity"]
    assert stored.tables_identity == expected["tables_identity"]
    assert stored.imported is expected["imported"]
    assert stored.rows_as_of_s == expected["rows_as_of_s"]
    for table, row in expected["last_rows"].items():
        np.testing.assert_array_equal(stored.table(table)[-1], np.array(row, np.float32))
    features = {feature: np.array(keys, np.int64) for feature, keys in expected["features"].items()}
    dense = None if expected["dense"] is None else np.array(expected["dense"], np.float32)
    scores = hebe.load("models", name, int(number)).predict(features, dense)
    np.testing.assert_allclose(scores, expected["scores"], rtol=0, atol=1e-6)


# A persistent store, an update log, and level 1's keys


def rows_of(store: RocksDbStore, table: str) -> dict[str, list[float]]:
    """All rows of a table by key, as `expected.json` has them."""
    keys = np.concatenate([part.copy() for part in store.dump_keys(table, 64)])
    rows, found = np.zeros((len(keys), store.dims[table]), np.float32), np.zeros(len(keys), np.bool_)
    assert store.query(table, keys, rows, found) == len(keys)
    return {str(key): row.tolist() for key, row in zip(keys.tolist(), rows, strict=True)}


def recorded_rows(table: str) -> dict[str, list[float]]:
    held: dict[str, list[float]] = SERVING["rows"][table]
    return dict(sorted(held.items(), key=lambda entry: int(entry[0])))


def recorded_updates(updates: Iterable[Mapping[str, Any]]) -> dict[str, History]:
    """By table."""
    histories: dict[str, History] = defaultdict(lambda: defaultdict(list))
    for update in updates:
        for at, key in enumerate(update["keys"]):
            histories[update["table"]][key].append(None if update["rows"] is None else update["rows"][at])
    return histories


def delivered_updates(deliveries: Sequence[Delivery]) -> dict[str, History]:
    """By table."""
    histories: dict[str, History] = defaultdict(lambda: defaultdict(list))
    for delivery in deliveries:
        message = delivery.message
        assert message is not None, delivery.error
        for at, key in enumerate(message.keys.tolist()):
            histories[delivery.at.table][key].append(None if message.rows is None else message.rows[at].tolist())
    return histories


def read_all(source: UpdateSource, count: int) -> list[Delivery]:
    """So many messages, behind which there are no more."""
    deliveries: list[Delivery] = []
    end_s = time.monotonic() + PATIENCE_S
    while len(deliveries) < count and time.monotonic() < end_s:
        deliveries += source.poll(100, 1.0)
    assert source.poll(100, 0.2) == []
    assert len(deliveries) == count
    return deliveries


@pytest.fixture
def store() -> Path:
    return Path("serving/stores", SERVING["model"], "1")


def test_a_store_has_its_rows_and_positions(store: Path) -> None:
    with contextlib.closing(RocksDbStore(store, read_only=True)) as opened:
        assert opened.identity == SERVING["identity"]
        assert opened.positions() == SERVING["positions"]
        assert opened.verify() == {table: len(SERVING["rows"][table]) for table in opened.dims}
        for table in SERVING["rows"]:
            assert rows_of(opened, table) == recorded_rows(table)
            assert opened.size(table) == len(SERVING["rows"][table])
    assert update_member(store) == SERVING["update_member"]


def test_a_store_that_is_written_to_goes_on_from_its_positions(store: Path) -> None:
    keys, rows = np.array([1], np.int64), np.full((1, 8), 5.0, np.float32)
    with contextlib.closing(RocksDbStore(store)) as opened:
        for log, offset in SERVING["positions"].items():
            assert not opened.apply("users", keys, rows, (log, offset))
            assert opened.apply("users", keys, rows, (log, offset + 1))
    with contextlib.closing(RocksDbStore(store, read_only=True)) as opened:
        assert opened.positions() == {log: offset + 1 for log, offset in SERVING["positions"].items()}
        assert rows_of(opened, "users") == {**recorded_rows("users"), "1": [5.0] * 8}


def test_an_update_log_has_its_messages() -> None:
    log = LogDirectory(Path("serving/updates"))
    expected = SERVING["log"]
    assert (log.identity(), log.partitions) == (expected["identity"], expected["partitions"])
    topics = [Topic(SERVING["model"], table) for table in sorted(SERVING["rows"])]
    assert log.topics() == topics
    with contextlib.closing(log), contextlib.closing(log.source(None, topics)) as source:
        deliveries = read_all(source, sum(expected["ends"].values()))
        ends = {f"{at.table}/{at.partition}": source.last_offset(at) + 1 for at in source.assigned()}
    assert ends == expected["ends"]
    assert delivered_updates(deliveries) == recorded_updates(expected["updates"])


def test_consumer_groups_of_older_versions_are_ignored() -> None:
    with contextlib.closing(LogDirectory(Path("serving/updates"))) as log:
        assert log.readers() == []


def test_level_1s_saved_keys_are_read(store: Path) -> None:
    found = read_keys([store / "cache_keys.safetensors"])
    assert {table: keys.tolist() for table, keys in found.items()} == SERVING["cache_keys"]
    assert all(SERVING["cache_keys"].values())


def test_a_server_knows_its_name_as_a_reader(store: Path) -> None:
    config = HierarchyConfig.from_toml(Path("serving/tiers.toml")).update_source
    node = f"{socket.gethostname()}:{store.resolve()}:{SERVING['update_member']}"
    digest = hashlib.blake2b(node.encode(), digest_size=6).hexdigest()
    assert reader_of_store(config.group, SERVING["model"], store) == f"hebe.{SERVING['model']}.{digest}"


def test_a_server_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """As warm as it was, with the store as it was left. In another place it is another group, which begins with all of
    the log: it goes on after the store's positions."""
    monkeypatch.chdir("serving")
    config = HierarchyConfig.from_toml(Path("tiers.toml"))
    model = LoadedModel.load("models", SERVING["model"], options=LoadOptions(hierarchy=config), start=False)
    behind = sum(SERVING["lag"].values())
    try:
        assert model.hierarchy.tiers is not None
        cache = model.hierarchy.tiers.cache
        for table, keys in SERVING["cache_keys"].items():
            assert set(cache.keys_by_use(table).tolist()) == set(keys)
        model.start()
        end_s = time.monotonic() + PATIENCE_S
        [statistics] = model.update_statistics.values()
        while statistics.messages < behind and time.monotonic() < end_s:
            time.sleep(0.05)
            [statistics] = model.update_statistics.values()
    finally:
        model.close()
    assert (statistics.messages, statistics.rows, statistics.duplicates) == (behind, 3, 0)
    assert (statistics.gaps, statistics.poison, statistics.last_error) == (0, 0, None)
    [last] = SERVING["log"]["updates"][-1:]
    newest = dict(zip(map(str, last["keys"]), last["rows"], strict=True))
    with contextlib.closing(RocksDbStore(Path("stores", SERVING["model"], "1"), read_only=True)) as opened:
        assert rows_of(opened, "users") == {**recorded_rows("users"), **newest}
        assert rows_of(opened, "ads") == recorded_rows("ads")


# A profile and its journal


def test_a_profile_is_read() -> None:
    profile = read_server_profile(Path("profiles/served.json"))
    assert json.loads(json.dumps(profile.to_dict())) == PROFILES["profile"]
    assert to_dict(profile.configuration) == PROFILES["profile"]["efficiency"]["configuration"]


def test_a_server_starts_by_a_profile() -> None:
    subject = PROFILES["profile"]["subject"]
    loaded = LoadOptions().words()
    assert loaded == PROFILES["loaded"] == subject["loaded"]
    served = configurations_to_serve(
        Path("serving/models"), [Path("profiles/served.json")], loaded, subject["server"], subject["layout"]
    )
    assert list(served) == [subject["model"]]
    assert to_dict(served["served"].lanes) == PROFILES["profile"]["efficiency"]["configuration"]
    assert served["served"].efficiency.qps == PROFILES["profile"]["efficiency"]["qps"]


def test_profiles_of_models_that_are_read_through_tiers_still_fit() -> None:
    """The words hold a checksum of the configuration's `repr`: classes and fields with other names change it."""
    hierarchy = HierarchyConfig.from_toml(Path("profiles/tiers.toml"))
    assert LoadOptions(hierarchy=hierarchy).words() == PROFILES["loaded_with_tiers"]


def test_a_plan_is_made_of_a_profile(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("profiles")
    made = command(
        capsys, "plan", "pool", "served.json", "--prices", "prices.csv", "--budget", "2", "--sla-ms", "500", "--sizes",
        "fixed:8", "--no-simulate", "--plan", "plan.toml",
    )  # fmt: skip
    same(made, PROFILES["plan"])
    assert read_pool_plan(Path("plan.toml")).counts == {PROFILES["profile"]["server"]["name"]: 4}


def test_a_journal_answers_what_was_measured() -> None:
    subject = read_server_profile(Path("profiles/served.json")).subject
    lines = PROFILES["journal"]
    runs = [line for line in lines if "configuration" in line]
    points = [line["point"] for line in lines if "point" in line]
    times = [line["times"] for line in lines if "times" in line]
    assert runs
    assert points
    assert times
    with open_journal(Path("profiles/journal"), subject) as journal:
        assert journal.recorded == len(lines)
        ask, scale = journal.evaluating(never), journal.scaling(never)
        for run in runs:
            reached = ask(from_dict(run["configuration"]))
            assert (reached.qps, reached.power_watts) == (run["qps"], run["power_watts"])
        assert (journal.answered, journal.measured) == (len(runs), 0)
        for point in points:
            assert scale(from_dict(point["configuration"]), point["cache_ways"]).qps == point["qps"]
        for timed in times:
            [lane] = from_dict(timed["lane"])
            answered = journal.timing(never)(lane, timed["batch_sizes"])
            found = {str(stage): profile.to_dict() for stage, profile in answered.items()}
            assert json.loads(json.dumps(found)) == timed["stages"]
        assert len(journal.disturbances) == len([line for line in lines if "disturbance" in line])
    assert len(Path("profiles/journal/evaluations.jsonl").read_text().splitlines()) == len(lines)


# Plans


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_is_simulated_as_when_it_was_written(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = PLANS[plan]
    with contextlib.chdir("plans"):
        assert plan_kind(Path(plan)) == expected["content"]["kind"]
        same(command(capsys, "simulate", *expected["options"], "--plan", plan), expected["simulated"])


def test_a_pools_plan_is_read() -> None:
    plan, expected = read_pool_plan(Path("plans/pool.toml")), PLANS["pool.toml"]["content"]
    assert plan.counts == {each["server_type"]: each["count"] for each in expected["server"]}
    same(dict(plan.predicted), expected["predicted"])
    assert plan.sla.latency_ms == expected["sla"]["latency_ms"]


def test_a_days_plan_is_read() -> None:
    plan, expected = read_provisioning_plan(Path("plans/day.toml")), PLANS["day.toml"]["content"]
    assert plan.models == tuple(expected["over_provision_rates"])
    assert plan.server_types == tuple(each["server_type"] for each in expected["server"])
    for at, interval in enumerate(expected["interval"]):
        for model, name in enumerate(plan.models):
            servers = [interval["servers"][name].get(kind, 0) for kind in plan.server_types]
            assert plan.counts[at, model].tolist() == servers
            assert plan.load_qps[at, model] == interval["load_qps"][name]
            assert plan.capacity_qps[at, model] == pytest.approx(interval["capacity_qps"][name])


def test_a_plan_of_shared_servers_is_read() -> None:
    plan, expected = read_colocation_plan(Path("plans/shared.toml")), PLANS["shared.toml"]["content"]
    groups = [
        (
            group.servers,
            [(each.model, each.workers, each.cache_ways, each.qps) for each in group.tenants],
        )
        for group in plan.groups
    ]
    assert groups == [
        (
            group["servers"],
            [(each["model"], each["workers"], each["cache_ways"], each["qps"]) for each in group["tenant"]],
        )
        for group in expected["group"]
    ]


# What `hebe estimate` hands to the other commands


def test_estimates_are_read() -> None:
    expected, place = EXPECTED["estimates"], Path("estimates")
    server = read_server_spec(place / "server.toml")
    assert {name: getattr(server, name) for name in expected["server.toml"]} == expected["server.toml"]
    found = [each.to_dict() for each in read_efficiency(place / "efficiency.toml", {})]
    same(found, expected["efficiency.toml"]["efficiency"])
    for profile in expected["service_times.toml"]["profile"]:
        times = read_service_times([place / "service_times.toml"], profile["model"])
        assert times.workers == {"my-server": profile["workers"]}
        assert times.table.types == ("my-server",)
        assert times.estimated == {"my-server"}
    [shared] = expected["server-my-server.toml"]["server"]
    resources = read_shared_server(place / "server-my-server.toml")
    assert {name: getattr(resources, name) for name in shared if name != "server_type"} == {
        name: value for name, value in shared.items() if name != "server_type"
    }
    profiles = read_scalability(place / "scalability-my-server.toml", resources)
    same([profile.to_dict() for profile in profiles], expected["scalability-my-server.toml"]["scalability"])


# HugeCTR's tables


@pytest.fixture
def hierarchy(files: Path) -> Path:
    """The configuration, for where the copy lies."""
    file = files / "hps" / "hebe.toml"
    file.write_text(file.read_text().replace(HPS["folder"], str(files / "hps")))
    return file


def test_a_configuration_of_hps_is_read(hierarchy: Path, files: Path) -> None:
    config = HierarchyConfig.from_toml(hierarchy)
    recorded = json.loads(json.dumps(HPS["hierarchy"]).replace(HPS["folder"], str(files / "hps")))
    assert tomllib.loads(hierarchy.read_text()) == recorded
    for part, held in (("volatile_db", config.volatile_db), ("persistent_db", config.persistent_db)):
        assert {name: getattr(held, name) for name in recorded[part]} == recorded[part]
    own = config.models["wdl"]
    assert {name: getattr(own, name) for name in recorded["models"]["wdl"]} == recorded["models"]["wdl"]
    assert [each.name for each in config.tables["wdl"]] == list(HPS["tables"])


def test_tables_of_hps_are_read_out_of_their_store_alone(hierarchy: Path, files: Path) -> None:
    for table in files.glob("hps/*.model"):
        shutil.rmtree(table)
    with contextlib.closing(hebe.HPS(hierarchy)) as tables:
        for name, expected in HPS["tables"].items():
            found = np.asarray(tables.lookup(np.array(expected["keys"], np.int64), "wdl", name))
            np.testing.assert_array_equal(found.reshape(len(expected["keys"]), -1), np.array(expected["rows"], "f4"))


def test_the_checksums_of_hps_files_are_those_of_the_store(hierarchy: Path) -> None:
    """With the files' times and places on this disk they answer for the files, which are not read again."""
    tables = find_tables(HierarchyConfig.from_toml(hierarchy), "wdl")
    assert {name: source.checksum() for name, source in tables.sources.items()} == HPS["checksums"]
    file = Path("hps/stores/wdl/1.files.json")
    known = json.loads(file.read_text())
    for name, source in tables.sources.items():
        assert list(known[name]) == [*source.marks, "checksum"]
        known[name] |= {part: list(mark) for part, mark in source.marks.items()}
    file.write_text(json.dumps(known))
    read: list[int] = []
    assert tables.identity(lambda done, _total: read.append(done)) == HPS["identity"]
    assert read == []


# Figures and parts of studies


def test_figures_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    expected = EXPECTED["studies"]["figures"]
    assert FigureFile.read(Path("studies/figures/recorded.json")).to_dict() == expected
    shown = command(capsys, "figures", "studies/figures")
    assert [each["name"] for each in shown["figures"]] == [each["name"] for each in expected["figures"]]
    assert [each["met"] for each in shown["figures"]] == [True, None]


def test_a_part_of_a_study_is_not_measured_again() -> None:
    expected = EXPECTED["studies"]
    parts = KeptParts(Path("studies/recorded.parts"), expected["of"])
    part = parts.part("dlrm-rmc1", never, Measured.from_dict)
    assert part.sla.latency_ms == expected["part"]["sla"]["latency_ms"]
    assert part.gain is not None
    assert part.gain.total == pytest.approx(1.8)
    assert list(part.best_qps) == expected["part"]["best_qps"]
    assert parts.earlier_s > 0
