"""Calls of the protocol over gRPC, with messages written by hand."""

from __future__ import annotations

import time

import grpc
import numpy as np
import pytest

from hebe.serving.grpc.protocol import SERVICE, message, methods

Code = grpc.StatusCode
ITEMS = 3
USER = np.arange(ITEMS)[:, None] * 7
HISTORY = np.arange(3 * ITEMS).reshape(ITEMS, 3)
DENSE = np.linspace(0, 1, 2 * ITEMS, dtype=np.float32).reshape(ITEMS, 2)
ARRAYS = {"user": USER, "history": HISTORY, "dense": DENSE}


class Client:
    def __init__(self, url: str, metadata=()) -> None:
        self.channel = grpc.insecure_channel(url)
        self.metadata = metadata

    def __call__(self, method, request=None, *, data=None, timeout=10.0, **options):
        """Call `method` with a message, or with bytes."""
        request_class, response_class = methods()[method]
        data = (request or request_class()).SerializeToString() if data is None else data
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", response_deserializer=response_class.FromString)
        return call(data, timeout=timeout, metadata=self.metadata, **options)

    def stream(self, requests):
        """Send messages or bytes on one stream; yields the responses."""
        call = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            response_deserializer=message("ModelStreamInferResponse").FromString,
        )
        return call(
            (r if isinstance(r, bytes) else r.SerializeToString() for r in requests),
            timeout=10,
            metadata=self.metadata,
        )


def infer_request(arrays=None, *, raw=True, model="ranker", **fields):
    request = message("ModelInferRequest")(model_name=model, **fields)
    datatypes = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}
    for name, array in (ARRAYS if arrays is None else arrays).items():
        entry = request.inputs.add(name=name, datatype=datatypes[array.dtype.name], shape=array.shape)
        if raw:
            request.raw_input_contents.append(array.tobytes())
        else:
            field = {"INT64": "int64_contents", "INT32": "int_contents", "FP32": "fp32_contents"}[entry.datatype]
            getattr(entry.contents, field).extend(array.reshape(-1).tolist())
    return request


def refused(call, *arguments, **options):
    """(status code, message) of a call that fails."""
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **options)
    return error.value.code(), error.value.details()


def wait_until(condition):
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "did not happen within a minute"
        time.sleep(0.005)
