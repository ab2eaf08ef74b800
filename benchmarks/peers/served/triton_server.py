"""Triton through pytriton: binds the model and serves until it is ended."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
from dlrm import model_from_environment
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

HTTP_PORT, GRPC_PORT = map(int, sys.argv[1:3])
MAX_ITEMS = 1024

# Leaving the `with` below unlinks pytriton's shared memory; without this, SIGTERM would not.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
model = model_from_environment()


@batch
def score(**inputs: np.ndarray) -> dict[str, np.ndarray]:
    keys = [inputs[name] for name in model.features]
    return {"score": model.scores(keys, inputs["dense"])}


def bound(function: Any, count: int) -> Any:
    return function if count == 1 else [function] * count


config = TritonConfig(
    http_address="127.0.0.1", http_port=HTTP_PORT, grpc_address="127.0.0.1", grpc_port=GRPC_PORT,
    allow_metrics=False, log_verbose=0,
)  # fmt: skip
security = TritonSecurityConfig(restricted_endpoints=[])
with Triton(config=config, security_config=security) as triton:
    triton.bind(
        model_name=os.environ["PEERS_MODEL_NAME"],
        infer_func=bound(score, int(os.environ["PEERS_WORKERS"])),
        inputs=[
            *(Tensor(name=name, dtype=np.int64, shape=(model.lookups,)) for name in model.features),
            Tensor(name="dense", dtype=np.float32, shape=(model.dense_dim,)),
        ],
        outputs=[Tensor(name="score", dtype=np.float32, shape=(1,))],
        config=ModelConfig(batching=True, max_batch_size=MAX_ITEMS, batcher=DynamicBatcher()),
    )
    triton.serve()
