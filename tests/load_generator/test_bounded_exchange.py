"""Exchanges that take too long, whatever comes of them meanwhile.

What others' text becomes before it is shown.
"""

import http.client
import socket
import ssl
import threading
import time

import pytest

from hebe.load_generator.bounded_exchange import connected_by, printable, printable_json


@pytest.fixture
def trickle():
    """A server of one connection that sends these bytes, one each 50 ms, and the last of them for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(head, last=b"x"):
            def run():
                connection, _ = listening.accept()
                with connection:
                    try:
                        connection.sendall(head)
                        while True:
                            time.sleep(0.05)
                            connection.sendall(last)
                    except OSError:
                        return

            threads.append(threading.Thread(target=run))
            threads[-1].start()
            return listening.getsockname()[1]

        threads = []
        yield serve
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def ask(port, seconds, context=None):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with connected_by(time.monotonic() + seconds, "127.0.0.1", port, context) as connection.sock:
        connection.request("GET", "/")
        return connection.getresponse().read()


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_an_answer_that_trickles_is_given_up_at_the_deadline(trickle, head):
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError):
        ask(trickle(head), 0.4)
    assert 0.3 < time.monotonic() - begun_s < 5


def test_a_tls_handshake_has_the_same_deadline(trickle):
    context = ssl.create_default_context()
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError):
        ask(trickle(b"\x16\x03\x03\x40\x00", b"\x02"), 0.4, context)
    assert time.monotonic() - begun_s < 5


def test_an_answer_whose_end_is_that_of_the_connection_is_read_whole():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nwhole")

        thread = threading.Thread(target=run)
        thread.start()
        assert ask(listening.getsockname()[1], 10) == b"whole"
        thread.join()


def test_it_may_be_too_late_before_it_has_begun():
    with pytest.raises(TimeoutError):
        ask(1, -1)


def test_nobody_at_home():
    with pytest.raises(ConnectionRefusedError):
        ask(1, 10)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("µs of Zürich", "µs of Zürich"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("first\nsecond\tthird", "first second third"),
        ("\ud800", r"\ud800"),
        ("\u202etxt", r"\u202etxt"),
        ("", ""),
    ],
)
def test_what_cannot_be_shown_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable_json({text: [text, 1, None]}) == {shown: [shown, 1, None]}


def test_what_is_nested_too_deep_is_refused():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deep"):
        printable_json(deep)
