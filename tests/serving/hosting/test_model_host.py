"""What the model host decides before it loads anything; the rest is tests/integration's."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from structlog.testing import capture_logs

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.machine import this_server
from hebe.machine.cgroups import ControlGroupLimits
from hebe.machine.pinning import available_cores, pinned
from hebe.models.catalog import entry
from hebe.query import Query
from hebe.runtime.loaded_model import LoadOptions
from hebe.serving.hosting import dedicated_thread as own_thread
from hebe.serving.hosting import model_host, stored_models
from hebe.serving.hosting.model_host import HostOptions, ModelHost
from hebe.serving.hosting.repository_control import RepositoryControl
from hebe.serving.http.content_coding import decompress
from hebe.serving.requests.errors import LoadFailed, ModelNotReady, ServeError, UnknownModel, as_request_error, release
from tests.serving.profiled import PIPELINE, served

from .running_model import Running, whole


@pytest.mark.parametrize(
    ("options", "cores"),
    [
        ({}, [(6,), (5,), (4,), (3,), (2,), (1,), (0,)]),
        ({"worker_cores": 3}, [(4, 5, 6), (1, 2, 3)]),
        ({"worker_cores": 5}, [(2, 3, 4, 5, 6)]),
        ({"workers": 2}, [(6,), (5,)]),
    ],
)
def test_by_default_there_are_as_many_workers_as_the_cores_make(monkeypatch, options, cores):
    monkeypatch.setattr(model_host, "available_cores", lambda: tuple(range(7)))
    assert ModelHost(Path("models"), HostOptions(**options)).worker_cores == cores


@pytest.mark.parametrize(
    ("options", "cores"),
    [({}, [(6,), (5,)]), ({"worker_cores": 3}, [(4, 5, 6)]), ({"workers": 3}, [(6,), (5,), (4,)])],
)
def test_by_default_there_are_no_more_than_the_control_group_has_time_for(monkeypatch, options, cores):
    monkeypatch.setattr(model_host, "available_cores", lambda: tuple(range(7)))
    monkeypatch.setattr(this_server, "control_group_limits", lambda *_: ControlGroupLimits(cores=2.5))
    assert ModelHost(Path("models"), HostOptions(**options)).worker_cores == cores


@pytest.mark.parametrize(
    ("options", "threads"),
    [({}, 1), ({"workers": 2}, 2), ({"workers": 2, "worker_threads": 1}, 1), ({"worker_threads": 2}, 2)],
)
def test_workers_have_two_threads_where_the_front_end_has_other_cores(monkeypatch, options, threads):
    monkeypatch.setattr(model_host, "available_cores", lambda: tuple(range(7)))
    assert ModelHost(Path("models"), HostOptions(**options)).worker_threads == threads


@pytest.mark.parametrize(
    ("asked", "lanes", "threads"),
    [
        (1, whole(2, 1), 1),
        (2, whole(1, 1), 2),
        (2, whole(2, 3), 2),
        (None, whole(2, 1), 2),
        (None, whole(2, 3), 1),
        (2, PIPELINE, 1),
    ],
)
async def test_threads_that_were_asked_for_outlive_a_new_split_and_the_next_version(monkeypatch, asked, lanes, threads):
    """For both of which the rule holds where none were asked for, and a pipeline's workers have one."""
    seen = []

    def load(_directory, _name, _version, _options, threads, **_):
        seen.append(threads)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_host, "available_cores", lambda: tuple(range(9)))
    monkeypatch.setattr(own_thread, "pin_thread", lambda *_: None)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1, 2)})
    monkeypatch.setattr(model_host.LoadedModel, "load", load)
    host = ModelHost(Path("models"), HostOptions(workers=2, worker_threads=asked))
    host._hosted["wnd"] = model = Running()
    await host.split_anew("wnd", lanes)
    [placed] = model.placed
    assert (placed.threads, model.configuration) == (threads, lanes)
    with pytest.raises(LoadFailed):
        await host.load("wnd", 2)
    assert seen == [len(placed.workers) * threads], "tables are read for as many threads as will look up in them"


async def test_new_workers_that_fail_too_are_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1,)})
    host = ModelHost(Path("models"), HostOptions(workers=1))
    host._hosted["wnd"] = model = Running(fault=OSError(5, "Input/output error"))
    model.runs, model.trouble = False, "1 of its workers have ended"
    host._index.put("wnd", 1, "READY")
    with pytest.raises(LoadFailed, match=r"new workers fail, too: .*Input/output error; unload the model, then load"):
        await host.load("wnd")
    [entry] = host.entries
    assert (entry.state, "new workers fail" in entry.reason) == ("READY", True)
    assert host.hosted == (model,)


async def test_a_configuration_of_its_own_decides_the_threads_too(monkeypatch):
    monkeypatch.setattr(model_host, "available_cores", lambda: tuple(range(9)))
    configurations = {"wnd": served(lanes=whole(1, 1))}
    host = ModelHost(Path("models"), HostOptions(workers=2, worker_threads=1, configurations=configurations))
    for name, threads in (("wnd", 2), ("lone", 1)):
        model = host._hosted[name] = Running()
        await host.split_anew(name, whole(1, 1, 16))
        assert model.placed[0].threads == threads


async def test_whatever_fails_by_request_is_told_each_time_and_counted_with_its_time(monkeypatch):
    """Where malformed queries come at a rate, requests that are refused have no line in the log."""

    def load(*_, **__):
        raise OSError(28, "No space left on device")

    now_s = [100.0]
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1, 2), "lone": (3,)})
    monkeypatch.setattr(model_host, "stored_identity", lambda *_: "ab12")
    monkeypatch.setattr(model_host.LoadedModel, "load", load)
    host = ModelHost(Path("models"), HostOptions(workers=1))
    host.clock = lambda: now_s[0]
    host._hosted["wnd"] = Running(fault=OSError(5, "Input/output error"))
    host._index.put("wnd", 1, "READY")
    told = []
    for number, ask in enumerate(
        (
            lambda: host.load("lone"),
            lambda: host.load("wnd"),
            lambda: host.load("wnd", 1),
            lambda: host.split_anew("wnd", PIPELINE),
            lambda: host.load("wnd"),
        )
    ):
        now_s[0] = 100.0 + number
        with capture_logs() as lines, pytest.raises(LoadFailed):
            await ask()
        [line] = [line for line in lines if line["log_level"] == "error"]
        told.append((line["event"], line["model"], line["version"], line["reason"].partition("] ")[2]))
    assert told == [
        ("load failed", "lone", 3, "No space left on device"),
        ("load failed", "wnd", 2, "No space left on device"),
        ("refresh failed", "wnd", 1, "Input/output error"),
        ("new split failed", "wnd", 1, "Input/output error"),
        ("load failed", "wnd", 2, "No space left on device"),
    ]
    assert host.load_failures == {"lone": 1, "wnd": 4}
    assert [(each.state, each.since_s) for each in host.entries] == [("UNAVAILABLE", 100.0), ("READY", 104.0)]


async def test_that_the_repository_cannot_be_read_is_told_too(monkeypatch):
    """Of names that nobody has checked then, none is counted."""

    def unreadable(_directory):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(stored_models, "stored_versions", unreadable)
    host = ModelHost(Path("models"), HostOptions(workers=1))
    with capture_logs() as lines, pytest.raises(LoadFailed, match="Permission denied"):
        await host.load("whoever")
    assert [line["event"] for line in lines] == ["load failed"]
    assert host.load_failures == {}


@pytest.mark.parametrize(
    ("stored", "lanes", "front_end"),
    [
        (("ranker",), PIPELINE, (0, 1)),
        (("ranker", "lone"), PIPELINE, (0, 1, 2, 3)),
        ((), PIPELINE, (0, 1)),
        (("ranker",), (replace(PIPELINE[0], dense_workers=3),), (0, 1, 2, 3)),
    ],
)
def test_the_front_end_has_the_cores_that_no_models_workers_take(monkeypatch, stored, lanes, front_end):
    monkeypatch.setattr(model_host, "available_cores", lambda: tuple(range(4)))
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: dict.fromkeys(stored, (1,)))
    options = HostOptions(configurations={"ranker": served(lanes=lanes)})
    assert ModelHost(Path("models"), options).front_end == front_end


def test_a_configuration_for_more_cores_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(model_host, "available_cores", lambda: (0,))
    with pytest.raises(ServeError, match="model ranker: the configuration takes 2 cores, but only 1 may be used here"):
        ModelHost(Path("models"), HostOptions(configurations={"ranker": served()}))


async def test_a_load_that_failed_is_let_go_of_without_the_garbage_collector(monkeypatch):
    """Its traceback holds what was half loaded: files, mapped tables."""

    class HalfLoaded:
        pass

    held = []

    def fail(*_, **__):
        half_loaded = HalfLoaded()
        held.append(weakref.ref(half_loaded))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_host.LoadedModel, "load", fail)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"ranker": (1,)})
    host = ModelHost(Path("models"), HostOptions())
    control = RepositoryControl(host)
    gc.disable()
    try:
        error = None
        try:
            await control.load("ranker", {})
        except LoadFailed as fault:
            error = as_request_error(fault)
        assert "No space left on device" in error.message
        release(error)
        for _ in range(100):  # the load's threads end
            await asyncio.sleep(0.05)
            if held[0]() is None:
                break
        assert held[0]() is None
    finally:
        gc.enable()
    assert [entry.state for entry in await host.index()] == ["UNAVAILABLE"]


async def test_loads_under_way_hold_up_nothing_else(monkeypatch):
    """Neither a query that is packed, nor an unload, however many they are."""
    names = [f"model{number}" for number in range(40)]
    goes_on = threading.Event()
    at_work = []

    def load(*_, **__):
        at_work.append(1)
        goes_on.wait(60.0)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_host.LoadedModel, "load", load)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: dict.fromkeys(names, (1,)))
    host = ModelHost(Path("models"), HostOptions(workers=1))
    host._hosted["wnd"] = Running()
    loads = [asyncio.ensure_future(host.load(name)) for name in names]
    try:
        data = memoryview(bytes(200_000))
        while len(at_work) < min(32, os.cpu_count() + 4):  # as many as `to_thread` has threads
            await asyncio.sleep(0.005)
        assert await asyncio.wait_for(decompress(gzip.compress(data), "gzip", 1 << 20), 30.0) == data
        await asyncio.wait_for(host.unload("wnd"), 30.0)
        assert not any(load.done() for load in loads)
    finally:
        goes_on.set()
    outcomes = await asyncio.gather(*loads, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {LoadFailed}


async def test_a_long_load_says_how_far_it_has_come(monkeypatch):
    now_s = [0.0]

    def slow(*_, progress, **__):
        for done in range(0, 101, 10):
            now_s[0] += 2.0
            progress(done, 100)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_host.LoadedModel, "load", slow)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"ranker": (1,)})
    host = ModelHost(Path("models"), HostOptions())
    host.clock = lambda: now_s[0]
    with capture_logs() as lines, pytest.raises(LoadFailed):
        await host.load("ranker")
    told = [line["done"] for line in lines if line["event"] == "loading model" and "done" in line]
    assert told == ["20% of 100 B", "50% of 100 B", "80% of 100 B"]


async def test_a_model_whose_batches_fail_is_tried_until_one_runs(monkeypatch):
    """A balancer sends it no query that could."""
    monkeypatch.setattr(model_host, "_TRY_FAILING_S", 0.01)
    monkeypatch.setattr(model_host, "_ANSWER_PATIENCE_S", 0.05)
    healed = asyncio.Event()

    class Failing:
        spec, version, fails, asked = entry("wnd", scale=1e-4), 1, True, 0

        def warm_up_query(self):
            return Query(1, 1, 0.0)

        async def infer(self, query):
            assert query.deadline_s > query.arrival_s > 0
            self.asked += 1
            if self.asked == 1:
                raise OSError(5, "Input/output error")
            if self.asked == 2:
                await asyncio.sleep(100.0)
            self.fails = False
            healed.set()

    class Well(Failing):
        fails = False

    host, failing, well = ModelHost(Path("models"), HostOptions()), Failing(), Well()
    host._hosted = {"failing": failing, "well": well}
    trying = asyncio.ensure_future(host.try_failing())
    await asyncio.wait_for(healed.wait(), 30.0)
    await asyncio.sleep(0.05)
    trying.cancel()
    assert (failing.asked, well.asked) == (3, 0), "one that runs needs no query of ours"


async def test_what_works_beside_queries_may_run_on_all_cores(monkeypatch):
    cores, seen = available_cores(), []

    class Loaded:
        spec = entry("wnd", scale=1e-4)

        def start(self, _go_on):
            seen.append(available_cores())
            raise OSError(28, "No space left on device")

        def close(self):
            seen.append("closed")

    monkeypatch.setattr(model_host.LoadedModel, "load", lambda *_, **__: Loaded())
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"ranker": (1,)})
    host = ModelHost(Path("models"), HostOptions())
    with pinned(cores[:1]), pytest.raises(LoadFailed, match="No space"):
        await host.load("ranker")
    assert seen == [cores, "closed"]


@pytest.mark.parametrize("workers", [0, 1025, 99_999_999])
def test_no_workers_at_all_are_refused_and_so_are_too_many(workers):
    with pytest.raises(ServeError, match=rf"workers is {workers}: must be in 1\.\.1024"):
        HostOptions(workers=workers)


async def test_what_is_not_there_can_neither_be_loaded_nor_unloaded(monkeypatch):
    """Which is told as of any unknown model, and changes nothing."""
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"ranker": (1, 3)})
    host = ModelHost(Path("models"), HostOptions())
    for asked, said in (
        (host.load("nobody"), "repository models has no model 'nobody'"),
        (host.load("ranker", 2), "model ranker has no version 2; the repository has 1, 3"),
        (host.unload("ranker"), "model 'ranker' is not loaded"),
        (host.split_anew("ranker", PIPELINE), "model 'ranker' is not loaded"),
    ):
        with pytest.raises(UnknownModel, match=said):
            await asked
    assert not host.entries


async def test_of_names_that_clients_invent_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"ranker": (1,)})
    host = ModelHost(Path("models"), HostOptions())
    for number in range(100):
        for asked in (host.load, host.unload, lambda name: host.split_anew(name, PIPELINE)):
            with pytest.raises(UnknownModel):
                await asked(f"nobody {number}")
    assert not host._locks
    assert not host._locks_in_use


async def test_work_on_a_model_is_done_one_after_another_however_it_ends():
    """Also where one that waits gives up, and where the last has ended as the next comes."""
    host = ModelHost(Path("models"), HostOptions(workers=1))
    at_work = []
    most = 0

    async def work(fails):
        nonlocal most
        async with host._alone("ranker"):
            at_work.append(fails)
            most = max(most, len(at_work))
            assert host.loading
            await asyncio.sleep(0)
            at_work.remove(fails)
            if fails:
                raise LoadFailed("as it was to")

    tasks = []
    for number in range(12):
        tasks.append(asyncio.ensure_future(work(number % 3 == 0)))
        if number % 2:
            await asyncio.sleep(0)
        if number % 4 == 3:
            tasks[-1].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {type(None), LoadFailed, asyncio.CancelledError}
    assert (most, host.loading, host._locks) == (1, False, {})


async def test_a_model_that_goes_while_the_server_starts_is_a_load_that_failed(monkeypatch):
    stored = iter([{"ranker": (1,)}, {}])
    host = ModelHost(Path("models"), HostOptions())
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: next(stored))
    with capture_logs() as lines, pytest.raises(LoadFailed, match="has no model 'ranker'"):
        await host.load_all()
    assert [entry.state for entry in host.entries] == ["UNAVAILABLE"]
    assert lines == [], "whoever starts the server is told by what is raised"
    assert host.load_failures == {"ranker": 1}


async def test_models_that_cannot_be_loaded_at_the_start_are_told_once_each(monkeypatch):
    def load(_directory, name, *_, **__):
        raise OSError(28, f"No space left on device for {name}")

    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"ranker": (1,), "lone": (2,)})
    monkeypatch.setattr(model_host.LoadedModel, "load", load)
    host = ModelHost(Path("models"), HostOptions(workers=1))
    with capture_logs() as lines, pytest.raises(LoadFailed, match="none of the 2 models"):
        await host.load_all()
    assert [(line["event"], line["model"]) for line in lines if line["log_level"] == "error"] == [
        ("load failed", "ranker"), ("load failed", "lone"),
    ]  # fmt: skip
    assert host.load_failures == {"lone": 1, "ranker": 1}


async def test_a_repository_whose_file_system_hangs_holds_up_no_query(monkeypatch):
    """Nor does one that is long: it is read in a thread, where index and loads wait for each other."""
    at_work, goes_on = threading.Event(), threading.Event()

    def hang(*_):
        at_work.set()
        goes_on.wait(60.0)
        return {"ranker": (1,)}

    host = ModelHost(Path("models"), HostOptions())
    monkeypatch.setattr(stored_models, "stored_versions", hang)
    monkeypatch.setattr(stored_models, "incomplete_versions", lambda *_: hang() and [])
    monkeypatch.setattr(model_host.LoadedModel, "load", lambda *_, **__: hang() and 1 / 0)
    asked = [asyncio.ensure_future(ask) for ask in (host.load_all(), host.index(), host.load("ranker", 2))]
    assert await asyncio.to_thread(at_work.wait, 30.0)
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in asked), "and this goes on"
    goes_on.set()
    failed, listed, missing = await asyncio.gather(*asked, return_exceptions=True)
    assert (type(failed), [entry.name for entry in listed], type(missing)) == (LoadFailed, ["ranker"], UnknownModel)
    await host.close()


async def test_a_model_that_cannot_be_listed_is_one_that_cannot_be_loaded(monkeypatch, tmp_path):
    """And the others are served, as beside any that cannot be loaded."""
    listed = Path.iterdir

    def iterdir(path):
        if path == tmp_path / "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    for name in ("ranker", "secret"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.toml").touch()
    monkeypatch.setattr(Path, "iterdir", iterdir)
    host = ModelHost(tmp_path, HostOptions())
    assert [(each.name, each.version, each.state) for each in await host.index()] == [
        ("ranker", 1, "UNAVAILABLE"), ("secret", 0, "UNAVAILABLE"),
    ]  # fmt: skip
    for version in (None, 1):
        with pytest.raises(LoadFailed, match=r"model secret: .*/secret: cannot be listed: Permission denied"):
            await host.load("secret", version)
    with pytest.raises(LoadFailed, match=r"model ranker: .*/ranker/1/model.toml: truncated"):
        await host.load("ranker")
    [_, told] = await RepositoryControl(host).index(ready_only=False)
    assert (told["name"], told["state"]) == ("secret", "UNAVAILABLE")
    assert "cannot be listed" in told["reason"]


async def test_directories_that_are_no_versions_are_passed_over_and_told(monkeypatch, tmp_path):
    asked = []

    def load(_directory, name, version, *_, **__):
        asked.append((name, version))
        raise OSError(28, "No space left on device")

    (tmp_path / "ranker" / "1").mkdir(parents=True)
    (tmp_path / "ranker" / "9").mkdir()
    host = ModelHost(tmp_path, HostOptions())
    with pytest.raises(LoadFailed, match=r"has no models; make one .*; .*/ranker/1 has no model.toml and"):
        host.stored.check()
    (tmp_path / "ranker" / "1" / "model.toml").touch()
    monkeypatch.setattr(model_host.LoadedModel, "load", load)
    with capture_logs() as lines, pytest.raises(LoadFailed):
        await host.load("ranker")
    assert asked == [("ranker", 1)]
    [told] = [line["reason"] for line in lines if line["event"] == "not a version"]
    assert told.startswith(f"{tmp_path}/ranker/9 has no model.toml")
    with pytest.raises(UnknownModel, match="model ranker has no version 9; the repository has 1"):
        await host.load("ranker", 9)


@pytest.mark.parametrize("threads", [0, 3])
def test_no_more_than_two_threads_each(threads):
    with pytest.raises(ServeError, match=f"worker_threads is {threads}: must be 1 or 2"):
        HostOptions(worker_threads=threads)


async def test_a_configuration_of_tiers_for_a_model_that_there_is_not_is_told(monkeypatch):
    """A warning: the model may come to the repository later."""
    hierarchy = HierarchyConfig.from_mapping({"models": {"rnker": {}, "lone": {}}})
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"ranker": (1,), "lone": (2,)})
    host = ModelHost(Path("models"), HostOptions(load=LoadOptions(hierarchy=hierarchy)))

    async def load(_name, **_):
        raise LoadFailed("not here")

    monkeypatch.setattr(host, "load", load)
    with capture_logs() as lines, pytest.raises(LoadFailed):
        await host.load_all()
    [told] = [line for line in lines if line["log_level"] == "warning"]
    assert told["reason"] == (
        "[models.rnker] is for a model that there is not (did you mean ranker?); there are ranker, lone"
    )


async def test_models_that_wait_for_their_turn_are_being_loaded(monkeypatch):
    """So that who asks for one early is told to come back, and the status names it."""
    seen = []

    async def load(self, name, version=None, **_):  # noqa: ARG001
        seen.append({entry.name: entry.state for entry in self.entries})
        with pytest.raises(ModelNotReady, match=f"model {name} is being loaded"):
            self.find(name)
        raise LoadFailed(f"repository has no model {name!r}")

    monkeypatch.setattr(model_host.ModelHost, "load", load)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"first": (1,), "second": (1, 4)})
    host = ModelHost(Path("models"), HostOptions())
    with pytest.raises(LoadFailed, match="none of the 2 models"):
        await host.load_all()
    assert seen[0] == {"first": "LOADING", "second": "LOADING"}
    assert [(entry.version, entry.state) for entry in host.entries] == [(1, "UNAVAILABLE"), (4, "UNAVAILABLE")]
    assert "has no model 'second'" in host.entries[1].reason


async def test_a_version_beside_one_that_runs_is_rehearsed_where_nobody_waits_for_it(monkeypatch):
    """Its own workers' warm-ups, on the cores of those that answer queries, can then be short."""
    seen = []

    class Loaded:
        spec = entry("wnd", scale=1e-4)

        def start(self, _go_on):
            pass

        def new_executor(self, items):
            return SimpleNamespace(rehearse=items)

        def warm_up(self, rehearse, items):
            niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            seen.append((rehearse, items, niceness, torch.get_num_threads()))

        def close(self):
            pass

    def new_driver(*_, rehearsed, **__):
        seen.append(rehearsed)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_host.LoadedModel, "load", lambda *_, **__: Loaded())
    monkeypatch.setattr(model_host, "NodeDriver", new_driver)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1, 2)})
    host = ModelHost(Path("models"), HostOptions(workers=1, batch_size=96))
    running = Running()
    running.lanes = host._placed.lanes
    running.configuration = tuple(each.lane for each in running.lanes)
    for beside in ({}, {"wnd": running}):
        host._hosted.update(beside)
        with pytest.raises(LoadFailed, match="No space"):
            await host.load("wnd", 2)
    assert seen == [False, (96, 96, 19, 1), True]
