"""Triton's own Python backend: one `TritonPythonModel` an instance, each a process with its own model."""

from __future__ import annotations

import os
import sys
from typing import Any

import triton_python_backend_utils as pb_utils

sys.path.insert(0, os.environ["PEERS_SERVED_DIR"])

from dlrm import model_from_environment


class TritonPythonModel:
    """Scores each request by itself: a query of 32 items is a batch already."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002
        self.model = model_from_environment()

    def execute(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            keys = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.model.features]
            dense = pb_utils.get_input_tensor_by_name(request, "dense").as_numpy()
            scores = pb_utils.Tensor("score", self.model.scores(keys, dense))
            responses.append(pb_utils.InferenceResponse([scores]))
        return responses
