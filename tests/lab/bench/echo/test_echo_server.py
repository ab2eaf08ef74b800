"""How long the echo takes, how it is told to, and when it ends."""

import asyncio
import json
import subprocess
import sys

import pytest

from hebe_lab.bench.echo import echo_server
from hebe_lab.bench.echo.echo_server import EchoModel, EchoServer


async def test_arrivals_wait_for_those_before_them(monkeypatch):
    server = EchoServer(EchoModel(service_s=2.0))
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    assert [server.delay_s() for _ in range(3)] == [2.0, 4.0, 6.0]
    now_s = 105.0
    assert server.delay_s() == 3.0
    now_s = 200.0
    assert server.delay_s() == 2.0, "idle in between"
    assert server.answered == 5


async def test_a_server_that_takes_no_time_lets_nobody_wait():
    server = EchoServer(EchoModel())
    assert [server.delay_s() for _ in range(3)] == [0.0, 0.0, 0.0]


def test_it_ends_with_its_input():
    command = [sys.executable, "-m", "hebe_lab.bench.echo.echo_server", "--inputs", "1x1", "--dense", "0"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    ports = json.loads(done.stdout)
    assert len({*ports.values()} - {0}) == 2


async def test_stopping_hangs_up():
    server = EchoServer(EchoModel())
    await server.start()
    ends = [await asyncio.open_connection("127.0.0.1", port) for port in (server.http_port, server.grpc_port)]
    await ends[1][0].readexactly(9)  # its settings: it has accepted
    ends[0][1].write(b"GET /v2/models/echo HTTP/1.1\r\n\r\n")
    await ends[0][0].readuntil(b"\r\n\r\n")
    await server.stop()
    for reader, writer in ends:
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("options", "size_bytes"), [([], 16384), (["--max-frame-bytes", "65536"], 65536)])
def test_it_takes_frames_as_large_as_it_is_told(monkeypatch, options, size_bytes):
    served = []

    async def serve(model, max_frame_bytes):
        served.append((model.features, max_frame_bytes))

    monkeypatch.setattr(echo_server, "_serve", serve)
    monkeypatch.setattr(sys, "argv", ["echo_server", "--inputs", "7x2", *options])
    echo_server.main()
    assert served == [(7, size_bytes)]
