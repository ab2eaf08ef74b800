"""TorchServe's handler: raw bytes in, raw bytes out, one model a worker."""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.environ["PEERS_SERVED_DIR"])

from dlrm import RawModel, model_from_environment

_model: RawModel | None = None


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[bytes] | None:  # noqa: ARG001
    global _model
    if _model is None:
        _model = model_from_environment()
    if not data:
        return None
    return [_model.scores_of_body(row.get("body") or row.get("data")) for row in data]
