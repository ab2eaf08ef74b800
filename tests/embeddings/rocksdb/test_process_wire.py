import socket
import threading

import numpy as np
import pytest

from hebe.embeddings.rocksdb.process_wire import fault_head, raise_fault, receive, send
from hebe.embeddings.store import StoreDamaged, StoreError, StoreUnavailable


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    ours.settimeout(20.0)
    theirs.settimeout(20.0)
    with ours, theirs:
        yield ours, theirs


def test_messages_come_one_after_the_other_each_with_its_arrays(ends):
    ours, theirs = ends
    keys, rows = np.arange(6).reshape(2, 3), np.ones((3, 2), np.float32).T
    send(ours, {"call": "insert", "names": ["ä", ""]}, keys, np.empty(0), rows)
    send(ours, {})
    head, body = receive(theirs)
    assert head == {"call": "insert", "names": ["ä", ""]}
    assert bytes(body) == keys.tobytes() + np.ascontiguousarray(rows).tobytes()
    assert receive(theirs) == ({}, b"")


def test_what_is_larger_than_a_sockets_buffer_arrives_whole(ends):
    ours, theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    parts = [np.random.default_rng(number).bytes(300_000) for number in range(3)]
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    sender = threading.Thread(target=send, args=(ours, {"large": True}, *arrays))
    sender.start()
    head, body = receive(theirs)
    sender.join()
    assert (head, bytes(body)) == ({"large": True}, b"".join(parts))


def test_an_end_that_is_gone_is_told_whether_before_a_message_or_within_one(ends):
    ours, theirs = ends
    ours.send(b"abc")
    ours.close()
    for _ in range(2):
        with pytest.raises(EOFError):
            receive(theirs)
    with pytest.raises(BrokenPipeError):
        send(theirs, {}, np.zeros(100))


def test_an_end_that_is_silent_is_told(ends):
    ours, theirs = ends
    theirs.settimeout(0.01)
    with pytest.raises(TimeoutError):
        receive(theirs)
    assert ours.fileno() >= 0


@pytest.mark.parametrize("kind", [StoreError, StoreUnavailable, StoreDamaged])
def test_a_fault_is_the_same_at_the_other_end(ends, kind):
    send(ends[0], fault_head(kind("the disk is full: /data", "a store failed")))
    head, _ = receive(ends[1])
    with pytest.raises(StoreError) as raised:
        raise_fault(head)
    assert type(raised.value) is kind
    assert (str(raised.value), raised.value.client_message) == ("the disk is full: /data", "a store failed")
    raise_fault({"result": 1})
