"""The model that every peer serves: plain PyTorch, reading the weights that Hebe wrote, without Hebe.

Runs in the peers' virtualenvs (torch, numpy, safetensors). Settings come from the environment, since each server
starts its workers in its own way: PEERS_MODEL_DIR, PEERS_THREADS (per worker), PEERS_SCRIPTED (1 or 0).
"""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

KEY_BYTES = 8

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class Dlrm(nn.Module):
    """DLRM with dot interaction: one sum-pooled `EmbeddingBag` a table, two towers.

    `forward(keys, dense)`: keys of each table in turn, int64 [items, lookups], dense float32 [items, dense_dim];
    returns scores float32 [items, 1] in [0, 1].
    """

    def __init__(self, tables: int, rows: int, dim: int, dense_dim: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = _tower(dense_dim, bottom, ends_in_relu=True)
        pairs = (tables + 1) * tables // 2
        self.top = _tower(dim + pairs, top, ends_in_relu=False)
        above, left = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("pair_columns", above * (tables + 1) + left, persistent=False)

    def forward(self, keys: list[torch.Tensor], dense: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = [bottom]
        for index, table in enumerate(self.tables):
            vectors.append(table(keys[index]))
        stacked = torch.stack(vectors, dim=1)
        dots = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        pairs = dots.index_select(1, self.pair_columns)
        return torch.sigmoid(self.top(torch.cat([bottom, pairs], dim=1)))


class RawModel:
    """The model with the form of its inputs, behind raw bytes (`scores_of_body`) or arrays (`scores`).

    A raw body is the keys of every feature in turn, int64 [items, lookups] each, then dense float32
    [items, dense_dim]; the answer is float32 [items].
    """

    def __init__(self, folder: Path, scripted: bool) -> None:
        spec = tomllib.loads((folder / "model.toml").read_text())["spec"]
        self.tables = [table["name"] for table in spec["tables"]]
        self.features = [feature["name"] for feature in spec["features"]]
        self.lookups = int(spec["features"][0]["lookups"])
        self.dense_dim = int(spec["dense_dim"])
        self.item_bytes = len(self.features) * self.lookups * KEY_BYTES + self.dense_dim * 4
        rows, dim = int(spec["tables"][0]["rows"]), int(spec["tables"][0]["dim"])
        towers = spec["towers"]
        model = Dlrm(len(self.tables), rows, dim, self.dense_dim, towers["bottom"], towers["top"])
        model.load_state_dict(_weights(folder, self.tables))
        self.model = torch.jit.freeze(torch.jit.script(model.eval())) if scripted else model.eval()

    @torch.inference_mode()
    def scores(self, keys: Sequence[np.ndarray], dense: np.ndarray) -> np.ndarray:
        """Scores float32 [items, 1]; keys of each feature int64 [items, lookups], dense float32 [items, dense_dim]."""
        scores: torch.Tensor = self.model([torch.from_numpy(array) for array in keys], torch.from_numpy(dense))
        return scores.numpy()

    def scores_of_body(self, body: bytes | bytearray | memoryview) -> bytes:
        """The raw answer to a raw body."""
        items = len(body) // self.item_bytes
        key_count = items * self.lookups * len(self.features)
        flat = np.frombuffer(body, np.int64, key_count)
        keys = flat.reshape(len(self.features), items, self.lookups)
        dense = np.frombuffer(body, np.float32, offset=key_count * KEY_BYTES).reshape(items, self.dense_dim)
        return self.scores(list(keys), dense).tobytes()


def model_from_environment() -> RawModel:
    """The model with the settings of the environment."""
    torch.set_num_threads(int(os.environ["PEERS_THREADS"]))
    return RawModel(Path(os.environ["PEERS_MODEL_DIR"]), scripted=os.environ["PEERS_SCRIPTED"] == "1")


def _tower(inputs: int, widths: list[int], ends_in_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, width in enumerate(widths):
        layers.append(nn.Linear(inputs, width))
        if ends_in_relu or index + 1 < len(widths):
            layers.append(nn.ReLU())
        inputs = width
    return nn.Sequential(*layers)


def _weights(folder: Path, tables: list[str]) -> dict[str, torch.Tensor]:
    weights = {}
    for index, name in enumerate(tables):
        weights[f"tables.{index}.weight"] = load_file(folder / "tables" / f"{name}.safetensors")["weight"]
    for name, tensor in load_file(folder / "dense.safetensors").items():
        weights[name.replace("tower.", "").replace("layers.", "")] = tensor
    return weights
