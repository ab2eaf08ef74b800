"""Requests that say the same as one before, in all but their tensors: what they say is read and checked once.

A client that sends no ids says the same with each query of the same size: the JSON before the tensors, or a protobuf
message without its raw contents. What it takes to read and check that again, for ten features, is a fifth
of all that a server does for a query beside running it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

from hebe.query import JaggedKeys
from hebe.serving.requests.buffer_layout import BufferLayout
from hebe.serving.requests.errors import InvalidInput
from hebe.serving.requests.infer_request import InferRequest
from hebe.serving.requests.query_decoder import DENSE, DecodedQuery, QueryDecoder
from hebe.serving.requests.repeated import Repeated
from hebe.spec import OutOfRange

MOST_HEADER_BYTES = 8192
"""Longer ones are read anew each time."""

_MOST_KNOWN = 1024


class KnownHeader:
    """What one says: `request`, without its tensors, its `items`, and whether scores go out raw (`binary`)."""

    def __init__(
        self, request: InferRequest, binary: bool, layout: BufferLayout, extent: Any, decoder: QueryDecoder
    ) -> None:
        self.request = request
        self.binary = binary
        self._layout = layout
        self._extent = extent
        self._decoder = ref(decoder)

    @property
    def items(self) -> int:
        """Of its query."""
        return self._layout.items

    def is_of(self, decoder: QueryDecoder) -> bool:
        """Whether it was for this version of this model, as it is loaded now."""
        return self._decoder() is decoder

    def read(
        self, buffer: memoryview, extent: Any, arrival_s: float, deadline_s: float = math.inf
    ) -> InferRequest | None:
        """The request, with its query decoded, that came with the raw tensors in `buffer`; None if these do not have
        the `extent` of those before, or something is wrong with them.
        """
        if extent != self._extent or (found := self._layout.find(buffer)) is None:
            return None
        asked = self.request
        decoded = DecodedQuery(self._layout.items, *found)
        return InferRequest(
            asked.model, asked.version, asked.request_id, (), arrival_s, asked.outputs, asked.parameters, deadline_s,
            decoded=decoded,
        )  # fmt: skip


class KnownHeaders:
    """Those of requests that were sent twice, with raw tensors of fixed features behind them: at most 8 MiB, and as
    much for what they say. None is empty. Not thread-safe.
    """

    def __init__(self) -> None:
        self._repeated: Repeated[KnownHeader | None] = Repeated(_MOST_KNOWN, MOST_HEADER_BYTES)

    def find(self, header: bytes) -> KnownHeader | None:
        """What is known of `header`."""
        return self._repeated.find(header)

    def comes_again(self, header: bytes, decoder: QueryDecoder) -> bool:
        """Whether `header`, to the model of `decoder`, came before, so that it pays to `keep` what it says."""
        known = self._repeated.find(header)
        if known is not None and not known.is_of(decoder):
            self._repeated.forget(header)
        return bool(header) and self._repeated.comes_again(header)

    def keep(
        self,
        header: bytes,
        request: InferRequest,
        starts: Sequence[int],
        extent: Any,
        decoder: QueryDecoder,
        *,
        binary: bool,
    ) -> None:
        """Keep what `header` said: `request`, of the model of `decoder`. Its tensors start at `starts` of some buffer,
        and `extent` is what of that must be the same again.
        """
        layout = _layout(request, starts, decoder)
        kept = replace(request, tensors=())
        said = None if layout is None else KnownHeader(kept, binary, layout, extent, decoder)
        self._repeated.keep(header, said)


def _layout(request: InferRequest, starts: Sequence[int], decoder: QueryDecoder) -> BufferLayout | None:
    """None if such requests have to be read anew each time."""
    tensors, spec = request.tensors, decoder.spec
    try:
        decoded = decoder.decode(tensors)
    except InvalidInput:
        return None
    refuse = all(feature.out_of_range is OutOfRange.REFUSE for feature in spec.features)
    if not refuse or any(isinstance(keys, JaggedKeys) for keys in decoded.features.values()):
        return None
    starts_of = {tensor.name: start for tensor, start in zip(tensors, starts, strict=True)}
    return BufferLayout(spec, decoded.items, starts_of, starts_of.get(DENSE, 0))
