"""How versions and loads end: replaced, unloaded, given up since the server stops."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hebe.embeddings.store import StoreError
from hebe.models.catalog import entry
from hebe.serving.hosting import model_host, stored_models
from hebe.serving.hosting.model_host import HostOptions, ModelHost
from hebe.serving.requests.errors import LoadFailed, ModelNotReady, UnknownModel

from .running_model import Running


async def test_a_load_that_a_stop_breaks_off_has_not_failed(monkeypatch):
    def load(*_, progress, **__):
        host.begin_shutdown()
        progress(1, 2)

    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1,)})
    monkeypatch.setattr(model_host.LoadedModel, "load", load)
    host = ModelHost(Path("models"), HostOptions(workers=1))
    with capture_logs() as lines, pytest.raises(LoadFailed, match="the server stopped while it was being loaded"):
        await host.load("wnd")
    assert [line["event"] for line in lines] == ["loading model"]
    assert host.load_failures == {"wnd": 0}


async def test_a_model_that_catches_up_with_updates_ends_it_with_the_server(monkeypatch):
    closed = []

    class Loaded:
        spec = entry("wnd", scale=1e-4)

        def start(self, go_on):
            go_on()
            host.begin_shutdown()
            go_on()

        def close(self):
            closed.append(0)

    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1,)})
    monkeypatch.setattr(model_host.LoadedModel, "load", lambda *_, **__: Loaded())
    host = ModelHost(Path("models"), HostOptions(workers=1))
    with pytest.raises(LoadFailed, match="the server stopped while it was being loaded"):
        await host.load("wnd")
    assert closed == [0]


async def test_unloading_waits_for_the_version_that_was_replaced_too(monkeypatch):
    """Whose admitted queries may take long: until then its memory is not back."""
    goes_on = threading.Event()

    class Version(Running):
        workers, closed = 1, False

        def __init__(self, version):
            super().__init__()
            self.version = version

        def close(self):
            self.closed = self.version == 2 or goes_on.wait(60.0)

    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1, 2)})
    monkeypatch.setattr(model_host.ModelHost, "_open", lambda *_: newer)
    monkeypatch.setattr(model_host.ModelHost, "_answer_one", lambda *_: asyncio.sleep(0))
    host, older, newer = ModelHost(Path("models"), HostOptions(workers=1)), Version(1), Version(2)
    host._hosted["wnd"] = older
    await host.load("wnd", 2)
    unload = asyncio.ensure_future(host.unload("wnd"))
    done, _ = await asyncio.wait({unload}, timeout=0.05)
    assert (done, host.entries[0].state) == (set(), "UNLOADING")
    goes_on.set()
    await asyncio.wait_for(unload, 30.0)
    assert (older.closed, host.entries[0].state) == (True, "UNAVAILABLE")


class Unclosable(Running):
    """As one whose thread cannot be joined."""

    workers = 1

    def close(self):
        raise RuntimeError("it cannot be closed")


async def test_a_model_that_cannot_be_closed_is_out_and_the_index_says_why():
    host = ModelHost(Path("models"), HostOptions(workers=1))
    host._hosted["wnd"] = Unclosable()
    with capture_logs() as lines:
        await host.unload("wnd")
    [left] = host.entries
    reason = "RuntimeError: it cannot be closed"
    assert (left.state, left.reason) == ("UNAVAILABLE", f"unloaded, but not all that it held is given back: {reason}")
    assert (lines[0]["event"], lines[0]["reason"]) == ("model not closed", reason)
    await host.close()


async def test_a_stop_goes_on_past_a_model_that_cannot_be_closed():
    closed = []

    class Other(Running):
        def close(self):
            closed.append(0)

    host = ModelHost(Path("models"), HostOptions(workers=1))
    host._hosted.update(wnd=Unclosable(), other=Other())
    with capture_logs() as lines:
        await host.close()
    assert closed == [0]
    assert [line["event"] for line in lines] == ["model not closed"]


class OneOfThree:
    """A start at which `broken` cannot be loaded, `wnd` can, and `last` has its turn after that: `unload` is called as
    it waits for it.
    """

    def __init__(self, monkeypatch):
        self.host = ModelHost(Path("models"), HostOptions(workers=1))
        self.refused = None
        versions = {"broken": (2,), "wnd": (1,), "last": (1,)}
        monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: versions)
        monkeypatch.setattr(model_host.ModelHost, "_open", self._open)
        monkeypatch.setattr(model_host.ModelHost, "_answer_one", self._answer_one)

    def _open(self, name, *_):
        if name == "broken":
            raise LoadFailed("its files are damaged")
        model = Running()
        model.workers, model.ready = 1, True
        return model

    async def _answer_one(self, _model):
        if self.refused is None:
            with pytest.raises(ModelNotReady, match="waits for its turn to be loaded") as self.refused:
                await self.host.unload("last")


async def test_a_model_that_could_not_be_loaded_is_given_up_by_unloading_it(monkeypatch):
    """The server is then ready without it; by nothing that is refused does it become so."""
    start = OneOfThree(monkeypatch)
    host = start.host
    await host.load_all()
    assert start.refused is not None
    for name in ("nobody", "brokem"):
        with pytest.raises(UnknownModel, match=f"model '{name}' is not loaded"):
            await host.unload(name)
    assert [name for name in ("broken", "wnd", "last") if host.wants(name)] == ["broken", "wnd", "last"]
    assert not host.ready
    await host.unload("broken")
    given_up = next(entry for entry in host.entries if entry.name == "broken")
    assert (given_up.state, given_up.version, given_up.reason) == ("UNAVAILABLE", 2, "unloaded")
    assert (host.ready, host.wants("broken")) == (True, False)
    with pytest.raises(UnknownModel, match="model 'broken' is not loaded"):
        await host.unload("broken")
    await host.close()


@pytest.mark.parametrize("end", ["answered", "the server stops", "a worker is lost"])
async def test_the_version_before_answers_what_it_admitted_however_long_that_takes(monkeypatch, end):
    class Version(Running):
        workers, closed = 1, False

        def close(self):
            self.closed = True

    monkeypatch.setattr(model_host, "_LOOK_S", 0.001)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1, 2)})
    monkeypatch.setattr(model_host.ModelHost, "_open", lambda *_: Version())
    monkeypatch.setattr(model_host.ModelHost, "_answer_one", lambda *_: asyncio.sleep(0))
    host, older = ModelHost(Path("models"), HostOptions(workers=1)), Version()
    older.idle = False
    host._hosted["wnd"] = older
    await host.load("wnd", 2)
    await asyncio.sleep(0.05)
    assert (older.refuses, older.closed) == (True, False)
    match end:
        case "answered":
            older.idle = True
        case "the server stops":
            host.begin_shutdown()
        case "a worker is lost":
            older.runs = False
    async with asyncio.timeout(30.0):
        while not older.closed:
            await asyncio.sleep(0.001)
    await host.close()


class Loaded:
    """Tables in memory, without workers; `reach` is told how far the load has come."""

    spec, tiers_state = entry("wnd", scale=1e-4), None

    def __init__(self, reach):
        self.reach = reach

    def start(self, _go_on):
        self.reach("updates applied")

    def check_level_3(self):
        pass

    def close(self):
        self.reach("tables freed")


async def test_a_model_whose_warm_up_met_damaged_rows_is_not_served_and_frees_what_it_has(monkeypatch):
    reached = []

    class Damaged(Loaded):
        def check_level_3(self):
            raise StoreError("persistent_db has rows that cannot be read: block 7 of /rows/1.sst")

    class Driver:
        def __init__(self, *_, **__):
            reached.append("workers warmed up")

        def close(self):
            reached.append("workers ended")

    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1,)})
    monkeypatch.setattr(model_host.LoadedModel, "load", lambda *_, **__: Damaged(reached.append))
    monkeypatch.setattr(model_host, "NodeDriver", Driver)
    host = ModelHost(Path("models"), HostOptions(workers=1))
    with pytest.raises(LoadFailed, match="block 7 of /rows/1"):
        await host.load("wnd")
    assert reached == ["updates applied", "workers warmed up", "workers ended", "tables freed"]
    assert not host.hosted


@pytest.mark.parametrize("last", [1, 2, 3])
async def test_a_load_that_a_stop_breaks_off_frees_what_it_has(monkeypatch, last):
    """At the next step, whichever it is at."""
    reached = []

    def reach(step):
        reached.append(step)
        if len(reached) == last:
            host.begin_shutdown()

    class Driver:
        def __init__(self, *_, **__):
            reach("workers warmed up")

        def close(self):
            reach("workers ended")

    def load(*_, **__):
        reach("tables read")
        return Loaded(reach)

    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1,)})
    monkeypatch.setattr(model_host.LoadedModel, "load", load)
    monkeypatch.setattr(model_host, "NodeDriver", Driver)
    host = ModelHost(Path("models"), HostOptions(workers=1))
    with pytest.raises(LoadFailed, match="the server stopped while it was being loaded"):
        await host.load("wnd")
    steps = ["tables read", "updates applied", "workers warmed up"][:last]
    assert reached == [*steps, *["workers ended"][: last == 3], "tables freed"]
    with pytest.raises(LoadFailed, match="the server stopped"):
        await host.load("wnd")
    assert reached[-1] == "tables freed", "none is begun any more"


async def test_a_load_by_request_that_ends_while_the_server_stops_leaves_no_model(monkeypatch):
    """Nobody cancels it: what was begun is finished even if the client goes away."""
    opens, goes_on, closed = asyncio.Event(), threading.Event(), []

    class Version(Running):
        workers = 1

        def close(self):
            closed.append(self)

    def just_before_the_stop(*_):
        loop.call_soon_threadsafe(opens.set)
        goes_on.wait(60.0)
        return Version()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1,)})
    monkeypatch.setattr(model_host.ModelHost, "_open", just_before_the_stop)
    monkeypatch.setattr(model_host.ModelHost, "_answer_one", lambda *_: asyncio.sleep(0))
    host = ModelHost(Path("models"), HostOptions(workers=1))
    load = asyncio.ensure_future(host.load("wnd"))
    await opens.wait()
    closing = asyncio.ensure_future(host.close())
    await asyncio.sleep(0.05)
    assert not closing.done(), "it waits for the load"
    goes_on.set()
    await asyncio.wait_for(closing, 30.0)
    assert (len(closed), host.hosted) == (1, ())
    with pytest.raises(LoadFailed, match="the server stopped"):
        await load


async def test_a_stop_does_not_wait_for_ever_for_a_load_that_hangs(monkeypatch):
    opens, goes_on = asyncio.Event(), threading.Event()

    def hang(*_):
        loop.call_soon_threadsafe(opens.set)
        goes_on.wait(60.0)
        raise OSError(5, "Input/output error")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(model_host, "_LOADS_PATIENCE_S", 0.01)
    monkeypatch.setattr(stored_models, "stored_versions", lambda _directory: {"wnd": (1,)})
    monkeypatch.setattr(model_host.ModelHost, "_open", hang)
    host = ModelHost(Path("models"), HostOptions(workers=1))
    load = asyncio.ensure_future(host.load("wnd"))
    try:
        await opens.wait()
        await asyncio.wait_for(host.close(), 30.0)
        assert not load.done()
    finally:
        goes_on.set()
    with pytest.raises(LoadFailed, match="Input/output error"):
        await load
