"""What a server is told before it runs, and of the system that it runs on; the rest is tests/integration's."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hebe.serving import server
from hebe.serving.hosting import model_host
from hebe.serving.hosting.model_host import HostOptions
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.requests.errors import LoadFailed, ServeError
from hebe.serving.server import Server, ServerOptions
from hebe.spec import ServerSpec

from .profiled import served


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tls_certificate": Path("c.pem")}, "tls_certificate is given without tls_key: must be both, or neither"),
        ({"tls_key": Path("k.pem")}, "tls_key is given without tls_certificate: must be both, or neither"),
        ({"api_tokens": "secret"}, "api_tokens is a single text: must be a tuple of them"),
        ({"api_tokens": ("secret", " ")}, "an API token is empty"),
        ({"host": ""}, "host is empty: must be an address or a name of this machine, such as 127.0.0.1, or 0.0.0.0"),
        ({"grpc_port": 8000}, "grpc_port is 8000, as http_port is: must be another"),
        ({"metrics_port": 8001}, "metrics_port is 8001, as grpc_port is: must be another"),
        ({"max_request_bytes": 0}, "max_request_bytes is 0: must be at least 1"),
        ({"max_request_bytes": 2 << 30}, "max_request_bytes is 2147483648: must be at most 2147483647, the largest"),
        ({"max_json_bytes": -1}, "max_json_bytes is -1: must be at least 1"),
        ({"max_bytes_in_flight": 1000}, "max_bytes_in_flight is 1000: must be at least max_request_bytes, 67108864"),
        ({"rate_limit_per_s": -1.0}, r"rate_limit_per_s is -1\.0: must be 0"),
        ({"rate_limit_per_s": math.inf}, "rate_limit_per_s is inf: must be 0"),
        ({"rate_limit_per_s": math.nan}, "rate_limit_per_s is nan: must be 0"),
    ],
)
def test_options_that_would_leave_the_door_open_or_shut(options, says):
    with pytest.raises(ServeError, match=says):
        ServerOptions(**options)


def test_any_free_port_may_be_asked_for_three_times():
    options = ServerOptions(http_port=0, grpc_port=0, metrics_port=0)
    assert (options.http_port, options.grpc_port, options.metrics_port) == (0, 0, 0)


def test_a_host_may_be_written_as_in_urls():
    assert ServerOptions("[::1]").host == "::1"


def test_grpc_takes_the_largest_bound_of_requests_that_may_be_set(serve_with):
    most = ServerOptions(max_request_bytes=(2 << 30) - 1).max_request_bytes
    assert serve_with(limits=HttpLimits(max_request_bytes=most)).grpc.port > 0


@pytest.mark.parametrize(
    ("workers", "worker_cores", "says"),
    [
        (None, 1, None),
        (2, 1, None),
        (1, 2, None),
        (
            9,
            1,
            "9 worker(s) of 1 core(s) take 9 cores, but 2 may be used here: they share these and take turns; 2 such",
        ),
        (
            3,
            2,
            "3 worker(s) of 2 core(s) take 6 cores, but 2 may be used here: they share these and take turns; 1 such",
        ),
    ],
)
def test_workers_without_cores_of_their_own_are_told(workers, worker_cores, says, monkeypatch):
    for module in (server, model_host):
        monkeypatch.setattr(module, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(server, "cores_allowed", len)
    options = ServerOptions(models=HostOptions(workers=workers, worker_cores=worker_cores))
    assert (options.shortage_of_cores() or "None").startswith(str(says))


def test_the_log_says_once_that_workers_share_cores(tmp_path):
    options = ServerOptions(http_port=0, grpc_port=0, metrics_port=0, models=HostOptions(workers=1024))
    with capture_logs() as logged, pytest.raises(LoadFailed, match="has no models"):
        Server(tmp_path, options).start()
    assert [entry["log_level"] for entry in logged if "take turns" in entry["event"]] == ["warning"]


def test_memory_for_requests_follows_their_size():
    assert ServerOptions().bytes_in_flight == 1 << 30
    assert ServerOptions(max_request_bytes=1000).bytes_in_flight == 16_000
    assert ServerOptions(max_request_bytes=1000, max_bytes_in_flight=1000).bytes_in_flight == 1000


def test_a_server_that_does_not_run_is_not_ready_and_can_be_stopped(tmp_path):
    idle = Server(tmp_path)
    assert (idle.ready, idle.hosted) == (False, ())
    idle.stop()
    assert not idle.ready


@pytest.fixture
def open_files_limit(monkeypatch):
    """Sets the soft and the hard limit of open files that this process seems to have."""

    def seem(soft, hard):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))

    monkeypatch.setattr(server, "open_files", lambda: 20)
    return seem


@pytest.mark.parametrize(
    ("soft", "hard", "told"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (2324, 2324, None),
        (1024, 1 << 20, ("info", "soft")),
        (1024, 1024, ("warning", "hard")),
    ],
)
def test_room_for_fewer_connections_than_usual_is_told_with_whose_limit_it_is(open_files_limit, soft, hard, told):
    open_files_limit(soft, hard)
    with capture_logs() as logged:
        room = server._room_for_connections()
    assert (room.http < 1024) == (told is not None)
    lines = [(line["log_level"], line["event"].split()[1], line["http_connections"]) for line in logged]
    assert lines == ([] if told is None else [(*told, room.http)])


@pytest.mark.parametrize(
    ("told", "expected"), [([None, (40.0, 120.0)], (40.0, 120.0)), ([(20.0, 100.0)], None), ([], None)]
)
def test_power_is_estimated_as_the_profiles_did_whose_power_was_stated(monkeypatch, told, expected):
    own = ServerSpec("t", 2, 1 << 30, idle_power_watts=20.0, peak_power_watts=100.0)
    monkeypatch.setattr(server, "this_server", lambda _cores: own)
    meter = server._power_meter((0, 1), [served(power_watts=watts) for watts in told])
    given = meter._server
    assert (None if given is None else (given.idle_power_watts, given.peak_power_watts)) == expected
