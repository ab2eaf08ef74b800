"""Against nodes that say what they are told to; real clusters are in store/test_store_cluster.py."""

import contextlib
import socketserver
import threading
import time

import pytest

from hebe.embeddings.redis.connection import RedisAccess, RedisAddress
from hebe.embeddings.redis.layout import Command
from hebe.embeddings.redis.nodes import RedisNodes
from hebe.embeddings.store import StoreError, StoreUnavailable

PATIENT = RedisAccess(timeout_s=30.0)
SLOTS = 16384


def get(key):
    return Command(key, (b"GET", key))


GET = [get(b"a")]  # of slot 15495


class Node:
    """A server that answers each command by `answers[name of the command]`, and keeps what it was asked."""

    def __init__(self):
        self.answers = {}
        self.asked = []
        node = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                while head := self.rfile.readline():
                    arguments = []
                    for _ in range(int(head[1:])):
                        size = int(self.rfile.readline()[1:])
                        arguments.append(self.rfile.read(size + 2)[:-2])
                    node.asked.append(arguments)
                    self.wfile.write(node.answers[arguments[0].decode()])

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def has_slots(self, *ranges):
        """`ranges` are (first, last, node)."""
        entries = [
            b"*3\r\n:%d\r\n:%d\r\n*3\r\n$0\r\n\r\n:%d\r\n$2\r\nid\r\n" % (first, last, node.port)
            for first, last, node in ranges
        ]
        self.answers["CLUSTER"] = b"*%d\r\n" % len(entries) + b"".join(entries)

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def nodes():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Node())) for _ in range(2)]


@pytest.fixture
def ask():
    with contextlib.ExitStack() as stack:

        def ask(nodes, commands=GET):
            if isinstance(nodes, Node):
                nodes = RedisNodes([RedisAddress("127.0.0.1", nodes.port)], PATIENT)
                stack.callback(nodes.close)
            return nodes.execute(commands)

        yield ask


def test_a_slot_that_has_moved_is_followed(nodes, ask):
    first, second = nodes
    first.has_slots((0, SLOTS - 1, first))
    second.has_slots((0, SLOTS - 1, second))
    first.answers["GET"] = b"-MOVED 15495 127.0.0.1:%d\r\n" % second.port
    second.answers["GET"] = b"+here\r\n"
    assert ask(first) == [b"here"]


def test_a_slot_that_is_moving_is_asked_for_where_it_goes(nodes, ask):
    first, second = nodes
    first.has_slots((0, SLOTS - 1, first))
    first.answers["GET"] = b"-ASK 15495 :%d\r\n" % second.port
    second.answers |= {"ASKING": b"+OK\r\n", "GET": b"+there\r\n"}
    assert ask(first, GET * 2) == [b"there"] * 2
    assert second.asked == [[b"ASKING"], [b"GET", b"a"]] * 2


def test_redirections_without_end_are_ended(nodes, ask):
    first, second = nodes
    for node, other in ((first, second), (second, first)):
        node.has_slots((0, SLOTS - 1, node))
        node.answers["GET"] = b"-MOVED 15495 127.0.0.1:%d\r\n" % other.port
    with pytest.raises(StoreUnavailable, match="the cluster is changing, redirected 5 times"):
        ask(first)


def test_keys_of_which_some_have_moved_are_tried_again_for_a_while(nodes, ask):
    first, _ = nodes
    first.has_slots((0, SLOTS - 1, first))
    first.answers["GET"] = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
    with pytest.raises(StoreUnavailable, match="the cluster is changing"):
        ask(first)
    assert first.asked.count([b"GET", b"a"]) == 6


@pytest.mark.parametrize("code", ["LOADING", "CLUSTERDOWN", "READONLY", "MASTERDOWN"])
def test_a_node_that_is_not_ready_and_then_is(nodes, code):
    first, _ = nodes
    first.has_slots((0, SLOTS - 1, first))
    first.answers["GET"] = f"-{code} not now\r\n".encode()
    with contextlib.closing(RedisNodes([RedisAddress("127.0.0.1", first.port)], PATIENT)) as asked:
        with pytest.raises(StoreUnavailable, match=f"Redis 127.0.0.1:{first.port}: {code} not now"):
            asked.execute(GET)
        first.answers["GET"] = b"+now\r\n"
        assert asked.execute(GET) == [b"now"]


def test_a_slot_that_nobody_serves(nodes, ask):
    first, _ = nodes
    first.has_slots((0, 15494, first))
    with pytest.raises(StoreUnavailable, match="no node serves slot 15495"):
        ask(first)


def test_commands_of_several_nodes_are_answered_in_their_order(nodes, ask):
    first, second = nodes
    first.has_slots((0, 3300, first), (3301, SLOTS - 1, second))  # "b" is of slot 3300, "c" of 7365
    first.answers["GET"], second.answers["GET"] = b":1\r\n", b":2\r\n"
    assert ask(first, [get(key) for key in (b"a", b"b", b"x{b}", b"c", b"{b}")]) == [2, 1, 1, 2, 1]


@pytest.mark.parametrize(
    "answer", [b"+OK\r\n", b"*1\r\n:1\r\n", b"*1\r\n*2\r\n:0\r\n:5\r\n", b"*1\r\n*3\r\n:0\r\n:5\r\n:1\r\n"]
)
def test_nonsense_about_slots(nodes, ask, answer):
    nodes[0].answers["CLUSTER"] = answer
    with pytest.raises(StoreError, match="is not the Redis protocol"):
        ask(nodes[0])


def test_silent_nodes_cost_the_time_out_once(nodes):
    """However many commands and nodes wait for it."""
    first, second = nodes
    first.has_slots((0, 3300, first), (3301, SLOTS - 1, second))
    first.answers["GET"] = second.answers["GET"] = b""
    access = RedisAccess(timeout_s=0.5)
    with contextlib.closing(RedisNodes([RedisAddress("127.0.0.1", first.port)], access)) as asked:
        begin_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"has not answered within 0\.5 s"):
            asked.execute([get(key) for key in (b"a", b"b")] * 50)
        assert time.monotonic() - begin_s < 10.0


@pytest.mark.parametrize("text", ["This instance has cluster support disabled", "unknown command 'CLUSTER'"])
def test_an_instance_that_is_no_cluster_has_all_slots(nodes, ask, text):
    nodes[0].answers |= {"CLUSTER": f"-ERR {text}\r\n".encode(), "GET": b"+yes\r\n"}
    assert ask(nodes[0], GET * 2) == [b"yes"] * 2


def test_an_instance_that_becomes_a_node_of_a_cluster(nodes):
    first, second = nodes
    first.answers |= {"CLUSTER": b"-ERR This instance has cluster support disabled\r\n", "GET": b"+alone\r\n"}
    with contextlib.closing(RedisNodes([RedisAddress("127.0.0.1", first.port)], PATIENT)) as asked:
        assert asked.execute(GET) == [b"alone"]
        first.has_slots((0, SLOTS - 1, second))
        first.answers["GET"] = b"-MOVED 15495 127.0.0.1:%d\r\n" % second.port
        second.answers["GET"] = b"+together\r\n"
        with pytest.raises(StoreUnavailable, match="MOVED"):
            asked.execute(GET)
        assert asked.execute(GET) == [b"together"]


def test_closed(nodes, ask):
    nodes[0].has_slots((0, SLOTS - 1, nodes[0]))
    closed = RedisNodes([RedisAddress("127.0.0.1", nodes[0].port)], PATIENT)
    closed.close()
    closed.close()
    with pytest.raises(StoreError, match="is closed"):
        ask(closed)
