"""The floor: raw ASGI under uvicorn, the model called in the event loop, nothing checked."""

from __future__ import annotations

from typing import Any

from dlrm import model_from_environment

model = model_from_environment()


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    answer = model.scores_of_body(body) if body else b""
    headers = [(b"content-length", str(len(answer)).encode()), (b"content-type", b"application/octet-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
