"""From a request's tensors to the features of a query, checked whole against one model.

Inputs of a model, per embedding feature either NAME, INT64 `[items, lookups]`, or the pair NAME.values, INT64
`[total]`, and NAME.lengths, INT64 or INT32 `[items]`; and FP32 `dense` `[items, dense_dim]` where it has one.
After this, keys are within their tables, or at least not negative where the feature takes new ones, lengths within the
feature's lookups, and dense values finite: nothing further in checks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.query import FeatureKeys, FloatArray, JaggedKeys, KeyArray, bring_into_range, key_limit, unlike_behaviours
from hebe.serving.requests.errors import InvalidInput
from hebe.serving.requests.tensors import WireTensor
from hebe.spec import ModelSpec, OutOfRange

DENSE = "dense"
SCORE = "score"


class _Role(Enum):
    FIXED = 0
    VALUES = 1
    LENGTHS = 2
    DENSE = 3


@dataclass(frozen=True, slots=True)
class _Input:
    """What one input name stands for. `lookups`, `rows`, `rule` and `whole` are the feature's; for DENSE `lookups` is
    the width.
    """

    name: str
    role: _Role
    feature: str
    lookups: int
    rows: int
    rule: OutOfRange = OutOfRange.REFUSE
    whole: bool = False

    def in_range(self, keys: KeyArray) -> KeyArray | None:
        """`keys`, or what the feature makes of those outside of its table; None if it refuses them."""
        if not len(keys) or np.maximum.reduce(keys.view(np.uint64)) < self.rows:
            return keys
        if self.rule is OutOfRange.REFUSE:
            return None
        keys = bring_into_range(keys, self.rows, self.rule)
        return keys if np.maximum.reduce(keys.view(np.uint64)) < key_limit(self.rows, self.rule) else None


@dataclass(slots=True)
class DecodedQuery:
    """`items`, keys of every feature, `dense` float32 `[items, dense_dim]` or None; `described` as in `Query`."""

    items: int
    features: Mapping[str, FeatureKeys]
    dense: FloatArray | None
    described: KeyArray | None = None


class QueryDecoder:
    """Decodes requests for one model; immutable, made once per loaded model."""

    def __init__(self, spec: ModelSpec, max_items: int) -> None:
        self.spec = spec
        self.max_items = max_items
        self._inputs: dict[str, _Input] = {}
        self._behaviours = spec.behaviours
        for feature in spec.features:
            rows = spec.table(feature.table).rows
            for suffix, role in (("", _Role.FIXED), (".values", _Role.VALUES), (".lengths", _Role.LENGTHS)):
                name = feature.name + suffix
                self._inputs[name] = _Input(
                    name, role, feature.name, feature.lookups, rows, feature.out_of_range, feature.whole
                )
        if spec.dense_dim:
            self._inputs[DENSE] = _Input(DENSE, _Role.DENSE, "", spec.dense_dim, 0)
        self.most_values = max_items * max(entry.lookups for entry in self._inputs.values())
        """Of the widest input of the largest query."""
        self.most_inputs = 2 * len(spec.features) + bool(spec.dense_dim)
        """Where all features are jagged."""

    def decode(self, tensors: Iterable[WireTensor], *, complete: bool = True) -> DecodedQuery:
        """Check `tensors` and hand out their values, reshaped but not copied; of a part of the inputs, of which no
        scores are asked, if not `complete`.

        Raises `InvalidInput`; the message names the input, and for a key also item, value and limit.
        """
        items = -1
        first = ""
        features: dict[str, FeatureKeys] = {}
        values: dict[str, KeyArray] = {}
        lengths: dict[str, KeyArray] = {}
        dense: FloatArray | None = None
        inputs = self._inputs
        for name, datatype, shape, flat in tensors:
            known = inputs.get(name)
            if known is None:
                raise self._unknown_input(name)
            role = known.role
            if role is _Role.FIXED:
                if datatype != "INT64":
                    raise _wrong_datatype(name, datatype, "INT64")
                if len(shape) != 2 or shape[1] != known.lookups:
                    raise _wrong_shape(name, shape, f"[items, {known.lookups}]")
                if name in features:
                    raise _duplicate(name)
                keys = known.in_range(flat)
                if keys is None:
                    raise _key_out_of_range(name, flat, known, np.arange(len(flat)) // known.lookups)
                features[name] = keys.reshape(shape)
            elif role is _Role.VALUES:
                if datatype != "INT64":
                    raise _wrong_datatype(name, datatype, "INT64")
                if len(shape) != 1:
                    raise _wrong_shape(name, shape, "[total keys]")
                if known.feature in values:
                    raise _duplicate(name)
                values[known.feature] = flat
                continue
            elif role is _Role.LENGTHS:
                if datatype not in ("INT64", "INT32"):
                    raise _wrong_datatype(name, datatype, "INT64 or INT32")
                if len(shape) != 1:
                    raise _wrong_shape(name, shape, "[items]")
                if known.feature in lengths:
                    raise _duplicate(name)
                lengths[known.feature] = flat
            else:
                if datatype != "FP32":
                    raise _wrong_datatype(name, datatype, "FP32")
                if len(shape) != 2 or shape[1] != known.lookups:
                    raise _wrong_shape(name, shape, f"[items, {known.lookups}]")
                if dense is not None:
                    raise _duplicate(name)
                dense = _finite(name, flat, shape)
            if shape[0] != items:
                if items >= 0:
                    raise InvalidInput(f"input {name!r}: has {shape[0]} item(s); input {first!r} has {items}")
                items, first = shape[0], name
                self._check_items(name, items)
        for feature in values.keys() | lengths.keys():
            features[feature] = self._jagged(feature, values, lengths, features, items, complete=complete)
        if complete and (len(features) != len(self.spec.features) or (dense is None and self.spec.dense_dim)):
            raise self._missing_inputs(features, dense)
        if complete and values and (unlike := unlike_behaviours(features, self._behaviours)):
            raise InvalidInput(unlike)
        return DecodedQuery(items, features, dense)

    def _check_items(self, name: str, items: int) -> None:
        if items < 1:
            raise InvalidInput(f"input {name!r}: has no items; a query needs at least 1")
        if items > self.max_items:
            raise InvalidInput(f"input {name!r}: has {items} items; a query may have at most {self.max_items}")

    def _jagged(
        self,
        feature: str,
        values: dict[str, KeyArray],
        lengths: dict[str, KeyArray],
        fixed: dict[str, FeatureKeys],
        items: int,
        *,
        complete: bool,
    ) -> JaggedKeys:
        """The pair of inputs of one jagged feature, checked."""
        if feature in fixed:
            raise InvalidInput(
                f"input {feature!r} is given both fixed and as .values and .lengths; give one of the two forms"
            )
        if feature not in values or feature not in lengths:
            absent = f"{feature}.values" if feature not in values else f"{feature}.lengths"
            raise InvalidInput(f"input {absent!r} is missing; a jagged feature needs both .values and .lengths")
        counts, keys = lengths[feature], values[feature]
        known = self._inputs[feature]
        most = known.lookups
        low, high = int(np.minimum.reduce(counts)), int(np.maximum.reduce(counts))
        if low < 0 or high > most:
            item = int(np.argmax((counts < 0) | (counts > most)))
            raise InvalidInput(
                f"input '{feature}.lengths': length {int(counts[item])} of item {item} is out of range; "
                f"it must lie in 0..{most}"
            )
        if complete and known.whole and low < most:
            item = int(np.argmin(counts))
            raise InvalidInput(
                f"input '{feature}.lengths': length {low} of item {item} is too short; the model takes the "
                f"maximum over all {most} keys of feature '{feature}': send {most} for each item, or '{feature}' "
                f"[items, {most}]"
            )
        offsets = np.zeros(items + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        if offsets[-1] != len(keys):
            raise InvalidInput(
                f"input '{feature}.lengths': lengths sum to {int(offsets[-1])}; "
                f"'{feature}.values' has {len(keys)} key(s)"
            )
        in_range = known.in_range(keys)
        if in_range is None:
            raise _key_out_of_range(f"{feature}.values", keys, known, np.repeat(np.arange(items), counts))
        return JaggedKeys(in_range, offsets)

    def _unknown_input(self, name: str) -> InvalidInput:
        return InvalidInput(f"input {name!r:.100} is unknown to model {self.spec.name}; {_expected(self.spec)}")

    def _missing_inputs(self, given: dict[str, FeatureKeys], dense: FloatArray | None) -> InvalidInput:
        missing = [feature.name for feature in self.spec.features if feature.name not in given]
        if self.spec.dense_dim and dense is None:
            missing.append(DENSE)
        return InvalidInput(f"input(s) missing: {_some(missing)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _expected(spec: ModelSpec) -> str:
    names = [feature.name for feature in spec.features] + ([DENSE] if spec.dense_dim else [])
    return f"its inputs are {_some(names)}"


def _wrong_datatype(name: str, datatype: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"input {name!r}: datatype is {datatype}; it must be {wanted}")


def _wrong_shape(name: str, shape: tuple[int, ...], wanted: str) -> InvalidInput:
    return InvalidInput(f"input {name!r}: shape is {list(shape)}; it must be {wanted}")


def _duplicate(name: str) -> InvalidInput:
    return InvalidInput(f"input {name!r} is given twice")


def _finite(name: str, flat: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """`flat` as `shape`, refused if it holds NaN or an infinity: both survive a maximum or a minimum."""
    if flat.size and not (np.isfinite(np.maximum.reduce(flat)) and np.isfinite(np.minimum.reduce(flat))):
        at = int(np.argmin(np.isfinite(flat)))
        item, column = divmod(at, shape[1])
        raise InvalidInput(
            f"input {name!r}: value {flat[at]} of item {item}, column {column}; every value must be finite"
        )
    return flat.reshape(shape)


def _key_out_of_range(name: str, keys: KeyArray, known: _Input, items_of_keys: npt.NDArray[Any]) -> InvalidInput:
    """Names the first key that the feature refuses (a negative key is a huge one when seen as unsigned)."""
    refused = bring_into_range(keys, known.rows, known.rule).view(np.uint64) >= key_limit(known.rows, known.rule)
    at = int(np.argmax(refused))
    limits = {
        OutOfRange.CLAMP_LOW: f"be at most {known.rows - 1}",
        OutOfRange.CLAMP_HIGH: "not be negative",
        OutOfRange.UNKNOWN: "not be negative",
    }.get(known.rule, f"lie in 0..{known.rows - 1}")
    return InvalidInput(
        f"input {name!r}: key {int(keys[at])} of item {int(items_of_keys[at])} is out of range; keys must {limits}"
    )
