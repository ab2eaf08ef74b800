"""Inference requests and answers as gRPC carries them: tensors raw or in typed fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hebe.serving.grpc.protocol import message
from hebe.serving.requests.errors import InvalidInput
from hebe.serving.requests.infer_request import InferAnswer, InferRequest
from hebe.serving.requests.query_decoder import SCORE
from hebe.serving.requests.tensors import MAX_COUNT, MAX_RANK, WireTensor, tensor_from_buffer, tensor_from_field

_CONTENTS_FIELD = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""Which field of InferTensorContents holds a datatype."""


_MOST_PARAMETERS = 64


def metadata_value(context: Any, key: str) -> str | None:
    """What a call's metadata says of `key`; None if nothing, or not as text."""
    value = next((value for name, value in context.invocation_metadata() or () if name == key), None)
    return value if isinstance(value, str) else None


def parameters_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A protobuf map of parameters as plain values; None where a value is not set. Raises `InvalidInput`: too many."""
    if len(parameters) > _MOST_PARAMETERS:
        raise InvalidInput(f"there are {len(parameters)} parameters; at most {_MOST_PARAMETERS} are taken")
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = getattr(parameter, choice) if choice else None
    return values


_RAW_INPUT_CONTENTS = 7 << 3 | 2
"""The tag of ModelInferRequest's field `raw_input_contents`: number 7, length-delimited."""
_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
"""Protobuf's wire types; 3 and 4 are groups, which no message of the protocol has."""


def split_raw_contents(data: bytes, most_fields: int) -> tuple[bytes, list[slice]]:
    """(a ModelInferRequest without its `raw_input_contents`, where those lie in `data`).

    The tensors are most of a request, and parsing them as protobuf copies them twice. Raises `InvalidInput` if `data`
    is not made of whole fields, of which there are at most `most_fields`.
    """
    view, end = memoryview(data), len(data)
    rest: list[memoryview] = []
    raw: list[slice] = []
    at = 0
    while at < end:
        if len(rest) + len(raw) >= most_fields:
            raise InvalidInput(f"the message has more than {most_fields} fields, as many as any model here could need")
        start, tag = at, data[at]
        at += 1
        if tag > 0x7F:
            tag, at = _varint(data, start)
        kind = tag & 7
        if kind == _DELIMITED:
            size = data[at] if at < end else 0x80
            at += 1
            if size > 0x7F:
                size, at = _varint(data, at - 1)
            if at + size > end:
                raise _malformed(start)
            if tag == _RAW_INPUT_CONTENTS:
                raw.append(slice(at, at + size))
                at += size
                continue
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
            if at > end:
                raise _malformed(start)
        else:
            raise _malformed(start)
        rest.append(view[start:at])
    return b"".join(rest), raw


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """(the number that begins at `start`, where it ends). Raises `InvalidInput`."""
    value = 0
    for place, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, start + place + 1
    raise _malformed(start)


def _malformed(at: int) -> InvalidInput:
    return InvalidInput(f"not a ModelInferRequest: malformed at byte {at}")


def decode_infer(
    request: Any,
    arrival_s: float,
    deadline_s: float = math.inf,
    raw_contents: Sequence[memoryview] = (),
    most_values: int = MAX_COUNT,
) -> tuple[InferRequest, bool]:
    """(what `request`, a ModelInferRequest, asks; whether its tensors are raw). Raises `InvalidInput`.

    `raw_contents` are those that were split off before it was parsed. A typed input may have `most_values`.
    """
    raw = raw_contents or request.raw_input_contents
    if len(raw):
        tensors = _raw_inputs(request.inputs, raw)
    else:
        tensors = [_typed_input(entry, most_values) for entry in request.inputs]
    if not tensors:
        raise InvalidInput("field 'inputs' is empty; it must list the model's inputs")
    outputs = [_output(entry) for entry in request.outputs] or None
    parameters = parameters_of(request.parameters) if request.parameters else {}
    decoded = InferRequest(
        request.model_name, request.model_version, request.id, tensors, arrival_s, outputs, parameters, deadline_s
    )
    return decoded, bool(len(raw))


def _raw_inputs(inputs: Any, raw: Any) -> list[WireTensor]:
    if len(raw) != len(inputs):
        raise InvalidInput(
            f"field 'raw_input_contents' has {len(raw)} element(s); there are {len(inputs)} inputs, each needs one"
        )
    tensors = []
    for entry, data in zip(inputs, raw, strict=True):
        _check_parameters("input", entry)
        if entry.HasField("contents"):
            raise InvalidInput(f"input {entry.name!r:.100}: has both contents and raw_input_contents; send one of them")
        tensors.append(tensor_from_buffer(entry.name, entry.datatype, _shape(entry), data))
    return tensors


def _shape(entry: Any) -> tuple[int, ...]:
    """The shape of an input, which is not read where it has too many dimensions to be one."""
    return tuple(entry.shape[: MAX_RANK + 1])


def _typed_input(entry: Any, most_values: int) -> WireTensor:
    _check_parameters("input", entry)
    field = _CONTENTS_FIELD.get(entry.datatype)
    if field is None:
        raise InvalidInput(
            f"input {entry.name!r:.100}: datatype {entry.datatype!r:.30} is not supported; use INT64, INT32 or FP32"
        )
    for other, _ in entry.contents.ListFields():
        if other.name != field:
            raise InvalidInput(
                f"input {entry.name!r:.100}: contents are in {other.name}; {entry.datatype} belongs in {field}"
            )
    return tensor_from_field(entry.name, entry.datatype, _shape(entry), getattr(entry.contents, field), most_values)


def _check_parameters(kind: str, entry: Any) -> None:
    if entry.parameters and "shared_memory_region" in entry.parameters:
        raise InvalidInput(f"{kind} {entry.name!r:.100} asks for shared memory, which is not supported")


def _output(entry: Any) -> str:
    _check_parameters("output", entry)
    if entry.parameters and "classification" in entry.parameters:
        raise InvalidInput(
            f"output {entry.name!r:.100}: parameter 'classification' is not supported; take the scores themselves"
        )
    name: str = entry.name
    return name


def encode_answer(answer: InferAnswer, raw: bool) -> Any:
    """`answer` as a ModelInferResponse, its scores raw or in `fp32_contents` as the request's tensors were."""
    scores = answer.scores
    response = message("ModelInferResponse")(
        model_name=answer.model, model_version=str(answer.version), id=answer.request_id
    )
    for name, value in answer.parameters.items():
        if isinstance(value, float):
            response.parameters[name].double_param = value
        else:
            response.parameters[name].int64_param = value
    output = response.outputs.add(name=SCORE, datatype="FP32", shape=scores.shape)
    if raw:
        response.raw_output_contents.append(np.ascontiguousarray(scores, "<f4").tobytes())
    else:
        output.contents.fp32_contents.extend(scores.reshape(-1).tolist())
    return response
