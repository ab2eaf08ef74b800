"""Asking a server about a model, over HTTP or gRPC."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import grpc

from hebe.load_generator.bounded_exchange import connected_by, printable
from hebe.load_generator.error import LoadError
from hebe.load_generator.protobuf_wire import (
    WireError,
    model_request,
    parse_model_config,
    parse_model_metadata,
)
from hebe.load_generator.queries.model_inputs import ModelInputs, model_inputs
from hebe.load_generator.target import Target

ASK_TIMEOUT_S = 10.0
"""From the connection to the whole answer."""
_TRUST = "give the certificates to trust with --ca-file, and the host by a name that its own is for"
_MOST_BYTES = 64 << 20

GRPC_SERVICE = "/inference.GRPCInferenceService/"


def discover(target: Target) -> ModelInputs:
    """Ask the server. Raises `LoadError` if it cannot be reached, speaks otherwise, or has no such model."""
    told = _ask_grpc(target) if target.endpoint.protocol == "grpc" else _ask_http(target)
    return model_inputs(target, *told)


def _ask_http(target: Target) -> tuple[list[Mapping[str, Any]], dict[str, str], object]:
    """Metadata of the inputs, parameters of the configuration, and its `max_batch_size`."""
    for_grpc = f"for gRPC give grpc://{target.endpoint.address} or --protocol grpc"
    path = f"/v2/models/{quote(target.model, safe='')}"
    if target.version:
        path += f"/versions/{quote(target.version, safe='')}"
    status, answer = get_json(target, path, for_grpc)
    if status != 200 or not isinstance(answer, dict):
        raise LoadError(_no_model(target, status, answer))
    status, config = get_json(target, path + "/config", for_grpc)
    config = config if status == 200 and isinstance(config, dict) else {}
    parameters = config.get("parameters")
    told = {}
    if isinstance(parameters, dict):
        told = {k: v["string_value"] for k, v in parameters.items() if isinstance(v, dict) and "string_value" in v}
    inputs = answer.get("inputs")
    return inputs if isinstance(inputs, list) else [], told, config.get("max_batch_size")


def _no_model(target: Target, status: int, answer: Any) -> str:
    message = told_error(answer)
    if status in (401, 403):
        return (
            f"{target.endpoint.url} wants an API token, or another one ({status}): give --api-token-file or --api-token"
        )
    if status == 503:
        return _not_ready(target, message) or (
            f"{target.endpoint.url} does not tell about model {target.model} now: it answers 503"
            f"{f' ({message})' if message else ''}"
        )
    return (
        f"{target.endpoint.url} has no model {_asked_for(target)}:"
        f" it answers {status}{f' ({message})' if message else ''}"
    )


def told_error(answer: Any) -> str:
    """Why a server refused, as its JSON `answer` says, fit to be shown; empty where it does not say."""
    message = answer.get("error") if isinstance(answer, dict) else None
    return printable(message) if isinstance(message, str) else ""


def _asked_for(target: Target) -> str:
    return f"{target.model} {target.version}" if target.version else target.model


def _not_ready(target: Target, message: str) -> str:
    """That the server has the model, which is being loaded or failed to, where its message says so as Hebe does."""
    state = message.removeprefix(f"model {target.model} is ")
    if state == message:
        return ""
    return f"{target.endpoint.url} has model {target.model}, but it is not ready: it is {state}"


def get_json(target: Target, path: str, otherwise: str) -> tuple[int, Any]:
    """HTTP status and parsed JSON (None if it is none, or nested too deep) of `path` on the server at `target`.

    Raises `LoadError` if it cannot be reached, has not answered in full after `ASK_TIMEOUT_S`, or speaks otherwise:
    `otherwise` says what to give then.
    """
    endpoint = target.endpoint
    path = endpoint.prefix + path
    headers = {"Host": endpoint.address, "Accept": "application/json"}
    if target.api_token is not None:
        headers["Authorization"] = f"Bearer {target.api_token}"
    context = target.ssl_context()
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
    try:
        with connected_by(time.monotonic() + ASK_TIMEOUT_S, endpoint.host, endpoint.port, context) as connection.sock:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read(_MOST_BYTES)
    except (http.client.HTTPException, ConnectionResetError) as fault:
        raise LoadError(f"{endpoint.url} does not speak HTTP ({type(fault).__name__}): {otherwise}") from None
    except ssl.SSLCertVerificationError as fault:
        raise LoadError(f"{endpoint.url} is not trusted: {fault.verify_message}; {_TRUST}") from None
    except TimeoutError:
        raise LoadError(f"{endpoint.url} has not answered in full after {ASK_TIMEOUT_S:g} s: try again") from None
    except OSError as fault:
        raise LoadError(f"{endpoint.url} cannot be reached: {fault.strerror or fault}") from None
    finally:
        connection.close()
    try:
        return response.status, json.loads(body)
    except (ValueError, RecursionError):
        return response.status, None


def _ask_grpc(target: Target) -> tuple[list[Mapping[str, Any]], dict[str, str], object]:
    """As `_ask_http`."""
    request = model_request(target.model, target.version)
    with grpc_channel(target) as channel:
        try:
            metadata = parse_model_metadata(_call(channel, target, "ModelMetadata", request))
        except WireError as fault:
            raise LoadError(f"{target.endpoint.url}: ModelMetadata cannot be read: {fault}") from None
        except grpc.RpcError as fault:
            raise LoadError(_grpc_fault(target, fault)) from None
        try:
            parameters, max_batch_size = parse_model_config(_call(channel, target, "ModelConfig", request))
        except (grpc.RpcError, WireError):
            parameters, max_batch_size = {}, 0
    return list(metadata), parameters, max_batch_size


def _grpc_fault(target: Target, fault: Any) -> str:
    code, details, endpoint = fault.code(), fault.details(), target.endpoint
    if code is grpc.StatusCode.UNAVAILABLE and (not_ready := _not_ready(target, details or "")):
        return not_ready
    if code is grpc.StatusCode.UNAVAILABLE:
        remedy = f"if the port speaks HTTP, give http://{endpoint.address} or --protocol http"
        if endpoint.tls:
            remedy = f"if its certificate is what is wrong, {_TRUST}"
        return f"{endpoint.url} cannot be reached over gRPC: {details}; {remedy}"
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return f"{endpoint.url} wants an API token, or another one ({code.name}): give --api-token-file or --api-token"
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
        return f"{endpoint.url} has no model {_asked_for(target)}: it answers {code.name} ({details})"
    return f"{endpoint.url} does not tell about model {target.model}: it answers {code.name} ({details})"


def _call(channel: grpc.Channel, target: Target, method: str, request: bytes) -> bytes:
    answer: bytes = channel.unary_unary(GRPC_SERVICE + method)(
        request, timeout=ASK_TIMEOUT_S, metadata=call_metadata(target)
    )
    return answer


def call_metadata(target: Target) -> tuple[tuple[str, str], ...]:
    """gRPC metadata of every call."""
    return () if target.api_token is None else (("authorization", f"Bearer {target.api_token}"),)


CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Without a pool of its own, channels to one address share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


def grpc_channel(target: Target) -> grpc.Channel:
    """A blocking channel to the target."""
    address = target.endpoint.address
    if target.endpoint.tls:
        credentials = grpc.ssl_channel_credentials(target.ca_certificates())
        return grpc.secure_channel(address, credentials, CHANNEL_OPTIONS)
    return grpc.insecure_channel(address, CHANNEL_OPTIONS)
