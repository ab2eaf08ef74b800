import copy
import gc
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import hebe
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.forked import UsedAfterFork
from hebe.embeddings.store import StoreError
from tests.examples.forked_child import in_child

DIM = 8
KEYS = np.array([-(2**63), -1, 5, 7, 2**63 - 1], np.int64)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((KEYS.size, DIM), np.float32)


@pytest.fixture
def ps_json(tmp_path, rows):
    """A configuration of HPS with two tables of the same rows; keys that are unknown have ones."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        KEYS.tofile(tmp_path / name / "key")
        rows.tofile(tmp_path / name / "emb_vector")
    model = {"model": "m", "sparse_files": ["a", "b"], "embedding_table_names": ["a", "b"]}
    model |= {"embedding_vecsize_per_table": [DIM, DIM], "default_value_for_each_table": [1.0, 1.0]}
    model |= {"maxnum_catfeature_query_per_table_per_sample": [5, 5], "deployed_device_list": [0]}
    path = tmp_path / "ps.json"
    path.write_text(json.dumps({"supportlonglong": True, "models": [model]}))
    return path


def test_rows_of_keys_of_any_shape(ps_json, rows) -> None:
    layer = hebe.LookupLayer(ps_json, "m", 1, DIM, wait=True)
    keys = torch.from_numpy(KEYS)
    found = layer(keys)
    assert (found.dtype, found.requires_grad) == (torch.float32, False)
    assert np.array_equal(found.numpy(), rows)
    places = np.array([[1, 2], [2, 2], [4, 0]])
    assert np.array_equal(layer(keys[torch.from_numpy(places)]).numpy(), rows[places])
    assert np.array_equal(layer(torch.tensor([5, 6, 7], dtype=torch.int32)).numpy()[[0, 2]], rows[2:4])
    assert (layer(torch.tensor(6)).numpy() == 1).all(), "the default vector"
    assert layer(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, DIM)
    assert str(layer) == "LookupLayer(model=m, table=b, dim=8)"
    assert not list(layer.parameters())


def test_it_is_a_part_of_a_network(ps_json, rows) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(hebe.LookupLayer(ps_json, "m", "a", DIM, wait=True), torch.nn.Linear(DIM, 1))
    keys = torch.from_numpy(KEYS)
    scores = net(keys)
    np.testing.assert_allclose(
        scores.detach().numpy(), torch.from_numpy(rows).matmul(net[1].weight.T).add(net[1].bias).detach().numpy()
    )
    scores.sum().backward()
    assert net[1].weight.grad is not None
    twin = copy.deepcopy(net).eval()
    assert twin[0].hps is net[0].hps
    assert torch.equal(twin(keys), scores)
    assert net[0].training
    assert not twin[0].training


def graph_of(layer: torch.nn.Module, kind: str, keys: torch.Tensor):
    if kind == "trace":
        with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
            return torch.jit.trace(layer, keys)
    if kind == "script":
        with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
            return torch.jit.script(layer)
    if kind == "export":
        return torch.export.export(layer, (keys,), dynamic_shapes=({0: torch.export.Dim("count")},)).module()
    return torch.compile(layer, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["trace", "script", "export", "compile"])
def test_a_graph_reads_rows_when_it_runs(ps_json, rows, kind, dtype) -> None:
    layer = hebe.LookupLayer(ps_json, "m", "a", DIM, wait=True).to(dtype)
    graph = graph_of(layer, kind, torch.from_numpy(KEYS[:2]))
    found = graph(torch.from_numpy(KEYS[2:]))
    assert found.dtype == dtype
    assert torch.equal(found, torch.from_numpy(rows[2:]).to(dtype))


def test_the_op_is_such_as_torch_demands(ps_json) -> None:
    layer = hebe.LookupLayer(ps_json, "m", "a", DIM)
    arguments = (torch.from_numpy(KEYS), layer.source, "m", "a", DIM, 1.0, True)
    torch.library.opcheck(torch.ops.hebe.lookup.default, arguments)


def test_a_saved_graph_opens_the_file_that_it_names(ps_json, tmp_path, rows) -> None:
    layer = hebe.LookupLayer(ps_json, "m", "a", DIM, wait=True)
    with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
        torch.jit.save(torch.jit.trace(layer, torch.from_numpy(KEYS)), tmp_path / "traced.pt")
    code = (
        "import sys, torch, hebe.runtime.lookup_layer\n"
        "rows = torch.jit.load(sys.argv[1])(torch.tensor([7, 5]))\n"
        "torch.save(rows, sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "traced.pt", tmp_path / "rows.pt"], check=True)
    assert torch.equal(torch.load(tmp_path / "rows.pt", weights_only=True), torch.from_numpy(rows[[3, 2]]))


def test_a_graph_of_tables_without_a_file_needs_them_open(ps_json) -> None:
    hps = hebe.HPS(ps_json)
    graph = graph_of(hebe.LookupLayer(hps, "m", "a", DIM), "export", torch.from_numpy(KEYS))
    assert graph(torch.from_numpy(KEYS)).shape == (KEYS.size, DIM)
    del hps
    gc.collect()
    with pytest.raises(StoreError):
        graph(torch.from_numpy(KEYS))


def test_rows_have_the_dtype_of_the_module(ps_json, rows) -> None:
    net = torch.nn.Sequential(hebe.LookupLayer(ps_json, "m", "a", DIM, wait=True), torch.nn.Linear(DIM, 1)).half()
    keys = torch.from_numpy(KEYS)
    assert torch.equal(net[0](keys), torch.from_numpy(rows).half())
    assert net(keys).dtype == torch.float16
    assert copy.deepcopy(net)[0](keys).dtype == torch.float16
    assert set(net.state_dict()) == {"1.weight", "1.bias"}


@pytest.mark.parametrize("of_file", [True, False])
def test_a_pickled_layer_opens_its_tables_again(ps_json, rows, of_file) -> None:
    config = ps_json if of_file else hebe.HPS(ps_json)
    layer = hebe.LookupLayer(config, "m", "b", DIM, timeout_s=5.0, wait=True).bfloat16().eval()
    pickled = pickle.dumps(layer)
    del layer, config
    gc.collect()
    again = pickle.loads(pickled)
    assert (again.table, again.timeout_s, again.wait, again.training) == ("b", 5.0, True, False)
    assert torch.equal(again(torch.from_numpy(KEYS)), torch.from_numpy(rows).bfloat16())


def test_a_forked_process_makes_layers_of_its_own(ps_json, rows) -> None:
    layer, keys = hebe.LookupLayer(ps_json, "m", "a", DIM), torch.from_numpy(KEYS)
    layer(keys)

    def use() -> object:
        with pytest.raises(UsedAfterFork):
            layer(keys)
        return hebe.LookupLayer(ps_json, "m", "a", DIM, wait=True)(keys).tolist()

    assert np.array_equal(in_child(use), rows)


def test_layers_of_one_file_share_its_tables(ps_json, rows, threads_begun) -> None:
    first, second = (hebe.LookupLayer(path, "m", table, DIM) for path, table in ((ps_json, "a"), (str(ps_json), "b")))
    assert first.hps is second.hps
    held = hebe.HPS(ps_json)
    third = hebe.LookupLayer(held, "m", "a", DIM, wait=True)
    assert third.hps is not first.hps
    keys = torch.from_numpy(KEYS)
    del first
    gc.collect()
    assert second(keys).shape == (5, DIM), "still open"
    second.hps.close()
    with pytest.raises(StoreError, match="closed"):
        second(keys)
    again = hebe.LookupLayer(ps_json, "m", "a", DIM, wait=True)
    assert np.array_equal(again(keys).numpy(), rows), "what somebody closed is opened anew"
    del again, second
    gc.collect()
    held.close()
    assert not threads_begun()


def test_what_is_wrong_is_named(ps_json, tmp_path) -> None:
    with pytest.raises(ValueError, match="table a of model m has embedding dim 8, not 16"):
        hebe.LookupLayer(ps_json, "m", 0, 16)
    with pytest.raises(KeyError, match="model m has no table c; it has a, b"):
        hebe.LookupLayer(ps_json, "m", "c", DIM)
    with pytest.raises(KeyError, match="there is no model n"):
        hebe.LookupLayer(ps_json, "n", 0, DIM)
    layer = hebe.LookupLayer(ps_json, "m", 0, DIM)
    with pytest.raises(TypeError, match="keys are float32: must be whole numbers"):
        layer(torch.zeros(3))
    config = HierarchyConfig.from_mapping(
        {
            "volatile_db": {"type": "parallel_hash_map"},
            "tables": {"m": [{"name": "a", "dim": DIM, "sparse_file": str(tmp_path / "a")}]},
        }
    )
    assert hebe.LookupLayer(config, "m", 0, DIM)(torch.tensor([5])).shape == (1, DIM)
    gc.collect()
