"""Requests as lists of buffers: small headers, cached by query size, and slices of the query pool between them.

Nothing is copied or formatted per request. HTTP writes the list as it is, gRPC cuts it into frames where they lie.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from hebe.load_generator.protobuf_wire import infer_request_head, raw_contents_head
from hebe.load_generator.queries.model_inputs import ModelInput
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.target import Target

Buffer = bytes | memoryview


class RequestBody(Protocol):
    """Gives the buffers of whole requests."""

    def parts(self, items: int, offset: int) -> Sequence[Buffer]:
        """The request for the pool's items [offset, offset + items), to be sent one buffer after the other."""
        ...


class BinaryHttpRequests:
    """HTTP requests with the binary tensor extension: JSON, then raw tensors, little-endian and row-major."""

    def __init__(self, target: Target, pool: QueryPool) -> None:
        self._target = target
        self._inputs = pool.model.inputs
        self._tensors = [_Slices(tensor, array) for tensor, array in zip(self._inputs, pool.arrays, strict=True)]
        self._heads: dict[int, bytes] = {}

    def parts(self, items: int, offset: int) -> Sequence[Buffer]:
        """The request line, headers and JSON in one buffer, then one for each tensor."""
        head = self._heads.get(items)
        if head is None:
            head = self._heads[items] = self._head(items)
        return [
            head,
            *[tensor.view[offset * tensor.stride : (offset + items) * tensor.stride] for tensor in self._tensors],
        ]

    def _head(self, items: int) -> bytes:
        described = {
            "inputs": [
                {
                    "name": tensor.name,
                    "shape": [items, *tensor.columns],
                    "datatype": tensor.datatype,
                    "parameters": {"binary_data_size": items * tensor.item_bytes},
                }
                for tensor in self._inputs
            ],
            "parameters": {**self._target.parameters(), "binary_data_output": True},
        }
        text = json.dumps(described, separators=(",", ":")).encode()
        # Padded so that tensors behind it are aligned for a server that maps them where they lie.
        text += b" " * (-len(text) % 8)
        size_bytes = len(text) + sum(items * tensor.item_bytes for tensor in self._inputs)
        extra = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(text)}\r\n"
        return http_head(self._target, size_bytes, extra) + text


class JsonHttpRequests:
    """HTTP requests with all tensors as JSON numbers."""

    def __init__(self, target: Target, pool: QueryPool) -> None:
        self._target = target
        self._inputs = pool.model.inputs
        self._texts = [_JsonRows(array) for array in pool.arrays]

    def parts(self, items: int, offset: int) -> Sequence[Buffer]:
        """Request line and headers, then JSON in pieces."""
        body: list[Buffer] = []
        before = '{"inputs":['
        for tensor, text in zip(self._inputs, self._texts, strict=True):
            described = {"name": tensor.name, "shape": [items, *tensor.columns], "datatype": tensor.datatype}
            body.append(f'{before}{json.dumps(described)[:-1]},"data":['.encode())
            body.append(text.rows(offset, items))
            before = "]},"
        body.append(f']}}],"parameters":{json.dumps(self._target.parameters())}}}'.encode())
        size_bytes = sum(len(part) for part in body)
        return [http_head(self._target, size_bytes, "Content-Type: application/json\r\n"), *body]


class GrpcRequests:
    """ModelInferRequest messages with raw contents."""

    def __init__(self, target: Target, pool: QueryPool) -> None:
        self._target = target
        self._inputs = pool.model.inputs
        self._tensors = [_Slices(tensor, array) for tensor, array in zip(self._inputs, pool.arrays, strict=True)]
        self._heads: dict[int, tuple[bytes, list[bytes]]] = {}

    def parts(self, items: int, offset: int) -> Sequence[Buffer]:
        """The message in pieces."""
        cached = self._heads.get(items)
        if cached is None:
            cached = self._heads[items] = self._head(items)
        head, heads = cached
        parts: list[Buffer] = [head]
        for before, tensor in zip(heads, self._tensors, strict=True):
            parts.append(before)
            parts.append(tensor.view[offset * tensor.stride : (offset + items) * tensor.stride])
        return parts

    def _head(self, items: int) -> tuple[bytes, list[bytes]]:
        described = [(tensor.name, tensor.datatype, (items, *tensor.columns)) for tensor in self._inputs]
        head = infer_request_head(self._target.model, self._target.version, self._target.parameters(), described)
        return head, [raw_contents_head(items * tensor.item_bytes) for tensor in self._inputs]


def http_head(target: Target, size_bytes: int, extra: str) -> bytes:
    """Request line and headers of an inference request whose body has `size_bytes` bytes."""
    version = f"/versions/{quote(target.version, safe='')}" if target.version else ""
    token = "" if target.api_token is None else f"Authorization: Bearer {target.api_token}\r\n"
    return (
        f"POST {target.endpoint.prefix}/v2/models/{quote(target.model, safe='')}{version}/infer HTTP/1.1\r\n"
        f"Host: {target.endpoint.address}\r\n{token}{extra}Content-Length: {size_bytes}\r\n\r\n"
    ).encode()


def request_body(target: Target, pool: QueryPool) -> RequestBody:
    """The requests that `target` speaks."""
    kinds: dict[tuple[str, str], Callable[[Target, QueryPool], RequestBody]] = {
        ("http", "binary"): BinaryHttpRequests,
        ("http", "json"): JsonHttpRequests,
    }
    return kinds.get((target.endpoint.protocol, target.encoding), GrpcRequests)(target, pool)


class _Slices:
    """One input's array as bytes, and the bytes of one item."""

    __slots__ = ("stride", "view")

    def __init__(self, tensor: ModelInput, array: npt.NDArray[np.generic]) -> None:
        self.view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.stride = tensor.item_bytes


class _JsonRows:
    """One input's array as JSON text, sliced at item boundaries."""

    def __init__(self, array: npt.NDArray[np.generic]) -> None:
        rows = [json.dumps(row)[1:-1].encode() for row in array.reshape(len(array), -1).tolist()]
        self._text = memoryview(b",".join(rows))
        self._starts = [0, *np.cumsum([len(row) + 1 for row in rows]).tolist()]

    def rows(self, offset: int, items: int) -> memoryview:
        return self._text[self._starts[offset] : self._starts[offset + items] - 1]
