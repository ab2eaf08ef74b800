import asyncio
import errno
from contextlib import asynccontextmanager

import pytest

from hebe.load_generator.error import LoadError
from hebe.load_generator.senders.http_sender import HttpSender
from hebe.load_generator.senders.sender import OUT_OF_FILES, OUT_OF_PORTS, Outcome
from hebe.load_generator.target import Target, parse_endpoint

from .sender_listener import Listener

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Body:
    """Requests of a few bytes that tell the query's size."""

    def parts(self, items, offset):
        return [b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n", f"{items:02}{offset:02}".encode()]


class Script:
    """A server on loopback that gives the answers of a list, one for each request; None closes the connection."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.connections = 0
        self.bodies = []

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.bodies.append(await reader.readexactly(4))
                answer = self.answers.pop(0) if self.answers else OK
                if callable(answer):
                    answer = await answer()
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def sending(script, connections=4):
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = HttpSender(Target(parse_endpoint(f"http://127.0.0.1:{port}"), "m", connections=connections), Body())
    await sender.open()
    try:
        yield sender, Listener(sender)
    finally:
        await sender.close()
        server.close()
        await server.wait_closed()


async def test_queries_go_out_whole_and_are_told_apart():
    script = Script()
    async with sending(script) as (sender, heard):
        for index in range(6):
            sender.send(index, index, 7)
        await heard.wait(6)
    assert sorted(heard.sent) == list(range(6))
    assert set(heard.done.values()) == {(Outcome.ANSWERED, "", "")}
    assert sorted(script.bodies) == [f"{index:02}07".encode() for index in range(6)]
    assert script.connections <= 4


async def test_connections_are_reused_and_bounded():
    script = Script()
    async with sending(script, connections=1) as (sender, heard):
        assert sender.full
        for index in range(5):
            sender.send(index, 1, 1)
        assert heard.sent == [0]
        await heard.wait(5)
        assert sender.connections == 1
    assert heard.sent == list(range(5))
    assert script.connections == 1


async def test_sending_upon_an_answer_opens_no_further_connection():
    script = Script()
    async with sending(script, connections=64) as (sender, heard):
        opened = script.connections
        told = sender.on_done

        def again(index, *rest):
            told(index, *rest)
            if index < 40:
                sender.send(index + 1, 1, 1)

        sender.on_done = again
        sender.send(0, 1, 1)
        await heard.wait(41)
        assert script.connections == opened


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 503 -\r\nContent-Length: 17\r\n\r\n" + b'{"error": "full"}', (Outcome.REFUSED, "503", "full")),
        (b"HTTP/1.1 429 -\r\nContent-Length: 0\r\n\r\n", (Outcome.REFUSED, "429", "")),
        (b"HTTP/1.1 408 -\r\nContent-Length: 4\r\n\r\nlate", (Outcome.REFUSED, "408", "late")),
        (b"HTTP/1.1 413 -\r\nContent-Length: 3\r\n\r\nbig", (Outcome.REFUSED, "413", "big")),
        (b"HTTP/1.1 400 -\r\nContent-Length: 3\r\n\r\n[1]", (Outcome.FAILED, "400", "[1]")),
        (b"HTTP/1.1 500 -\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n", (Outcome.FAILED, "500", "bad")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, (Outcome.ANSWERED, "", "")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", (Outcome.ANSWERED, "", "")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", (Outcome.ANSWERED, "", "")),
    ],
)
async def test_answers(answer, expected):
    async with sending(Script(answer), connections=1) as (sender, heard):
        sender.send(0, 1, 1)
        await heard.wait(1)
        assert heard.done[0] == expected
        # Whatever the answer was, the next query is served.
        sender.send(1, 1, 1)
        await heard.wait(2)
        assert heard.done[1] == (Outcome.ANSWERED, "", "")


async def test_garbage_and_a_closed_connection_fail_their_query_only():
    async with sending(Script(b"SSH-2.0-server\r\n", None), connections=1) as (sender, heard):
        for index in range(3):
            sender.send(index, 1, 1)
        await heard.wait(3)
    assert heard.done[0][:2] == (Outcome.FAILED, "not HTTP")
    assert heard.done[1][:2] == (Outcome.FAILED, "connection closed")
    assert heard.done[2] == (Outcome.ANSWERED, "", "")


async def test_a_query_given_up_is_not_heard_of_again():
    release = asyncio.Event()

    async def late():
        await release.wait()
        return OK

    async with sending(Script(late), connections=1) as (sender, heard):
        sender.send(0, 1, 1)
        sender.send(1, 1, 1)
        await asyncio.sleep(0.02)
        sender.give_up(0)
        release.set()
        await heard.wait(1)
        assert list(heard.done) == [1]


async def test_a_waiting_query_given_up_is_never_sent():
    async with sending(Script(), connections=1) as (sender, heard):
        for index in range(3):
            sender.send(index, index, 0)
        sender.give_up(1)
        await heard.wait(2)
    assert heard.sent == [0, 2]


async def test_a_server_that_has_gone_fails_every_query_at_once():
    script = Script(None, None, None, None)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = HttpSender(Target(parse_endpoint(f"http://127.0.0.1:{port}"), "m", connections=4), Body())
    await sender.open()
    heard = Listener(sender)
    server.close()
    for index in range(20):
        sender.send(index, 1, 1)
    await heard.wait(20)
    assert {kind for _, kind, _ in heard.done.values()} <= {"connection closed", "connection refused"}
    assert [kind for _, kind, _ in heard.done.values()].count("connection refused") >= 16
    await sender.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, OUT_OF_FILES),
        (errno.ENFILE, OUT_OF_FILES),
        (errno.EADDRNOTAVAIL, OUT_OF_PORTS),
        (errno.ECONNREFUSED, "connection refused"),
        (errno.EHOSTUNREACH, "cannot connect"),
    ],
)
async def test_what_its_own_system_does_not_give_is_told_from_what_the_server_does_not(monkeypatch, number, kind):
    async def fail(*_, **__):
        raise OSError(number, "no connection")

    async with sending(Script(), connections=9) as (sender, heard):
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
        for index in range(9):
            sender.send(index, 1, 1)
        await heard.wait(9)
    outcomes = sorted((outcome.value, found) for outcome, found, _ in heard.done.values())
    assert outcomes == [*[("answered", "")] * 8, ("failed", kind)]


async def test_nobody_listens():
    sender = HttpSender(Target(parse_endpoint("http://127.0.0.1:1"), "m"), Body())
    with pytest.raises(LoadError, match="cannot be reached"):
        await sender.open()
    await sender.close()
