"""What the echo server claims to be, and how it tells so over HTTP and gRPC."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hebe.load_generator.protobuf_wire import delimited, delimited_head, varint

SCORES = bytes(1024)
"""The answer to every query, however many items it has."""

REFUSAL = "refused by request"
"""What it says where it is to answer with another status than 200."""


@dataclass(frozen=True, slots=True)
class EchoModel:
    """What the server claims to be: `features` inputs INT64 `[items, lookups]`, one FP32 `[items, dense_dim]`."""

    name: str = "echo"
    features: int = 10
    lookups: int = 80
    dense_dim: int = 128
    rows: int = 1_000_000
    sla_ms: float = 100.0
    service_s: float = 0.0
    status: int = 200

    def inputs(self) -> list[tuple[str, str, int]]:
        """Name, datatype and width of each input."""
        dense = [("dense", "FP32", self.dense_dim)] if self.dense_dim else []
        return [(f"feature_{i}", "INT64", self.lookups) for i in range(self.features)] + dense

    def parameters(self) -> dict[str, str]:
        """Parameters of its configuration."""
        rows = {f"rows.{name}": str(self.rows) for name, datatype, _ in self.inputs() if datatype == "INT64"}
        return {"sla_ms": f"{self.sla_ms:g}", "sla_percentile": "95", **rows}

    def pages(self) -> dict[str, bytes]:
        """JSON of its metadata and configuration, by path."""
        parameters = {name: {"string_value": value} for name, value in self.parameters().items()}
        inputs = [{"name": n, "datatype": d, "shape": [-1, width]} for n, d, width in self.inputs()]
        pages = {
            f"/v2/models/{self.name}": {"name": self.name, "inputs": inputs, "outputs": []},
            f"/v2/models/{self.name}/config": {"name": self.name, "parameters": parameters},
        }
        return {path: json.dumps(page).encode() for path, page in pages.items()}

    def metadata_message(self) -> bytes:
        """Its ModelMetadataResponse."""
        inputs = [
            delimited(4, delimited(1, name) + delimited(2, datatype) + delimited(3, varint(-1) + varint(width)))
            for name, datatype, width in self.inputs()
        ]
        return delimited(1, self.name) + b"".join(inputs)

    def config_message(self) -> bytes:
        """Its ModelConfigResponse."""
        entries = [
            delimited(14, delimited(1, name) + delimited(2, delimited(1, value)))
            for name, value in self.parameters().items()
        ]
        return delimited(1, delimited(1, self.name) + b"".join(entries))

    def infer_message(self) -> bytes:
        """Its ModelInferResponse."""
        return delimited(1, self.name) + delimited_head(6, len(SCORES)) + SCORES
