"""JSON headers that came before: what they say is read and checked once.

Few clients send ids, and those that do not send the same JSON with each query of the same size. What it takes to read
and check that again, for ten features, is a fifth of all that a server does for a query beside running it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hebe.query import JaggedKeys
from hebe.runtime.buffer_layout import BufferLayout
from hebe.serving.errors import InvalidInput
from hebe.serving.http_infer import HttpInfer
from hebe.serving.infer_request import InferRequest
from hebe.serving.query_decoder import DENSE, DecodedQuery, QueryDecoder
from hebe.serving.repeated import Repeated
from hebe.spec import OutOfRange

MOST_HEADER_BYTES = 8192
"""Longer headers are read anew each time."""

MOST_BUFFER_BYTES = 1 << 20
"""Of larger queries too: to look at their keys should not hold the interpreter lock, and costs more than all else."""

_MOST_KNOWN = 512


class _Known(NamedTuple):
    """What a header says, as `InferRequest` has it, whether scores go out raw, and how what follows it is laid out."""

    request_id: str
    outputs: Sequence[str] | None
    parameters: Mapping[str, Any]
    binary: bool
    size_bytes: int
    layout: BufferLayout


class KnownHeaders:
    """Those of requests to one model that were sent twice, with raw tensors of fixed features behind them.

    At most 4 MiB of headers, and as much for what they say. Holds nothing of the model. Not thread-safe.
    """

    def __init__(self) -> None:
        self._repeated: Repeated[_Known | None] = Repeated(_MOST_KNOWN, MOST_HEADER_BYTES)

    def announced(self, header: memoryview) -> tuple[Mapping[str, Any], int] | None:
        """The parameters of a request with this header, and its items; None if it is not known."""
        known = self._find(header)
        return None if known is None else (known.parameters, known.layout.items)

    def request(
        self, model: str, version: str, header: memoryview, buffer: memoryview, arrival_s: float
    ) -> HttpInfer | None:
        """A request with this header and the raw tensors in `buffer`, decoded; None if the header is not known, or
        something is wrong with what follows it, or has to be done to it.
        """
        known = self._find(header)
        if known is None or len(buffer) != known.size_bytes:
            return None
        found = known.layout.find(buffer)
        if found is None:
            return None
        decoded = DecodedQuery(known.layout.items, found.features, found.dense, found.described)
        request = InferRequest(
            model, version, known.request_id, (), arrival_s, known.outputs, known.parameters, decoded=decoded
        )
        return HttpInfer(request, known.binary)

    def _find(self, header: memoryview) -> _Known | None:
        return self._repeated.find(bytes(header)) if len(header) <= MOST_HEADER_BYTES else None

    def learn(self, header: memoryview, infer: HttpInfer, buffer: memoryview, decoder: QueryDecoder) -> None:
        """Take in what `header` said to the model of `decoder`, if it has come before. It came with the raw tensors in
        `buffer`.
        """
        if len(header) <= MOST_HEADER_BYTES and self._repeated.comes_again(text := bytes(header)):
            self._repeated.keep(text, _read(infer, buffer, decoder))


def _read(infer: HttpInfer, buffer: memoryview, decoder: QueryDecoder) -> _Known | None:
    """None if such requests have to be read anew each time."""
    request, spec = infer.request, decoder.spec
    if len(buffer) > MOST_BUFFER_BYTES or sum(tensor.values.nbytes for tensor in request.tensors) != len(buffer):
        return None  # some are in the JSON
    try:
        decoded = decoder.decode(request.tensors)
    except InvalidInput:
        return None
    refuse = all(feature.out_of_range is OutOfRange.REFUSE for feature in spec.features)
    if not refuse or any(isinstance(keys, JaggedKeys) for keys in decoded.features.values()):
        return None
    starts, at = {}, 0
    for tensor in request.tensors:
        starts[tensor.name] = at
        at += tensor.values.nbytes
    layout = BufferLayout(spec, decoded.items, starts, starts.get(DENSE, 0))
    return _Known(request.request_id, request.outputs, request.parameters, infer.binary, at, layout)
