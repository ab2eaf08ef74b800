"""BentoML's service: the raw ASGI application mounted at /raw, its way around its own validation and JSON."""

from __future__ import annotations

import os

import bentoml
from floor_app import app


@bentoml.asgi_app(app, path="/raw")
@bentoml.service(
    workers=int(os.environ["PEERS_WORKERS"]),
    traffic={"timeout": 60, "max_concurrency": 1024},
    logging={"access": {"enabled": False}},
)
class Ranker:
    """Holds nothing: the application loads the model once a worker."""
