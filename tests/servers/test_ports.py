from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from . import ports
from .ports import free_port


@pytest.mark.parametrize("beside", [0, 10_000])
def test_a_port_that_is_taken_is_not_given_nor_one_beside_such(monkeypatch, beside):
    taken = free_port(beside=beside)
    given = iter([taken, taken, free_port(beside=beside)])
    monkeypatch.setattr(ports, "_CHANCE", SimpleNamespace(randrange=lambda *_: next(given)))
    with socket.create_server(("127.0.0.1", taken + beside)):
        assert free_port(beside=beside) != taken
    assert next(given, None) is None


def test_no_port_is_one_that_the_kernel_gives_to_those_who_connect():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < lowest for _ in range(100))
    assert all(free_port(beside=10_000) + 10_000 < lowest for _ in range(100))
