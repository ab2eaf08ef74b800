"""A server that speaks the Open Inference Protocol and computes nothing: what a load generator is measured against.

    python -m hebe.bench.echo_server --inputs 10x80 --dense 128 [--service-ms MS] [--status CODE] [--core N]

It prints one JSON line with its ports once it listens, and ends when its standard input is closed, so that it
cannot outlive whoever started it. With `--service-ms` it answers as a server with one worker would that takes so long
for each query, without using the CPU for it: arrivals wait for those before them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import socket
import sys
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import uvloop

from hebe.load_generator.protobuf_wire import delimited, delimited_head, varint
from hebe.runtime.large_allocations import keep_large_allocations
from hebe.runtime.pinning import pin_thread

_HEAD_BYTES = 4096
_SCRATCH = bytearray(1 << 22)
_DROP = socket.MSG_TRUNC
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SCORES = bytes(1024)


@dataclass(frozen=True, slots=True)
class EchoModel:
    """What the server claims to be: `features` inputs INT64 `[items, lookups]`, one FP32 `[items, dense_dim]`."""

    name: str = "echo"
    features: int = 10
    lookups: int = 80
    dense_dim: int = 128
    rows: int = 1_000_000
    sla_ms: float = 100.0
    service_s: float = 0.0
    status: int = 200

    def inputs(self) -> list[tuple[str, str, int]]:
        """Name, datatype and width of each input."""
        dense = [("dense", "FP32", self.dense_dim)] if self.dense_dim else []
        return [(f"feature_{i}", "INT64", self.lookups) for i in range(self.features)] + dense

    def parameters(self) -> dict[str, str]:
        """Parameters of its configuration."""
        rows = {f"rows.{name}": str(self.rows) for name, datatype, _ in self.inputs() if datatype == "INT64"}
        return {"sla_ms": f"{self.sla_ms:g}", "sla_percentile": "95", **rows}


class EchoServer:
    """HTTP and gRPC on loopback; ports are chosen by the system unless given."""

    def __init__(self, model: EchoModel) -> None:
        self.model = model
        self.answered = 0
        self.http_port = 0
        self.grpc_port = 0
        self._free_s = 0.0
        parameters = {name: {"string_value": value} for name, value in model.parameters().items()}
        inputs = [{"name": n, "datatype": d, "shape": [-1, width]} for n, d, width in model.inputs()]
        self.pages = {
            f"/v2/models/{model.name}": {"name": model.name, "inputs": inputs, "outputs": []},
            f"/v2/models/{model.name}/config": {"name": model.name, "parameters": parameters},
        }

    async def start(self) -> None:
        """Listen."""
        self._http = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._http.setblocking(False)
        self.http_port = self._http.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._http, self._accept)
        keep_large_allocations()
        self._grpc = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)])
        methods = {
            "ModelMetadata": self._metadata,
            "ModelConfig": self._config,
            "ModelInfer": self._infer,
        }
        handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),)
        )
        self.grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        await self._grpc.start()

    async def stop(self) -> None:
        """Stop listening; connections end with the process."""
        asyncio.get_running_loop().remove_reader(self._http)
        self._http.close()
        await self._grpc.stop(None)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            _HttpEcho(self, self._http.accept()[0])

    def delay_s(self) -> float:
        """How long the query that has just arrived takes: its turn, and its own service time."""
        self.answered += 1
        if not self.model.service_s:
            return 0.0
        now = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now) + self.model.service_s
        return self._free_s - now

    async def _metadata(self, request: bytes, context: Any) -> bytes:
        if delimited(1, self.model.name) not in request:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        inputs = [
            delimited(4, delimited(1, name) + delimited(2, datatype) + delimited(3, varint(-1) + varint(width)))
            for name, datatype, width in self.model.inputs()
        ]
        return delimited(1, self.model.name) + b"".join(inputs)

    async def _config(self, _request: bytes, _context: Any) -> bytes:
        entries = [
            delimited(14, delimited(1, name) + delimited(2, delimited(1, value)))
            for name, value in self.model.parameters().items()
        ]
        return delimited(1, delimited(1, self.model.name) + b"".join(entries))

    async def _infer(self, _request: bytes, context: Any) -> bytes:
        if (delay_s := self.delay_s()) > 0:
            await asyncio.sleep(delay_s)
        if self.model.status != 200:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "refused by request")
        return delimited(1, self.model.name) + delimited_head(6, len(_SCORES)) + _SCORES


class _HttpEcho:
    """One connection: drops bodies, answers at their end.

    On the bare socket, since the kernel can drop the bytes of a TCP stream without copying them (MSG_TRUNC).
    """

    def __init__(self, server: EchoServer, connection: socket.socket) -> None:
        self._server = server
        self._socket = connection
        self._head = b""
        self._missing = 0
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(connection, self._readable)

    def _readable(self) -> None:
        try:
            if self._missing:
                dropped = self._socket.recv_into(_SCRATCH, min(self._missing, len(_SCRATCH)), _DROP)
                self._missing -= dropped
                if not dropped:
                    self.close()
                elif not self._missing:
                    self._answer_inference()
                return
            received = self._socket.recv(_HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._head += received
        end = self._head.find(b"\r\n\r\n")
        if not received:
            self.close()
        elif end >= 0:
            head, rest, self._head = self._head[:end], len(self._head) - end - 4, b""
            if head.startswith(b"GET "):
                self._answer_page(head.split(b" ", 2)[1].decode())
                return
            length = _CONTENT_LENGTH.search(head)
            self._missing = max(int(length.group(1)) - rest, 0) if length else 0
            if not self._missing:
                self._answer_inference()

    def close(self) -> None:
        """Hang up."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _answer_page(self, path: str) -> None:
        page = self._server.pages.get(path)
        status = 200 if page is not None else 404
        self._write(status, json.dumps(page or {"error": f"unknown path {path}"}).encode())

    def _answer_inference(self) -> None:
        delay_s = self._server.delay_s()
        if delay_s > 0:
            self._loop.call_later(delay_s, self._write_scores)
        else:
            self._write_scores()

    def _write_scores(self) -> None:
        status = self._server.model.status
        self._write(status, _SCORES if status == 200 else b'{"error": "refused by request"}')

    def _write(self, status: int, body: bytes) -> None:
        # A kilobyte always fits into the socket of a client that waits for it.
        with contextlib.suppress(OSError):
            self._socket.send(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


async def _serve(model: EchoModel) -> None:
    server = EchoServer(model)
    await server.start()
    print(json.dumps({"http_port": server.http_port, "grpc_port": server.grpc_port}), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop()


def main() -> None:
    """The command line in the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m hebe.bench.echo_server", description="Answer without computing.")
    parser.add_argument("--inputs", default="10x80", help="FEATURESxLOOKUPS")
    parser.add_argument("--dense", type=int, default=128)
    parser.add_argument("--service-ms", type=float, default=0.0)
    parser.add_argument("--status", type=int, default=200)
    parser.add_argument("--core", type=int, help="the core to run on")
    given = parser.parse_args()
    if given.core is not None:
        pin_thread([given.core])
    features, lookups = (int(part) for part in given.inputs.split("x"))
    model = EchoModel(
        features=features,
        lookups=lookups,
        dense_dim=given.dense,
        service_s=given.service_ms / 1e3,
        status=given.status,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(model))


if __name__ == "__main__":
    main()
