"""HTTP/1.1 itself, byte by byte on a socket, against a handler that answers with what it got."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hebe.serving.access.byte_budget import ByteBudget
from hebe.serving.http1.connection import HttpConnection, _State, aligned_buffer
from hebe.serving.http1.connections import HttpConnections
from hebe.serving.http1.messages import HttpLimits

from .echo_http import LIMITS, PATIENCE_S, Echo, serving

HASTY = replace(LIMITS, head_timeout_s=0.3, body_timeout_s=0.3, write_timeout_s=0.3, idle_timeout_s=0.3, linger_s=0.3)
"""For the tests of what is too late: on a busy machine much else would be."""


async def test_a_connection_answers_one_request_after_another():
    async with serving() as (_, connect, _server):
        client = await connect()
        for number in range(3):
            body = b"x" * number
            await client.send(b"POST /a?b=%d HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (number, number, body))
            status, head, answer = await client.response()
            assert (status, answer) == (200, b"POST /a?b=%d " % number + body)
            assert b"x-kind: echo\r\n" in head
            assert b"date: " in head


@pytest.mark.parametrize("piece", [1, 7, 50])
async def test_bytes_may_come_in_any_pieces(piece):
    async with serving() as (_, connect, _server):
        client = await connect()
        data = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
        for at in range(0, len(data), piece):
            await client.send(data[at : at + piece])
            await asyncio.sleep(0)
        assert (await client.response())[2] == b"POST /a? hello"


async def test_a_large_body_arrives_whole_and_writable_views_of_it_are_aligned():
    async with serving() as (echo, connect, _server):
        client = await connect()
        body = np.random.default_rng(0).bytes(99_997)
        await client.send(
            b"POST /a HTTP/1.1\r\nContent-Length: 99997\r\nInference-Header-Content-Length: 13\r\n\r\n" + body
        )
        assert (await client.response())[2] == b"POST /a? " + body
        assert np.frombuffer(echo.bodies[0][13:], np.int8).ctypes.data % 8 == 0


@pytest.mark.parametrize("json_bytes", [0, 8, 13, 10**18])
def test_a_buffer_is_as_long_as_asked_whatever_the_header(json_bytes):
    assert len(aligned_buffer(20, json_bytes)) == 20


async def test_pipelined_requests_are_answered_in_order():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(
            b"".join(b"POST /%d HTTP/1.1\r\nContent-Length: 3\r\n\r\n%03d" % (n, n) for n in range(200))
            + b"GET /last HTTP/1.1\r\n\r\n"
        )
        for number in range(200):
            assert (await client.response())[2] == b"POST /%d? %03d" % (number, number)
        assert (await client.response())[2] == b"GET /last? "


async def test_much_pipelined_while_a_request_is_answered_is_kept_back_and_answered():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"GET /slow?0.05 HTTP/1.1\r\n\r\n")
        later = b"".join(b"POST /%d HTTP/1.1\r\nContent-Length: 90000\r\n\r\n%s" % (n, b"z" * 90000) for n in range(5))
        sending = asyncio.ensure_future(client.send(later))
        assert (await client.response())[0] == 200
        for number in range(5):
            assert (await client.response())[2].startswith(b"POST /%d? zzz" % number)
        await sending


async def test_a_chunked_body_is_joined():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await client.send(b"1;x=y\r\n!\r\n0\r\nTrailer: t\r\n\r\n")
        assert (await client.response())[2] == b"POST /a? hello!"


async def test_trailers_are_no_headers_of_the_request():
    async with serving() as (echo, connect, _server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n2\r\nab\r\n0\r\n")
        await client.send(b"Content-Encoding: gzip\r\nAuthorization: Bearer x\r\nX: z\r\n\r\n")
        assert (await client.response())[2] == b"POST /a? ab"
        assert echo.headers == [{b"transfer-encoding": b"chunked", b"x": b"y"}]


async def test_a_request_behind_a_chunked_one_adds_nothing_to_its_body():
    async with serving() as (_, connect, _server):
        client = await connect()
        chunks = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
        await client.send(chunks + b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nworse")
        assert (await client.response())[2] == b"POST /a? ab"
        assert await client.closed()


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 2\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"]
)
async def test_an_offer_of_another_protocol_does_not_cost_the_body(framing):
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n" + framing)
        assert (await client.response())[2] == b"POST /a? ab"


async def test_a_handler_may_take_less_than_the_limits_allow():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /short HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n")
        status, _, body = await client.response()
        assert (status, b"exceeds the maximum request size of 10 bytes" in body) == (413, True)


async def test_a_client_may_wait_for_permission_to_send():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.response())[0] == 100
        await client.send(b"ok")
        assert (await client.response())[2] == b"POST /a? ok"


async def test_head_has_the_length_but_no_body():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"HEAD /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
        status, head, _ = await client.response(head_only=True)
        assert (status, b"content-length: 9" in head) == (200, True)
        assert (await client.response())[2] == b"GET /b? "


@pytest.mark.parametrize(
    ("request_head", "stays"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", True),
        (b"GET http://elsewhere/ HTTP/1.1\r\n", True),
    ],
)
async def test_whether_a_connection_stays_open(request_head, stays):
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(request_head + b"\r\n")
        status, head, body = await client.response()
        assert (status, body) == (200, b"GET /? ")
        assert (b"connection: close" in head) == (not stays)
        if not stays:
            assert await client.closed()
        else:
            await client.send(b"GET /again HTTP/1.1\r\n\r\n")
            assert (await client.response())[2] == b"GET /again? "


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"nonsense\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"GET / HTTP/3.9\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, b"not an HTTP/1.1"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, b"'gzip, chunked' is not supported"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: " + b"a" * 9000, 431, b"trailers"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 900, 431, b"send larger chunks"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, b"malformed chunked body"),
        (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\x00\r\n\r\n", 400, b"not an HTTP/1.1 request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 100001\r\n\r\n", 413, b"100001 bytes exceeds the maximum"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n186A1\r\n" + bytes(100001), 413, b"100000 bytes"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 3000, 431, b"exceed 2000 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431, b"more than 100 headers"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 3000 + b"\r\n\r\n", 431, b"exceed 2000 bytes"),
        (b"POST /refused HTTP/1.1\r\nContent-Length: 50000\r\n\r\nabc", 403, b"refused"),
    ],
)  # fmt: skip
async def test_what_is_not_a_proper_request_is_answered_and_the_connection_closed(data, status, message):
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(data)
        got, head, body = await client.response()
        assert got == status
        assert message in body
        assert b"connection: close" in head
        assert await client.closed()
        other = await connect()
        await other.send(b"GET /next HTTP/1.1\r\n\r\n")
        assert (await other.response())[2] == b"GET /next? "


async def test_a_refusal_reaches_a_client_that_goes_on_sending():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nContent-Length: 90000000\r\n\r\n")
        for _ in range(50):
            client.writer.write(bytes(10_000))
        assert (await client.response())[0] == 413


async def test_a_refused_request_that_has_come_whole_leaves_the_connection_open():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /refused HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /next HTTP/1.1\r\n\r\n")
        assert (await client.response())[0] == 403
        assert (await client.response())[2] == b"GET /next? "


REFUSED_EARLY = b"POST /a HTTP/1.1\r\nInference-Header-Content-Length: 6\r\nContent-Length: %d\r\n"


@pytest.mark.parametrize("piece", [1, 30, 100_000])
async def test_a_body_refused_by_its_start_is_skipped_and_the_connection_goes_on(piece):
    async with serving() as (echo, connect, _server):
        client = await connect()
        data = (REFUSED_EARLY + b"\r\nrefuse%s" + b"GET /next HTTP/1.1\r\n\r\n") % (90, bytes(84))
        for at in range(0, len(data), piece):
            await client.send(data[at : at + piece])
            await asyncio.sleep(0.001)
        status, _, body = await client.response()
        # What has come whole is not previewed: nothing is saved by it.
        assert (status, body) == ((503, b"refuse") if piece < 100 else (200, b"POST /a? refuse" + bytes(84)))
        assert (await client.response())[2] == b"GET /next? "
        assert len(echo.bodies) == (1 if piece < 100 else 2)


async def test_a_body_that_was_refused_and_does_not_come_ends_the_connection():
    async with serving(HASTY) as (_, connect, _server):
        client = await connect()
        await client.send(REFUSED_EARLY % 90 + b"\r\nrefuse")
        assert (await client.response())[0] == 503
        assert await client.closed()


async def test_a_refusal_by_the_start_closes_a_connection_that_was_not_to_be_kept():
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(REFUSED_EARLY % 90 + b"Connection: close\r\n\r\nrefuse")
        status, head, _ = await client.response()
        assert status == 503
        assert b"connection: close" in head
        await client.send(bytes(84))
        assert await client.closed()


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"GET / HT", 408, b"head did not come within 0.3 s"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab", 408, b"body did not come within 0.3 s"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 408, b"body did not come within 0.3 s"),
    ],
)
async def test_slow_clients_are_told_and_left(data, status, message):
    async with serving(HASTY) as (_, connect, _server):
        client = await connect()
        await client.send(data)
        got, _, body = await client.response()
        assert got == status
        assert message in body
        assert await client.closed()


async def test_silent_and_idle_connections_are_closed():
    async with serving(HASTY) as (_, connect, _server):
        silent, idle = await connect(), await connect()
        await idle.send(b"GET / HTTP/1.1\r\n\r\n")
        await idle.response()
        assert await silent.closed()
        assert await idle.closed()


async def test_a_client_that_does_not_read_its_answer_is_left():
    async with serving(HASTY) as (_, connect, server):
        client = await connect()
        client.writer.transport.pause_reading()
        await client.send(b"GET /large HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            while server._connections.open:
                await asyncio.sleep(0.01)


async def test_a_vanished_client_cancels_its_request():
    async with serving() as (echo, connect, _server):
        client = await connect()
        await client.send(b"GET /slow HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(echo.started.wait(), PATIENCE_S)
        client.writer.transport.abort()
        await asyncio.wait_for(echo.cancelled.wait(), PATIENCE_S)


async def test_a_client_that_only_stops_sending_gets_its_answer():
    async with serving() as (_, connect, server):
        for request in (b"GET /slow?0.8 HTTP/1.1\r\n\r\n", b"GET /slow?0.1 HTTP/1.0\r\n\r\n"):
            client = await connect()
            await client.send(request)
            client.writer.write_eof()
            status, head, body = await client.response()
            assert (status == 100) == (b"1.1" in request), "an interim response, which HTTP/1.0 does not know"
            if status == 100:
                status, head, body = await client.response()
            assert (status, body.startswith(b"GET /slow?")) == (200, True)
            assert b"connection: close" in head
            assert await client.closed()
        async with asyncio.timeout(PATIENCE_S):
            while server._connections.open:
                await asyncio.sleep(0.01)


async def test_all_that_was_asked_before_a_client_stops_sending_is_answered():
    async with serving() as (_, connect, _server):
        client = await connect()
        requests = b"".join(b"GET /slow?0.05%d HTTP/1.1\r\n\r\n" % number for number in range(3))
        await client.send(requests + b"GET /half")
        client.writer.write_eof()
        answers = []
        while len(answers) < 3:
            status, _, body = await client.response()
            if status != 100:
                answers.append(body)
        assert answers == [b"GET /slow?0.05%d " % number for number in range(3)]
        assert await client.closed()


class Transport(asyncio.Transport):
    """Keeps what is written; closing waits for a client that does not read."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = b""
        self.reading = True
        self.closing = self.aborted = False

    def write(self, data) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


def connected(
    limits: HttpLimits = LIMITS, clock: Callable[[], float] | None = None
) -> tuple[HttpConnection, Transport, Callable[[bytes], None]]:
    """A connection, its transport, and a function that sends to it at once."""
    clock = clock or asyncio.get_running_loop().time
    connection = HttpConnection(HttpConnections(Echo(), limits, clock, ByteBudget(100_000)))
    transport = Transport()
    connection.connection_made(transport)

    def send(data: bytes) -> None:
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))

    return connection, transport, send


async def test_the_end_of_what_is_sent_may_come_between_two_requests():
    connection, transport, send = connected()
    send(b"GET /refused HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\n\r\n")
    assert connection.eof_received(), "there is something left to answer"
    for _ in range(5):
        await asyncio.sleep(0)
    assert re.findall(rb"HTTP/1.1 (\d+)", transport.written) == [b"403", b"100", b"200"]
    assert transport.closing


async def test_the_end_of_what_is_sent_amid_a_request_is_the_end():
    for start in (b"", b"GET /a HT", b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"):
        connection, _, send = connected()
        if start:
            send(start)
        assert not connection.eof_received()


@pytest.mark.parametrize("empty", [b"\r\n", b"\r\n\r\n\n", b"\r"])
async def test_empty_lines_behind_a_request_begin_none_and_cost_no_time(empty):
    """However they come: the connection stays as idle as it is, and is closed without a word."""
    now_s = 0.0
    connection, transport, send = connected(clock=lambda: now_s)
    for number in range(1, 4):
        send(b"GET /refused HTTP/1.1\r\n\r\n" + empty)
        for _ in range(3):
            await asyncio.sleep(0)
        now_s += 1.0
        send(empty)
        assert (connection._state, bytes(connection._pending)) == (_State.IDLE, b"")
        assert connection.waits_since_s == now_s - 1.0
        assert connection.give_up_s == now_s - 1.0 + LIMITS.idle_timeout_s
        assert re.findall(rb"HTTP/1.1 (\d+)", transport.written) == [b"403"] * number
    connection.out_of_time()
    assert transport.closing
    assert re.findall(rb"HTTP/1.1 (\d+)", transport.written) == [b"403"] * 3


async def test_empty_lines_are_not_waited_for_where_a_client_has_closed_its_side():
    connection, transport, send = connected()
    send(b"GET /refused HTTP/1.1\r\n\r\n\r\n")
    assert connection.eof_received(), "there may be something left to answer"
    for _ in range(5):
        await asyncio.sleep(0)
    assert transport.closing


REFUSED = b"GET /refused HTTP/1.1\r\nX: " + b"x" * 969 + b"\r\n\r\n"
"""A thousand bytes, which are answered as soon as they have come."""


async def test_no_more_is_kept_of_pipelined_requests_than_their_turn_comes_for():
    """Requests that are answered at once, faster than the loop comes to them; all are answered all the same."""
    connection, transport, send = connected()
    sent = 0
    while sent < 20:
        while transport.reading and sent < 20:
            send(REFUSED * 60)
            sent += 1
        assert len(connection._pending) <= 128 * 1024
        if sent < 20:
            paused_at = transport.written.count(b"HTTP/1.1 403")
            async with asyncio.timeout(PATIENCE_S):
                while not transport.reading:
                    await asyncio.sleep(0)
            assert transport.written.count(b"HTTP/1.1 403") > paused_at
            assert len(connection._pending) <= 64 * 1024
    async with asyncio.timeout(PATIENCE_S):
        while transport.written.count(b"HTTP/1.1 403") < 20 * 60:
            await asyncio.sleep(0)
    assert (len(connection._pending), transport.reading) == (0, True)


@pytest.mark.parametrize("framing", [b"Content-Length: 90000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n15f90\r\n"])
async def test_a_body_behind_much_that_was_pipelined_is_read(framing):
    """Where reading was paused with the body's beginning pending."""
    connection, transport, send = connected()
    send(REFUSED * 40)
    send(b"POST /a HTTP/1.1\r\n" + framing + b"z" * 60_000)
    assert not transport.reading
    async with asyncio.timeout(PATIENCE_S):
        while connection._state not in (_State.BODY, _State.CHUNKED):
            await asyncio.sleep(0)
    assert transport.reading
    if connection._state is _State.BODY:
        connection.get_buffer(-1)[:30_000] = b"z" * 30_000
        connection.buffer_updated(30_000)
    else:
        send(b"z" * 30_000 + b"\r\n0\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        while b"POST /a? " + b"z" * 90_000 not in transport.written:
            await asyncio.sleep(0)


@pytest.mark.parametrize("framing", ["Content-Length: 50000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nC350\r\n"])
@pytest.mark.parametrize(("takes_s", "counted_s"), [(0.003, 0.003), (0.0053, 0.0053), (3.0, 0.005 + 50_000 / 125e6)])
async def test_the_time_that_a_slow_client_takes_over_a_body_is_not_the_servers(framing, takes_s, counted_s):
    now_s = 10.0
    connection, _, send = connected(clock=lambda: now_s)
    send(f"POST /a HTTP/1.1\r\n{framing}".encode() + b"z" * 20_000)
    request = connection._request
    assert request.arrival_s == 10.0
    now_s += takes_s
    send(b"z" * 30_000 + (b"\r\n0\r\n\r\n" if "chunked" in framing else b""))
    assert connection._state is _State.ANSWERING
    assert now_s - request.arrival_s == pytest.approx(counted_s)
    connection.connection_lost(None)


async def test_who_does_not_read_the_answers_gets_no_more_of_them_and_no_more_time():
    now_s = 0.0
    connection, transport, send = connected(clock=lambda: now_s)
    connection.pause_writing()
    assert connection.give_up_s == LIMITS.write_timeout_s
    for _ in range(19):
        now_s += 1.0
        send(REFUSED)
        await asyncio.sleep(0)
    assert (transport.written, connection.give_up_s) == (b"", LIMITS.write_timeout_s)
    while transport.reading:
        send(REFUSED * 60)
    assert len(connection._pending) <= 128 * 1024
    connection.resume_writing()
    assert connection.give_up_s == now_s + LIMITS.idle_timeout_s
    async with asyncio.timeout(PATIENCE_S):
        while connection._pending:
            await asyncio.sleep(0)
    assert transport.reading
    assert transport.written.count(b"HTTP/1.1 403") > 19


async def test_who_asks_on_and_on_and_never_reads_is_left():
    async with serving(HASTY) as (_, connect, server):
        client = await connect()
        client.writer.transport.pause_reading()
        (connection,) = server._connections.open
        async with asyncio.timeout(PATIENCE_S):
            while server._connections.open:
                client.writer.write(b"GET /a HTTP/1.1\r\n\r\n" * 100)
                assert len(connection._pending) <= 128 * 1024
                await asyncio.sleep(0.001)


async def test_an_answer_that_is_the_last_has_as_long_to_be_read_as_any():
    now_s = 0.0
    connection, transport, send = connected(replace(LIMITS, linger_s=2.0), clock=lambda: now_s)
    transport.write = lambda _data: connection.pause_writing()
    send(b"POST /refused HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
    assert connection._state is _State.DRAINING
    assert connection.give_up_s == LIMITS.write_timeout_s
    now_s = 20.0
    connection.resume_writing()
    assert connection.give_up_s == 22.0


async def test_a_connection_that_does_not_close_is_aborted():
    """As where TLS waits for the client's goodbye."""
    connection, transport, _ = connected(replace(LIMITS, linger_s=5.0))
    connection.out_of_time()
    assert (transport.closing, transport.aborted) == (True, False)
    assert 0 < connection.give_up_s - asyncio.get_running_loop().time() <= 5.0
    connection.out_of_time()
    assert transport.aborted


async def test_a_client_that_closes_its_connection_cancels_its_request():
    """Which looks the same at first."""
    async with serving() as (echo, connect, _server):
        client = await connect()
        await client.send(b"GET /slow HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(echo.started.wait(), PATIENCE_S)
        client.writer.close()
        await asyncio.wait_for(echo.cancelled.wait(), PATIENCE_S)


@pytest.mark.parametrize("head", [b"Content-Length: 600\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n258\r\n"])
async def test_bodies_share_the_memory_that_there_is_for_them(head):
    budget = ByteBudget(1000)
    async with serving(budget=budget) as (echo, connect, _server):
        slow, other, third = await connect(), await connect(), await connect()
        end = b"\r\n0\r\n\r\n" if b"chunked" in head else b""
        await slow.send(b"POST /slow HTTP/1.1\r\n" + head + bytes(600) + end)
        await asyncio.wait_for(echo.started.wait(), PATIENCE_S)
        assert budget.held_bytes == 600
        await other.send(b"POST /a HTTP/1.1\r\n" + head + bytes(600) + end)
        status, _, body = await other.response()
        assert (status, b"the requests under way take 600 of at most 1000 bytes" in body) == (503, True)
        assert await other.closed()
        await third.send(b"POST /a HTTP/1.1\r\nContent-Length: 300\r\n\r\n" + bytes(300))
        assert (await third.response())[0] == 200
        echo.go_on.set()
        assert (await slow.response())[0] == 200
        assert budget.held_bytes == 0


async def test_a_body_that_does_not_come_whole_gives_its_memory_back():
    budget = ByteBudget(1000)
    async with serving(budget=budget) as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nContent-Length: 600\r\n\r\n" + bytes(500))
        async with asyncio.timeout(PATIENCE_S):
            while budget.held_bytes < 500:
                await asyncio.sleep(0.001)
            client.writer.close()
            while budget.held_bytes:
                await asyncio.sleep(0.001)
