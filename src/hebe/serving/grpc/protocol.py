"""The message classes of `protocol.proto`.

They live in a descriptor pool of their own, so that another library's copy of the same protocol (Triton's client,
say) can be loaded into this process too. `protocol.binpb` is `protocol.proto` compiled:

    python -m grpc_tools.protoc -I. --descriptor_set_out=protocol.binpb protocol.proto
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    compiled = files(__package__).joinpath("protocol.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return pool


@cache
def message(name: str) -> Any:
    """The message class `inference.NAME`; raises KeyError."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"inference.{name}"))


@cache
def methods() -> dict[str, tuple[Any, Any]]:
    """(request class, response class) of every method of the service, by name."""
    service = _pool().FindServiceByName(SERVICE)
    return {
        method.name: (
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
        )
        for method in service.methods
    }
