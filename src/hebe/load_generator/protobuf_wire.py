"""Protocol buffers' wire format, as much as a load generator needs of it.

The generator sends one message, ModelInferRequest, a hundred thousand times with megabytes of raw tensors that it has
ready as bytes. Generated classes would copy them field by field; written by hand, a request is a join of buffers.
Field numbers are those of the Open Inference Protocol's `grpc_predict_v2.proto`, with Triton's `ModelConfig` (in
`model_config.proto`) for what `ModelConfigResponse` carries.
Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Bytes that are not a protocol buffers message."""


def varint(value: int) -> bytes:
    """A whole number in base 128; a negative one as its 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited_head(field: int, size_bytes: int) -> bytes:
    """What stands before `size_bytes` bytes of field `field`."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(size_bytes)


def delimited(field: int, content: bytes | str) -> bytes:
    """A string, bytes or message field."""
    raw = content.encode() if isinstance(content, str) else content
    return delimited_head(field, len(raw)) + raw


def infer_request_head(
    model: str,
    version: str,
    parameters: Mapping[str, int],
    inputs: Sequence[tuple[str, str, Sequence[int]]],
) -> bytes:
    """A ModelInferRequest up to its raw contents; `inputs` holds name, datatype and shape of each.

    `raw_contents_head` and the tensor's bytes follow for each input, in order.
    """
    parts = [delimited(1, model)]
    if version:
        parts.append(delimited(2, version))
    for name, value in parameters.items():
        int64_parameter = varint(2 << 3 | _VARINT) + varint(value)
        parts.append(delimited(4, delimited(1, name) + delimited(2, int64_parameter)))
    for name, datatype, shape in inputs:
        packed = b"".join(map(varint, shape))
        parts.append(delimited(5, delimited(1, name) + delimited(2, datatype) + delimited(3, packed)))
    return b"".join(parts)


def raw_contents_head(size_bytes: int) -> bytes:
    """What stands before the bytes of one tensor in `raw_input_contents`."""
    return delimited_head(7, size_bytes)


def model_request(model: str, version: str) -> bytes:
    """ModelMetadataRequest and ModelConfigRequest, which are alike."""
    return delimited(1, model) + (delimited(2, version) if version else b"")


def parse_model_metadata(message: bytes) -> list[dict[str, object]]:
    """The inputs of a ModelMetadataResponse: name, datatype and shape of each. Raises `WireError`."""
    inputs: list[dict[str, object]] = []
    for field, value in fields(message):
        if field == 4 and isinstance(value, bytes):
            name, datatype, shape = "", "", list[int]()
            for inner, content in fields(value):
                if inner == 1 and isinstance(content, bytes):
                    name = _text(content)
                elif inner == 2 and isinstance(content, bytes):
                    datatype = _text(content)
                elif inner == 3:
                    shape += [content] if isinstance(content, int) else _packed(content)
            inputs.append({"name": name, "datatype": datatype, "shape": [_signed(size) for size in shape]})
    return inputs


def parse_model_config(message: bytes) -> tuple[dict[str, str], int]:
    """`config.parameters` and `config.max_batch_size` of a ModelConfigResponse. Raises `WireError`."""
    parameters, max_batch_size = {}, 0
    for config_field, config in fields(message):
        if config_field != 1 or not isinstance(config, bytes):
            continue
        for field, entry in fields(config):
            if field == 4 and isinstance(entry, int):
                max_batch_size = _signed(entry)
            elif field == 14 and isinstance(entry, bytes):
                key, value = "", ""
                for inner, content in fields(entry):
                    if inner == 1 and isinstance(content, bytes):
                        key = _text(content)
                    elif inner == 2 and isinstance(content, bytes):
                        value = next((_text(s) for f, s in fields(content) if f == 1 and isinstance(s, bytes)), "")
                parameters[key] = value
    return parameters, max_batch_size


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: an unsigned int for numbers, bytes for the rest. Raises `WireError`."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _read_varint(message, at)
        else:
            if kind == _LENGTH_DELIMITED:
                size, at = _read_varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise WireError(f"wire type {kind} at byte {at}")
            if at + size > len(message):
                raise WireError(f"field {key >> 3} ends beyond the message")
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise WireError("the message ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError(f"a number of more than ten bytes at byte {at}")


def _packed(content: bytes) -> list[int]:
    values, at = [], 0
    while at < len(content):
        value, at = _read_varint(content, at)
        values.append(value)
    return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
