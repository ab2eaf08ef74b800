"""`hebe model import` of a module of the test's own."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from hebe.cli.main import main
from hebe.models.repository.repository import ModelRepository
from hebe.spec import OutOfRange
from tests.places import DOCS

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.EmbeddingBag(50, 4)
        self.item = nn.Embedding(30, 2)
        self.top = nn.Linear(3 + 4 + 2, 1)

    def forward(self, dense, user, item):
        return torch.sigmoid(self.top(torch.cat([dense, self.user(user), self.item(item)], 1)))

def example():
    return {"dense": torch.randn(4, 3), "user": torch.randint(50, (4, 6)), "item": torch.randint(30, (4,))}

def make():
    return Net(), example()

def module_only():
    return Net()

def hashing(mixes=False):
    net = Net()
    class Hashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net
        def forward(self, dense, user, item):
            return self.net(dense, user % 50, item * 7 % 30 if self.mixes else item)
    hashed = Hashed()
    hashed.mixes = mixes
    return hashed, example()

def mixing():
    return hashing(mixes=True)

def broken():
    raise OSError("no such thing")

def number():
    return 3

def ends():
    raise SystemExit(0)
"""


@pytest.fixture
def net(tmp_path):
    """(directory, module): net.py, and weights in four forms."""
    (tmp_path / "net.py").write_text(NET)
    scope = {"__name__": "net"}
    exec(NET, scope)
    torch.manual_seed(3)
    module = scope["Net"]()
    state = module.state_dict()
    safetensors.torch.save_file(state, tmp_path / "net.safetensors")
    torch.save(state, tmp_path / "net.pt")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "checkpoint.pt")
    torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    return tmp_path, module.eval()


def test_the_example_of_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    page = (DOCS / "models.md").read_text()
    (tmp_path / "net.py").write_text(re.search(r"^`net.py`:\n\n```python\n(.*?)^```", page, re.M | re.S)[1])
    monkeypatch.chdir(tmp_path)
    runpy.run_path("net.py", run_name="__main__")
    with pytest.raises(SystemExit) as exit_:
        main(shlex.split(re.search(r"^    hebe (model import .*)", page, re.M)[1]))
    assert not exit_.value.code, capsys.readouterr().err
    assert ModelRepository(tmp_path / "models").open("mine").spec.dense_dim == 13


@pytest.mark.parametrize("weights", ["net.safetensors", "net.pt", "checkpoint.pt", "legacy.pt"])
def test_import_splits_a_module_and_stores_it(answer, models, net, weights):
    directory, module = net
    stored = answer(
        "import", "--factory", f"{directory / 'net.py'}:make", "--weights", directory / weights,
        "--repository", models, "--name", "mine", "--sla-ms", 12, "--percentile", 99,
    )  # fmt: skip
    assert (stored["name"], stored["version"], stored["architecture"]) == ("mine", 1, "imported")
    assert stored["greatest_difference"] <= 1e-6
    assert stored["provenance"]["factory"] == "net.py:make"
    assert stored["provenance"]["weights"] == weights
    assert stored["provenance"]["inputs"] == {"user": "user columns 0 to 5", "item": "item column 0"}
    model = ModelRepository(models).open("mine")
    assert (model.spec.sla.latency_ms, model.spec.sla.percentile) == (12, 99)
    dense, user, item = torch.randn(9, 3), torch.randint(50, (9, 6)), torch.randint(30, (9,))
    vectors = [torch.tensor(model.table("user"))[user].mean(1), torch.tensor(model.table("item"))[item]]
    scores = model.dense_net()(dense, torch.cat(vectors, 1), torch.zeros(9, 0, dtype=torch.int64))
    torch.testing.assert_close(scores, module(dense, user, item), rtol=0, atol=1e-6)


TWO_NAMES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(30, 4)
        self.hist = self.item
        self.top = nn.Linear(8, 1)

    def forward(self, item, hist):
        return self.top(torch.cat([self.item(item), self.hist(hist).sum(1)], 1))

def make():
    return Net(), {"item": torch.randint(30, (4,)), "hist": torch.randint(30, (4, 6))}
"""


def test_layers_that_take_their_shape_from_the_weights_do_so(answer, models, net):
    directory, _ = net
    lazy = NET.replace("nn.Linear(3 + 4 + 2, 1)", "nn.LazyLinear(1)")
    (directory / "lazy.py").write_text(lazy)
    answer(
        "import", "--factory", f"{directory / 'lazy.py'}:make", "--weights", directory / "net.safetensors",
        "--repository", models, "--name", "mine",
    )  # fmt: skip


def test_a_module_on_the_device_meta_takes_its_values_from_the_weights(answer, hebe, models, net):
    directory, module = net
    (directory / "meta.py").write_text(NET.replace("    return Net()", '    return Net().to("meta")'))
    state = {name: value.double() for name, value in module.state_dict().items()}
    torch.save(state, directory / "double.pt")
    arguments = ("import", "--factory", f"{directory / 'meta.py'}:make", "--repository", models, "--name", "mine")
    code, _, err = hebe(*arguments)
    assert code == 1
    assert "is on the device meta, where it has no values: give its weights" in err
    answer(*arguments, "--weights", directory / "double.pt")
    stored = ModelRepository(models).open("mine")
    assert torch.equal(torch.tensor(stored.table("user")), module.user.weight.detach())


@pytest.mark.parametrize("left_out", [(), ("top.bias",), ("item.weight", "hist.weight")])
def test_a_table_of_two_names_is_read_from_a_file_that_has_one(answer, hebe, models, tmp_path, left_out):
    (tmp_path / "net.py").write_text(TWO_NAMES)
    scope = {"__name__": "net"}
    exec(TWO_NAMES, scope)
    module = scope["Net"]()
    safetensors.torch.save_model(module, tmp_path / "net.safetensors")
    state = safetensors.torch.load_file(tmp_path / "net.safetensors")
    assert len({"item.weight", "hist.weight"} & state.keys()) == 1
    kept = {name: tensor for name, tensor in state.items() if name not in left_out}
    safetensors.torch.save_file(kept, tmp_path / "net.safetensors")
    arguments = (
        "import", "--factory", f"{tmp_path / 'net.py'}:make", "--weights", tmp_path / "net.safetensors",
        "--repository", models, "--name", "mine",
    )  # fmt: skip
    if left_out:
        code, _, err = hebe(*arguments)
        assert code == 1
        assert "net.safetensors: its weights are not those of the module: " in err
        assert all(f"missing {name}" in err for name in left_out)
        return
    answer(*arguments)
    stored = ModelRepository(models).open("mine")
    (table,) = stored.spec.tables
    assert torch.equal(torch.tensor(stored.table(table.name)), module.item.weight.detach())


def test_import_takes_the_example_from_a_callable_of_its_own(answer, models, net):
    file = net[0] / "net.py"
    stored = answer(
        "import", "--factory", f"{file}:module_only", "--example", f"{file}:example",
        "--repository", models, "--name", "mine",
    )  # fmt: skip
    assert stored["provenance"]["weights"] == "the factory's"


def test_a_factory_imports_its_neighbours_when_it_is_called(answer, models, net):
    directory, before = net[0], list(sys.path)
    (directory / "near.py").write_text("def make():\n    from layers_near import Net\n    return Net()\n")
    (directory / "layers_near.py").write_text(NET)
    (directory / "beside").mkdir()
    (directory / "beside" / "inputs_beside.py").write_text(NET)
    (directory / "beside" / "batch.py").write_text(
        "def x():\n    import inputs_beside\n    return inputs_beside.example()\n"
    )
    stored = answer(
        "import", "--factory", f"{directory / 'near.py'}:make", "--example", f"{directory / 'beside' / 'batch.py'}:x",
        "--repository", models, "--name", "mine",
    )  # fmt: skip
    assert stored["provenance"]["factory"] == "near.py:make"
    assert sys.path == before


def test_what_a_factory_prints_is_not_in_the_way_of_the_object(capsys, models, net):
    file = net[0] / "loud.py"
    file.write_text("print('reading')\n" + NET + "\ndef loud():\n    print('making')\n    return make()\n")
    arguments = ("--factory", f"{file}:loud", "--repository", models, "--name", "mine", "--json")
    with pytest.raises(SystemExit):
        main(["model", "import", *map(str, arguments)])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["name"] == "mine"
    assert "reading\nmaking\n" in captured.err


def test_import_tells_what_becomes_of_keys_out_of_range(answer, hebe, models, net, monkeypatch):
    arguments = ("import", "--factory", f"{net[0] / 'net.py'}:hashing", "--repository", models, "--name", "mine")
    stored = answer(*arguments)
    assert stored["provenance"]["inputs"] == {
        "user": "user columns 0 to 5, modulo its rows",
        "item": "item column 0",
    }
    assert stored["provenance"]["dense_inputs"] == ["dense columns 0 to 2"]
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = hebe(*arguments)
    assert code == 0
    assert "user columns 0 to 5, modulo its rows" in out
    feature = ModelRepository(models).open("mine").spec.features[0]
    assert (feature.name, feature.out_of_range) == ("user", OutOfRange.WRAP)


def test_an_imported_model_may_take_new_keys_where_it_does_not_compute_with_keys(answer, hebe, models, net):
    factory = ("import", "--repository", models, "--name", "mine", "--new-keys", "--factory")
    stored = answer(*factory, f"{net[0] / 'net.py'}:make")
    assert stored["provenance"]["inputs"] == {
        "user": "user columns 0 to 5, new keys too",
        "item": "item column 0, new keys too",
    }
    assert [each.out_of_range for each in ModelRepository(models).open("mine").spec.features] == ["unknown"] * 2
    (net[0] / "masked.py").write_text(NET + MASKED)
    code, _, err = hebe(*factory, f"{net[0] / 'masked.py'}:masked")
    assert code == 2
    assert "--new-keys" in err
    assert "computes with keys" in err


MASKED = """

class Masked(Net):
    def forward(self, dense, user, item):
        return super().forward(dense, user, item) * (item != 0).unsqueeze(-1)


def masked():
    return Masked(), make()[1]
"""


class Exploit:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_weights_never_run_code(hebe, models, net, tmp_path):
    directory, _ = net
    for zipped in (True, False):
        state = {"user.weight": Exploit(tmp_path / "touched")}
        torch.save(state, directory / "evil.pt", _use_new_zipfile_serialization=zipped)
        code, _, err = hebe(
            "import", "--factory", f"{directory / 'net.py'}:make", "--weights", directory / "evil.pt",
            "--repository", models, "--name", "mine",
        )  # fmt: skip
        assert code == 1
        assert "evil.pt: neither a safetensors file nor a state dict that can be read without running code" in err
        assert not (tmp_path / "touched").exists()
        assert not models.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--factory", "NET:mixing"], "error: layer net.item: its keys go through aten.mul.Tensor (net.py, line 3"),
        (["--factory", "NET:broken"], "net.py:broken raised OSError: no such thing"),
        (["--factory", "NET:number"], "net.py:number returned int: must return a torch.nn.Module"),
        (["--factory", "NET:ends"], "net.py:ends raised SystemExit: 0"),
        (["--factory", "ENDS:make"], "ends.py:make raised SystemExit: 0"),
        (["--factory", "NET:absent"], "net.py: has no callable absent"),
        (["--factory", "NET:module_only"], "net.py:module_only returned no example inputs"),
        (["--factory", "NET:make", "--weights", "NET"], "neither a safetensors file nor a state dict"),
        (["--factory", "NET:make", "--weights", "OTHER"], "other.safetensors: its weights are not those of the module"),
        (
            ["--factory", "NET:make", "--weights", "MORE"],
            "more.safetensors: its weights are not those of the module: unex",
        ),
        (["--factory", "NET:make", "--weights", "LIST"], "is not a state dict (names to tensors)"),
        (["--factory", "NET:make", "--weights", "CUT"], "cut.safetensors: a safetensors file that was cut short"),
        (["--factory", "NET:make", "--weights", "HALF"], "half.pt: a file of torch.save that was cut short"),
        (["--factory", "NET:make", "--weights", "EMPTY"], "empty.pt: is empty; copy it again"),
    ],
)
def test_an_import_that_cannot_be_done_is_one_line(hebe, models, net, arguments, message):
    directory, _ = net
    safetensors.torch.save_file({"x": torch.zeros(1)}, directory / "other.safetensors")
    more = safetensors.torch.load_file(directory / "net.safetensors") | {"x": torch.zeros(1)}
    safetensors.torch.save_file(more, directory / "more.safetensors")
    torch.save([torch.zeros(1)], directory / "list.pt")
    for name, cut, left in (("other.safetensors", "cut.safetensors", -1), ("list.pt", "half.pt", 200)):
        (directory / cut).write_bytes((directory / name).read_bytes()[:left])
    (directory / "empty.pt").touch()
    (directory / "ends.py").write_text("import sys; sys.exit(0)")
    files = {
        "NET": "net.py",
        "OTHER": "other.safetensors",
        "MORE": "more.safetensors",
        "LIST": "list.pt",
        "ENDS": "ends.py",
        "CUT": "cut.safetensors",
        "HALF": "half.pt",
        "EMPTY": "empty.pt",
    }
    for name, file in files.items():
        arguments = [argument.replace(name, str(directory / file)) for argument in arguments]
    code, out, err = hebe("import", *arguments, "--repository", models, "--name", "mine")
    assert code == 1
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert not models.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--factory", "net", "--name", "m"], "'net': give FILE.py:CALLABLE"),
        (["--factory", "no.py:f", "--name", "m"], "no.py: no such file"),
        (["--factory", "/tmp:f", "--name", "m"], "/tmp: a directory"),
        (["--factory", "no.py:f", "--name", "a/b"], "model name 'a/b'"),
        (["--factory", "f.py:f", "--name", "m", "--sla-ms", "0"], "SLA latency_ms is 0"),
        (["--factory", "f.py:f", "--name", "m", "--lookups", "x=0"], "'x=0': give INPUT=N"),
    ],
)
def test_wrong_usage_ends_with_status_2(hebe, monkeypatch, arguments, message):
    monkeypatch.setenv("COLUMNS", "300")
    code, _, err = hebe("import", "--repository", "R", *arguments)
    assert code == 2
    assert message in err.replace("│", "")
