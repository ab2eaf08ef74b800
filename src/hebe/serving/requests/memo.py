"""What requests have in common with those before: read and checked once, then only compared.

A client that sends no ids says the same with each query of the same size: the JSON before the tensors, or a protobuf
message without its raw contents. What it takes to read and check that again, for ten features, is a fifth of all that a
server does for a query besides running it. So three things are kept:

`KnownHeaders`  what a request says, in all but its tensors
`Repeated`      what was made of bytes that came more than once: the same head of a request, the same JSON before
                tensors of the same shapes. Nothing is kept of what comes once, as where each request has an id
`BufferLayout`  where which keys are in one received buffer, and that they fit the spec, so that of a query which
                lies in its buffer in the same way only the keys themselves are looked at, all in one call
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

import numpy as np

from hebe.embeddings.batches.key_matrix import describe_keys, find_keys
from hebe.query import FloatArray, JaggedKeys, KeyArray
from hebe.serving.requests.errors import InvalidInput
from hebe.serving.requests.infer_request import InferRequest
from hebe.serving.requests.query_decoder import DENSE, DecodedQuery, QueryDecoder
from hebe.spec import ModelSpec, OutOfRange

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


_Value = TypeVar("_Value")

_MOST_SEEN = 8192


class Repeated(Generic[_Value]):
    """At most `most` values, of texts of at most `most_bytes`. Not thread-safe."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[bytes, _Value] = {}
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, text: bytes) -> _Value | None:
        """What was kept of `text`."""
        return self._kept.get(text) if len(text) <= self._most_bytes else None

    def comes_again(self, text: bytes) -> bool:
        """Whether `text`, of which nothing is kept, came before, so that it pays to keep what is made of it."""
        if len(text) > self._most_bytes or text in self._kept:
            return False
        mark = hash(text)
        if mark in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return False

    def forget(self, text: bytes) -> None:
        """Keep nothing of `text` any more."""
        self._kept.pop(text, None)

    def keep(self, text: bytes, value: _Value) -> None:
        """Keep this of `text`, instead of what has been kept longest if that is much."""
        if len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        self._kept[text] = value


class FoundQuery(NamedTuple):
    """Keys of each feature, int64 `[items, lookups]`, and `dense`, float32 `[items, dense_dim]` or None, views of the
    buffer; `described` as in `Query`.
    """

    features: Mapping[str, KeyArray]
    dense: FloatArray | None
    described: KeyArray


class BufferLayout:
    """Of queries of so many `items` with a fixed number of keys for each feature: the keys of feature NAME start
    `keys_at[NAME]` bytes behind the start of the buffer, the numbers, where the model has any, `dense_at` bytes.
    """

    def __init__(self, spec: ModelSpec, items: int, keys_at: Mapping[str, int], dense_at: int = 0) -> None:
        self.items = items
        self._described = describe_keys(spec, items, keys_at)
        self._rows = np.array([spec.table(feature.table).rows for feature in spec.features], np.int64)
        self._features = [(each.name, (items, each.lookups), keys_at[each.name]) for each in spec.features]
        self._dense_shape, self._dense_at = (items, spec.dense_dim), dense_at

    def find(self, buffer: memoryview) -> FoundQuery | None:
        """The query in `buffer`; None if it has a key outside of its table, or a number that is not finite.

        Raises ValueError where the buffer is too small.
        """
        described = self._described.copy()
        dense_items, dense_dim = self._dense_shape
        if not find_keys(buffer, described, self._rows, self._dense_at, dense_items * dense_dim):
            return None
        features = {name: np.ndarray(shape, np.int64, buffer, at) for name, shape, at in self._features}
        dense = np.ndarray(self._dense_shape, np.float32, buffer, self._dense_at) if dense_dim else None
        return FoundQuery(features, dense, described)
