from __future__ import annotations

import asyncio

import pytest

from hebe.serving.errors import InvalidInput, LoadFailed
from hebe.serving.repository_control import RepositoryControl


async def test_a_load_goes_on_when_the_client_has_gone(fake_host):
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended = []

    async def load(name, version):
        begun.set()
        await go_on.wait()
        ended.append((name, version))

    fake_host.load = load
    asking = asyncio.ensure_future(RepositoryControl(fake_host).load("ranker", {}))
    await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert ended == [("ranker", None)]


async def test_failures_reach_the_client(fake_host):
    control = RepositoryControl(fake_host)
    with pytest.raises(LoadFailed, match="no model 'nothing'"):
        await control.load("nothing", {})
    with pytest.raises(LoadFailed, match="not loaded"):
        await control.unload("nothing")


@pytest.mark.parametrize("version", [0, -1, "0", "", "x", "²", 1.5, True, "9" * 5000, 2**31])
async def test_a_version_is_a_whole_number(fake_host, version):
    with pytest.raises(InvalidInput, match="parameter 'version' is"):
        await RepositoryControl(fake_host).load("ranker", {"version": version})


async def test_what_is_listed(fake_host):
    control = RepositoryControl(fake_host)
    await control.unload("lone")
    assert control.index(ready_only=True) == [{"name": "ranker", "version": "1", "state": "READY", "reason": ""}]
    assert [entry["state"] for entry in control.index(ready_only=False)] == ["UNAVAILABLE", "READY"]
    assert control.ready_versions("ranker") == ["1"]
    assert control.ready_versions("lone") == []
