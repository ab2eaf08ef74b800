"""Imported modules give the scores of plain PyTorch when served: masks, raw ids, numbers among keys."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from hebe.cli.main import main
from hebe.cli.terminal.server_process import ServerProcess
from tests.places import ROOT

from .served import TOLERANCE, Inputs, triton_inputs

MODULES = ROOT / "tests/models/public_modules.py"
REPEATS = 50
"""So that queries are larger than the batch size and are split."""

SENT: dict[str, Callable[..., dict[str, torch.Tensor]]] = {
    "din": lambda item, hist: {"item": item[:, None], "hist": hist},
    "hashing": lambda user, items, city, shop: {
        "user": user[:, None],
        "items": items,
        "city": city[:, None],
        "shop": shop[:, None],
    },
    "keys_and_numbers": lambda x: {"x_1": x[:, 1:2], "x_3": x[:, 3:4], "dense": x[:, [0, 2]].float()},
}
"""By module: what a client sends, from the module's own inputs."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One worker, batches of at most 128 items."""
    root = tmp_path_factory.mktemp("imported")
    for name in SENT:
        arguments = ["--factory", f"{MODULES}:{name}", "--name", name, "--repository", str(root / "models"), "--json"]
        with pytest.raises(SystemExit) as end:
            main(["model", "import", *arguments])
        assert not end.value.code
    options = ["--workers", "1", "--batch-size", "128", "--sla-ms", "3600000"]
    with ServerProcess(root / "models", root / "log", options, ready_timeout_s=300.0) as process:
        yield process


def query_of(name: str) -> tuple[Inputs, np.ndarray]:
    """What is sent, and the module's own scores."""
    module, example = runpy.run_path(str(MODULES))[name]()
    given = list(example.values()) if isinstance(example, dict) else list(example)
    given = [tensor.repeat(REPEATS, *(1,) * (tensor.dim() - 1)) for tensor in given]
    with torch.no_grad():
        scores = module(*given)
    arrays = {key: np.ascontiguousarray(tensor.numpy()) for key, tensor in SENT[name](*given).items()}
    return Inputs(len(scores), arrays), scores.reshape(len(scores), -1).numpy()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("name", SENT)
def test_an_imported_module_is_served_with_its_own_scores(server: ServerProcess, name: str, protocol: str):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    url = server.http_url.removeprefix("http://") if protocol == "http" else server.grpc_address
    inputs, expected = query_of(name)
    assert expected.std() > 0.01, "scores that hardly differ would hide a mistake"
    with module.InferenceServerClient(url) as client:
        scores = client.infer(name, triton_inputs(module, inputs)).as_numpy("score")
        np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)
        if name == "din":
            present = inputs.arrays["hist"] != 0
            inputs.arrays["hist.values"] = inputs.arrays["hist"][present]
            inputs.arrays["hist.lengths"] = present.sum(1)
            del inputs.arrays["hist"]
            scores = client.infer(name, triton_inputs(module, inputs)).as_numpy("score")
            np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)
        if name == "hashing":
            inputs.arrays["shop"][7] = -3
            with pytest.raises(InferenceServerException, match="'shop': key -3 of item 7 is out of range"):
                client.infer(name, triton_inputs(module, inputs))
