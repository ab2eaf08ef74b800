"""Inference requests and answers as HTTP carries them: JSON, JSON with the binary-tensor extension, or raw.

A body is JSON, followed by raw tensors in the order in which the JSON names them, if the header
`Inference-Header-Content-Length` says where the JSON ends. A length of 0 means that there is no JSON at all: the
body is the one input of a model that has only one.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError, quoted
from hebe.serving.requests.infer_request import InferAnswer, InferRequest
from hebe.serving.requests.query_decoder import SCORE
from hebe.serving.requests.tensors import MAX_COUNT, WireTensor, tensor_from_buffer, tensor_from_values
from hebe.spec import ModelSpec

AS_BINARY = "send tensors as binary data behind a JSON header, whose size header Inference-Header-Content-Length tells"
"""What to do about much JSON."""

_OCTETS = b"application/octet-stream"
_JSON = b"application/json"
_MOST_OUTPUTS = 8
"""Of which each is looked at, to say what is wrong with it."""
_MOST_CONTAINERS, _MOST_MEMBERS = 1_000_000, 65_536
"""Lists and objects, and members of these, in the JSON of a request: more than any query has, and what takes the time
in which all others wait."""
_LARGE_BYTES = 64 * 1024


def parse_header_length(text: str | None, body_bytes: int) -> int | None:
    """The length of the JSON in bytes; None if the whole body is JSON. Raises `InvalidInput`."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(
            f"header Inference-Header-Content-Length is {text!r:.60}; it must be a whole number of bytes"
        )
    length = int(text)
    if length > body_bytes:
        raise InvalidInput(f"header Inference-Header-Content-Length is {length}; the body has only {body_bytes} bytes")
    return length


def parse_json_object(body: bytes | bytearray | memoryview, what: str) -> dict[str, Any]:
    """`body` as a JSON object, an empty body as an empty one. Raises `InvalidInput` saying where it breaks off, and
    `RequestError` TOO_LARGE for what has more parts than any query.
    """
    text = bytes(body)
    if not text:
        return {}
    if text.count(b"[") + text.count(b"{") > _MOST_CONTAINERS or text.count(b":") > _MOST_MEMBERS:
        raise RequestError(
            ErrorKind.TOO_LARGE,
            f"{what} has more than {_MOST_CONTAINERS:,} lists and objects, or {_MOST_MEMBERS:,} members of these; "
            + AS_BINARY,
        )
    try:
        with _without_collector() if len(text) > _LARGE_BYTES else contextlib.nullcontext():
            value = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise InvalidInput(f"{what} is not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} is a JSON {type(value).__name__}; it must be an object")
    return value


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """JSON has no cycles, and the collector would look at all that has been read again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class HttpInfer:
    """One request's JSON, read; `request` is what it asks, `binary` whether scores go out raw."""

    __slots__ = ("binary", "request")

    def __init__(self, request: InferRequest, binary: bool) -> None:
        self.request = request
        self.binary = binary


def parse_infer_document(body: memoryview, header_length: int | None) -> dict[str, Any]:
    """The JSON of a request's body, which is its first `header_length` bytes, or all of it. Raises `InvalidInput`."""
    if header_length is None:
        return parse_json_object(body, "the request's body")
    return parse_json_object(body[:header_length], "the request's JSON header")


def decode_infer(
    model: str,
    version: str,
    document: Mapping[str, Any],
    binary: memoryview | None,
    arrival_s: float,
    most_values: int = MAX_COUNT,
    most_inputs: int = MAX_COUNT,
) -> HttpInfer:
    """Read a request's `document` and, where it had a JSON header, the `binary` section behind it.

    There may be `most_inputs`, and one in JSON may have `most_values`. Raises `InvalidInput` naming the field that is
    wrong.
    """
    request_id = document.get("id", "")
    if not isinstance(request_id, str):
        raise InvalidInput(f"field 'id' is {quoted(request_id)}; it must be a string")
    parameters = _parameters(document, "the request")
    outputs, out_binary = _outputs(document.get("outputs"), parameters)
    tensors = _inputs(document.get("inputs"), binary, most_values, most_inputs)
    return HttpInfer(InferRequest(model, version, request_id, tensors, arrival_s, outputs, parameters), out_binary)


def announce_infer(model: str, version: str, document: Mapping[str, Any], arrival_s: float) -> tuple[InferRequest, int]:
    """What the JSON header alone tells of a request: the request without its tensors, and its items.

    Raises `InvalidInput` where it does not tell.
    """
    items = 0
    inputs = document.get("inputs")
    for entry in inputs if isinstance(inputs, list) else ():
        shape, name = (entry.get("shape"), entry.get("name")) if isinstance(entry, dict) else (None, None)
        if shape and isinstance(shape, list) and not (isinstance(name, str) and name.endswith(".values")):
            items = shape[0]
            break
    if type(items) is not int or items < 1:
        raise InvalidInput("the request's JSON header does not tell how many items it has")
    return InferRequest(model, version, "", (), arrival_s, None, _parameters(document, "the request")), items


def decode_raw_infer(model: str, version: str, body: memoryview, spec: ModelSpec, arrival_s: float) -> HttpInfer:
    """A body that is nothing but the keys of the model's only input; the number of items follows from its size.

    Raises `InvalidInput` if the model has other inputs, or the body no whole number of items.
    """
    if len(spec.features) != 1 or spec.dense_dim:
        count = len(spec.features) + bool(spec.dense_dim)
        raise InvalidInput(
            f"header Inference-Header-Content-Length is 0, which means one raw input; model {spec.name} has {count} "
            "inputs, so send a JSON header that describes them"
        )
    feature = spec.features[0]
    item_bytes = feature.lookups * 8
    items, rest = divmod(len(body), item_bytes)
    if rest:
        raise InvalidInput(
            f"input {feature.name!r}: has {len(body)} bytes of data; it must be a multiple of {item_bytes} "
            f"({feature.lookups} INT64 an item)"
        )
    tensor = tensor_from_buffer(feature.name, "INT64", (items, feature.lookups), body)
    return HttpInfer(InferRequest(model, version, "", [tensor], arrival_s), True)


def _parameters(holder: Mapping[str, Any], what: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidInput(f"field 'parameters' of {what} is {quoted(parameters)}; it must be an object")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool, what: str) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"parameter {name!r} of {what} is {quoted(value)}; it must be true or false")
    return value


def _no_shared_memory(parameters: Mapping[str, Any], what: str) -> None:
    if "shared_memory_region" in parameters:
        raise InvalidInput(f"{what} asks for shared memory, which is not supported; send the data in the request")


def _inputs(listed: Any, binary: memoryview | None, most_values: int, most_inputs: int) -> list[WireTensor]:
    """The tensors that the JSON lists, those with `binary_data_size` taken from `binary` in order."""
    if not isinstance(listed, list) or not listed:
        raise InvalidInput("field 'inputs' is missing or empty; it must be a list of the model's inputs")
    if len(listed) > most_inputs:
        raise InvalidInput(f"field 'inputs' lists {len(listed)}; the model has at most {most_inputs}")
    tensors = []
    at = 0
    for position, entry in enumerate(listed):
        if not isinstance(entry, dict):
            raise InvalidInput(f"inputs[{position}] is {quoted(entry)}; it must be an object")
        name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
        if not isinstance(name, str):
            raise InvalidInput(f"inputs[{position}]: field 'name' is {quoted(name)}; it must be a string")
        if not isinstance(datatype, str):
            raise InvalidInput(f"input {name!r:.100}: field 'datatype' is {quoted(datatype)}; it must be a string")
        if not isinstance(shape, list):
            raise InvalidInput(f"input {name!r:.100}: field 'shape' is {quoted(shape)}; it must be a list")
        parameters = entry.get("parameters")
        size = None
        if parameters:
            what = f"input {name!r:.100}"
            parameters = _parameters(entry, what)
            _no_shared_memory(parameters, what)
            size = parameters.get("binary_data_size")
        if size is None:
            if "data" not in entry:
                raise InvalidInput(f"input {name!r:.100}: has neither field 'data' nor parameter 'binary_data_size'")
            tensors.append(tensor_from_values(name, datatype, shape, entry["data"], most_values))
            continue
        if type(size) is not int or size < 0:
            raise InvalidInput(
                f"input {name!r:.100}: parameter 'binary_data_size' is {quoted(size)}; it must be a whole number"
            )
        if "data" in entry:
            raise InvalidInput(f"input {name!r:.100}: has both field 'data' and parameter 'binary_data_size'")
        if binary is None:
            raise InvalidInput(
                f"input {name!r:.100}: parameter 'binary_data_size' needs header Inference-Header-Content-Length"
            )
        if at + size > len(binary):
            raise InvalidInput(
                f"input {name!r:.100}: binary_data_size is {size}; only {len(binary) - at} bytes of the body are left"
            )
        tensors.append(tensor_from_buffer(name, datatype, shape, binary[at : at + size]))
        at += size
    if binary is not None and at != len(binary):
        raise InvalidInput(f"the body has {len(binary) - at} bytes more than its inputs' binary_data_size add up to")
    return tensors


def _outputs(listed: Any, parameters: Mapping[str, Any]) -> tuple[list[str] | None, bool]:
    """The requested names (None for all) and whether scores are wanted raw."""
    binary = _flag(parameters, "binary_data_output", False, "the request")
    if listed is None or listed == []:
        return None, binary
    if not isinstance(listed, list):
        raise InvalidInput(f"field 'outputs' is {quoted(listed)}; it must be a list")
    if len(listed) > _MOST_OUTPUTS:
        raise InvalidInput(f"field 'outputs' lists {len(listed)}; the only output is {SCORE!r}")
    names = []
    for position, entry in enumerate(listed):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InvalidInput(f"outputs[{position}] is {quoted(entry)}; it must be an object with a 'name'")
        what = f"output {entry['name']!r:.100}"
        output_parameters = _parameters(entry, what)
        _no_shared_memory(output_parameters, what)
        if output_parameters.get("classification"):
            raise InvalidInput(f"{what}: parameter 'classification' is not supported; take the scores themselves")
        binary = _flag(output_parameters, "binary_data", binary, what)
        names.append(entry["name"])
    return names, binary


def encode_answer(answer: InferAnswer, binary: bool) -> tuple[bytes, bytes, int | None]:
    """(body, content type, length of the JSON header or None if the body is all JSON)."""
    scores = answer.scores
    items, width = scores.shape
    parameters = f',"parameters":{json.dumps(answer.parameters)}' if answer.parameters else ""
    request_id = f',"id":{json.dumps(answer.request_id)}' if answer.request_id else ""
    head = (
        f'{{"model_name":"{answer.model}","model_version":"{answer.version}"{request_id}{parameters},'
        f'"outputs":[{{"name":"{SCORE}","datatype":"FP32","shape":[{items},{width}],'
    )
    if binary:
        raw = np.ascontiguousarray(scores, "<f4").tobytes()
        header = f'{head}"parameters":{{"binary_data_size":{len(raw)}}}}}]}}'.encode()
        return header + raw, _OCTETS, len(header)
    data = json.dumps(_numbers(scores.reshape(-1)), separators=(",", ":"))
    return f'{head}"data":{data}}}]}}'.encode(), _JSON, None


def _numbers(scores: np.ndarray[Any, Any]) -> Sequence[float]:
    """Exactly the float32 values: a float64 prints with enough digits to come back to the same float32."""
    values: list[float] = scores.astype(np.float64).tolist()
    return values
