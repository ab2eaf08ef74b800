from __future__ import annotations

import asyncio
import json

import pytest

from hebe.server_configuration import Lane, Placement, to_dict
from hebe.serving.hosting.repository_control import RepositoryControl
from hebe.serving.requests.errors import ErrorKind, InvalidInput, LoadFailed, RequestError, UnknownModel


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
    with pytest.raises(UnknownModel, match="no model 'nothing'"):
        await control.load("nothing", {})
    with pytest.raises(UnknownModel, match="not loaded"):
        await control.unload("nothing")


@pytest.mark.parametrize("version", [20261123171500, "20261123171500", 10**18 - 1])
async def test_a_version_may_be_a_time(fake_host, version):
    asked = []

    async def load(name, version):
        asked.append((name, version))

    fake_host.load = load
    await RepositoryControl(fake_host).load("ranker", {"version": version})
    assert asked == [("ranker", int(version))]


@pytest.mark.parametrize(
    "version", [0, -1, "0", "", "x", "²", 1.5, True, [1], "9" * 5000, "0" * 18 + "1" + "0" * 5000, 10**18]
)
async def test_a_version_is_a_whole_number(fake_host, version):
    with pytest.raises(InvalidInput, match="parameter 'version' is"):
        await RepositoryControl(fake_host).load("ranker", {"version": version})


async def test_an_index_of_a_repository_that_is_away_is_no_fault_of_the_client():
    class Away:
        async def index(self):
            raise LoadFailed("/models: no such directory")

    with pytest.raises(RequestError, match="/models: no such directory") as refused:
        await RepositoryControl(Away()).index(ready_only=False)
    assert refused.value.kind is ErrorKind.UNAVAILABLE


async def test_what_is_listed(fake_host):
    control = RepositoryControl(fake_host)
    await control.unload("lone")
    assert await control.index(ready_only=True) == [{"name": "ranker", "version": "1", "state": "READY", "reason": ""}]
    assert [entry["state"] for entry in await control.index(ready_only=False)] == ["UNAVAILABLE", "READY"]
    assert control.ready_versions("ranker") == ["1"]
    assert control.ready_versions("lone") == []


SETTINGS = to_dict((Lane(Placement.PIPELINE_ON_HOST, 1, 1, 64, 1),))


async def test_a_configuration_is_for_the_version_that_runs(fake_host):
    asked = []

    async def split_anew(name, configuration):
        asked.append((name, configuration))

    fake_host.split_anew = split_anew
    await RepositoryControl(fake_host).load("ranker", {"config": json.dumps(SETTINGS)})
    assert asked == [("ranker", (Lane(Placement.PIPELINE_ON_HOST, 1, 1, 64, 1),))]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"config": json.dumps(SETTINGS), "version": 1}, "give one of them"),
        ({"config": 7}, "must be JSON as text"),
        ({"config": "[" * 5000}, "of at most 4096 characters"),
        ({"config": "[" * 4000}, "parameter 'config'"),
        ({"config": "{"}, "parameter 'config'"),
        ({"config": "[]"}, "must be a JSON object"),
        ({"config": json.dumps({**SETTINGS, "speed": 3})}, "unknown setting 'speed'"),
        ({"config": json.dumps({**SETTINGS, "workers": "many"})}, "workers is 'many'"),
        ({"config": json.dumps({"placement": "model-on-host"})}, "setting 'workers' is missing"),
    ],
)
async def test_a_configuration_that_is_none_is_refused(fake_host, parameters, message):
    with pytest.raises(InvalidInput, match=message):
        await RepositoryControl(fake_host).load("ranker", parameters)
