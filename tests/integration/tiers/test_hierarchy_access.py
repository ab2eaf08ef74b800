"""A server whose level 2 is a Redis that wants TLS, a client's certificate, a user and a password.

All of it is given in the file for `--hierarchy`, as an operator would.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.serving.served import HebeServe
from tests.servers.redis_servers import Certificates, RedisServer, make_certificates

from .row_reader import Reader, Versions, row_reader, serving, store_reader
from .test_serve_tiers import get

SPEC = row_reader()
USER, PASSWORD = "hebe", "geheim-5d1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def redis(certificates: Certificates) -> Iterator[RedisServer]:
    with RedisServer(tls=certificates, users={USER: PASSWORD}) as server:
        yield server


def volatile_db(redis: RedisServer, certificates: Certificates, root: Path) -> dict[str, Any]:
    """Level 2 with all that this Redis wants."""
    secret = root / "password"
    secret.write_text(f"{PASSWORD}\n")
    return {
        "type": "redis",
        "address": redis.address,
        "timeout_ms": 2000.0,
        "num_partitions": 2,
        "user_name": USER,
        "password_file": str(secret),
        "enable_tls": True,
        "tls_ca_certificate": str(certificates.authority),
        "tls_client_certificate": str(certificates.client_certificate),
        "tls_client_key": str(certificates.client_key),
        "tls_server_name_identification": "localhost",
    }


def check_secrets(server: HebeServe) -> None:
    """The password is in no log and no answer."""
    assert PASSWORD not in server.log
    assert "Traceback" not in server.log


def test_rows_come_over_tls_as_the_user(redis: RedisServer, certificates: Certificates, tmp_path: Path):
    """There is no level 3: what the cache lacks comes from this Redis, or not at all."""
    store_reader(tmp_path / "models", SPEC)
    tiers = {"cache": {"cache_fraction": 0.05}, "volatile_db": volatile_db(redis, certificates, tmp_path)}
    with serving(tmp_path, tiers) as server:
        with Reader(server, SPEC, Versions(SPEC)) as reader:
            assert reader.all_newest()
            assert reader.read(np.arange(8))[1].all_found
        status = get(server, "/v2/status")
        assert PASSWORD not in json.dumps(status)
        [model] = status["models"]
        assert [(tier["name"], tier["kind"], tier["available"]) for tier in model["tiers"][1:]] == [
            ("volatile_db", "redis", True)
        ]
        with redis.client() as client:
            hashes = [key for key in client.scan_iter() if client.type(key) == b"hash"]
            assert all(client.hexists(key, "state") for key in hashes)
            assert sum(client.hlen(key) - 1 for key in hashes) == SPEC.tables[0].rows
            here = client.client_id()
            others = [each for each in client.client_list() if int(each["id"]) != here]
            assert others
            assert {each["user"] for each in others} == {USER}
        assert server.end(signal.SIGTERM) == 0
        check_secrets(server)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"user_name": "nobody"}, "WRONGPASS"),
        ({"tls_server_name_identification": "else.where"}, "certificate is not accepted"),
        ({"tls_ca_certificate": "", "tls_server_name_identification": ""}, "certificate is not accepted"),
        ({"tls_client_certificate": ""}, "tls_client_certificate and tls_client_key go together"),
    ],
)
def test_what_does_not_fit_is_told_at_the_start(
    redis: RedisServer, certificates: Certificates, tmp_path: Path, wrong: dict[str, str], said: str
):
    store_reader(tmp_path / "models", SPEC)
    given = {name: value for name, value in (volatile_db(redis, certificates, tmp_path) | wrong).items() if value != ""}
    with serving(tmp_path, {"volatile_db": given}, ready=False) as server:
        assert server.end() != 0
        assert said in server.log
        check_secrets(server)
