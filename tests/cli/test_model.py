import json
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from hebe.cli.main import main
from hebe.models import catalog, memory_estimate
from hebe.models.ranking_model import RankingModel
from hebe.models.repository import ModelRepository
from hebe.spec import OutOfRange

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
def hebe(capsys):
    """Runs the command line; returns (exit status, stdout, stderr)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(["model", *map(str, arguments)])
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, " ".join(captured.err.split())

    return run


@pytest.fixture
def answer(hebe):
    """Runs the command line with --json; returns the object of its last line."""

    def run(*arguments):
        code, out, err = hebe(*arguments, "--json")
        assert code == 0, err
        assert out.count("\n") == 1, "with --json, stdout is one line"
        return json.loads(out)

    return run


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


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


@pytest.mark.parametrize("command", ["list", "show", "new", "train", "import", "memory"])
def test_every_command_has_help_with_an_example(hebe, command):
    code, out, _ = hebe(command, "--help")
    assert code == 0
    assert f"Example: hebe model {command}" in " ".join(out.split())
    assert "--json" in out


def test_list_has_every_configuration_of_the_catalog(answer, hebe, monkeypatch):
    listed = {(model["name"], model["size"]) for model in answer("list")["models"]}
    assert listed == {(name, size) for name in catalog.names() for size in catalog.sizes(name)}
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = hebe("list")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "dlrm-rmc1" in out
    assert "1.19 GiB" in out


def test_new_stores_a_model_that_only_the_seed_decides(answer, models):
    first = answer("new", "dlrm-rmc1", "--size", "small", "--scale", 0.0001, "--seed", 7, "--repository", models)
    again = answer("new", "dlrm-rmc1", "--size", "small", "--scale", 0.0001, "--seed", 7, "--repository", models)
    other = answer("new", "dlrm-rmc1", "--size", "small", "--scale", 0.0001, "--seed", 8, "--repository", models)
    assert (first["name"], first["version"], again["version"]) == ("dlrm-rmc1", 1, 2)
    told = {"rows_as_of": first["provenance"]["rows_as_of"], "made_by": "hebe model new", "seed": 7}
    assert first["provenance"] == told
    repository = ModelRepository(models)
    files = [repository.open("dlrm-rmc1", model["version"]).files for model in (first, again, other)]
    assert files[0] == files[1]
    assert files[0] != files[2]
    spec = catalog.entry("dlrm-rmc1", "small", 0.0001)
    stored = repository.open("dlrm-rmc1", 1)
    assert stored.spec == spec
    reference = RankingModel(spec, seed=7)
    np.testing.assert_array_equal(stored.table("table0"), reference.table_weight("table0").detach().numpy())


def test_list_and_show_of_a_repository(answer, hebe, models, monkeypatch):
    answer("new", "ncf", "--scale", 0.001, "--repository", models)
    answer("new", "ncf", "--scale", 0.002, "--repository", models)
    listed = answer("list", "--repository", models)["models"]
    assert [(model["name"], model["version"]) for model in listed] == [("ncf", 1), ("ncf", 2)]
    shown = answer("show", "ncf", "--repository", models, "--verify")
    assert (shown["version"], shown["verified"], shown["spec"]["scale"]) == (2, True, 0.002)
    assert answer("show", "ncf", "--repository", models, "--version", 1)["spec"]["scale"] == 0.001
    code, out, _ = hebe("show", "ncf", "--repository", models)
    assert code == 0
    assert "made_by" in out
    monkeypatch.setenv("COLUMNS", "40")
    narrow = hebe("list", "--repository", models)[1].splitlines()
    assert [line.split()[:2] for line in narrow[:3]] == [["model", "version"], ["ncf", "1"], ["ncf", "2"]]
    assert narrow[3] == "(not enough room for: path)"
    monkeypatch.delenv("COLUMNS")
    assert str(models / "ncf" / "2") in hebe("list", "--repository", models)[1]


def test_list_names_what_is_damaged_and_lists_the_rest(answer, hebe, models):
    for scale in (0.001, 0.002):
        answer("new", "ncf", "--scale", scale, "--repository", models)
    answer("new", "wnd", "--scale", 0.00001, "--repository", models)
    (models / "ncf" / "9").mkdir()
    with (models / "ncf" / "1" / "model.toml").open("a") as file:
        file.write("x")
    code, out, err = hebe("list", "--repository", models)
    assert code == 1
    assert err == ""
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["ncf", "1", "damaged"],
        ["ncf", "2", "ncf"],
        ["wnd", "1", "wide-and-deep"],
    ]
    assert lines[4].startswith(f"damaged: {models}/ncf/1/model.toml: truncated, damaged or edited by hand")
    assert lines[5].startswith(f"passed over: {models}/ncf/9 has no model.toml and is no version")
    code, out, _ = hebe("list", "--repository", models, "--json")
    told = json.loads(out)
    assert code == 1
    assert [(model["name"], model["version"]) for model in told["models"]] == [("ncf", 2), ("wnd", 1)]
    assert [(each["name"], each["version"]) for each in told["damaged"]] == [("ncf", 1)]
    assert told["passed_over"] == [str(models / "ncf" / "9")]


def test_list_of_a_model_names_its_repository(answer, hebe, models):
    answer("new", "ncf", "--scale", 0.001, "--repository", models)
    told = " ".join(hebe("list", "--repository", models / "ncf")[1].split())
    assert told == f"{models}/ncf is a model, not a repository of models; give {models}"


def test_a_directory_that_is_no_version_is_no_damage(answer, hebe, models):
    answer("new", "ncf", "--scale", 0.001, "--repository", models)
    (models / "ncf" / "9").mkdir()
    code, out, _ = hebe("list", "--repository", models)
    assert code == 0
    assert "passed over:" in out


def test_list_names_a_model_that_cannot_be_listed_and_lists_the_rest(answer, hebe, models, monkeypatch):
    answer("new", "ncf", "--scale", 0.001, "--repository", models)
    (models / "secret").mkdir()
    listed = Path.iterdir

    def iterdir(path):
        if path == models / "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    code, out, _ = hebe("list", "--repository", models)
    assert code == 1
    assert f"damaged: {models}/secret: cannot be listed: Permission denied" in out
    told = json.loads(hebe("list", "--repository", models, "--json")[1])
    assert [model["name"] for model in told["models"]] == ["ncf"]
    assert [(each["name"], each["version"]) for each in told["damaged"]] == [("secret", None)]


def test_show_of_the_catalog(answer, hebe):
    shown = answer("show", "din", "--size", "production", "--scale", 0.5)
    assert shown["name"] == "din"
    assert shown["scale"] == 0.5
    assert shown["table_bytes"] == catalog.entry("din", "production", 0.5).table_bytes
    code, out, _ = hebe("show", "dlrm-rmc1")
    assert code == 0
    assert "Hercules" in out
    assert "feature0, feature1 ... feature9 (10)" in out


def test_memory_of_the_catalog_and_of_a_stored_model(answer, hebe, models):
    estimate = answer("memory", "dlrm-rmc1", "--size", "production", "--workers", 3)
    spec = catalog.entry("dlrm-rmc1", "production")
    once = ("process_bytes", "table_bytes", "dense_net_bytes", "query_bytes")
    assert estimate["total_bytes"] == sum(estimate[part] for part in once) + 3 * estimate["worker_bytes"]
    assert spec.table_bytes <= estimate["table_bytes"] < 1.01 * spec.table_bytes
    one, two = (answer("memory", "dlrm-rmc1", "--workers", 3, "--worker-threads", threads) for threads in (1, 2))
    assert two["worker_bytes"] == 2 * one["worker_bytes"]
    bounded = answer("memory", "dlrm-rmc1", "--size", "production", "--table-memory", "1G")
    assert bounded["table_bytes"] == 1 << 30
    narrow = answer("memory", "dlrm-rmc1", "--size", "production", "--row-format", "fp16")
    assert narrow["row_format"] == "fp16"
    assert 0.5 * spec.table_bytes <= narrow["table_bytes"] < 0.51 * spec.table_bytes
    answer("new", "ncf", "--scale", 0.001, "--repository", models)
    stored = answer("memory", "ncf", "--repository", models, "--workers", 1)
    assert stored == answer("memory", "ncf", "--scale", 0.001, "--workers", 1) | {
        "available_bytes": stored["available_bytes"]
    }
    code, out, _ = hebe("memory", "dlrm-rmc2", "--size", "production")
    assert code == 0
    assert "in all" in out
    assert "each batch" not in out
    code, out, _ = hebe("memory", "dien", "--batch-size", 1024)
    assert code == 0
    assert "on top, while it runs" in out
    code, out, _ = hebe("memory", "dlrm-rmc1", "--row-format", "int8")
    assert code == 0
    assert "tables of int8 rows" in out


def test_train_stores_a_model_and_tells_its_auc(answer, models, tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(300):
        label = int(rng.integers(2))
        counts = [str(count) for count in rng.integers(0, 20, 13)]
        lines.append("\t".join([str(label), *counts, *[f"{label * 7 + k:08x}" for k in range(26)]]))
    (tmp_path / "log.tsv").write_text("\n".join(lines) + "\n")
    report = answer(
        "train", "criteo-dlrm", "--scale", 0.01, "--data", tmp_path / "log.tsv", "--repository", models, "--epochs", 2
    )
    assert report["version"] == 1
    assert report["rows"] == 240
    assert report["auc"] > 0.9
    assert ModelRepository(models).open("criteo-dlrm").provenance["epochs"] == 2


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
        (["--factory", "NET:make", "--weights", "LIST"], "is not a state dict (names to tensors)"),
    ],
)
def test_an_import_that_cannot_be_done_is_one_line(hebe, models, net, arguments, message):
    directory, _ = net
    safetensors.torch.save_file({"x": torch.zeros(1)}, directory / "other.safetensors")
    torch.save([torch.zeros(1)], directory / "list.pt")
    (directory / "ends.py").write_text("import sys; sys.exit(0)")
    files = {"NET": "net.py", "OTHER": "other.safetensors", "LIST": "list.pt", "ENDS": "ends.py"}
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
        (["show", "dlrm-rmc9"], "model 'dlrm-rmc9' is not in the catalog; did you mean"),
        (["show", "dlrm-rmc1", "--size", "huge"], "size 'huge' is unknown"),
        (["show", "dlrm-rmc1", "--version", "1"], "needs --repository"),
        (["show", "dlrm-rmc1", "--verify"], "needs --repository"),
        (["show", "x", "--repository", "R", "--scale", "0.5"], "leave out --size and --scale"),
        (["memory", "dlrm-rmc1", "--scale", "2"], "scale is 2"),
        (["memory", "dlrm-rmc1", "--workers", "0"], "workers"),
        (["memory", "dlrm-rmc1", "--table-memory", "much"], "write bytes as"),
        (["memory", "dlrm-rmc1", "--row-format", "int4"], "'int4': choose fp32, fp16, int8"),
        (["new", "dlrm-rmc1", "--scale", "0", "--repository", "R"], "scale is 0"),
        (["new", "dlrm-rmc1", "--seed", "-1", "--repository", "R"], "seed"),
        (
            ["new", "dlrm-rmc1", "--seed", str(2**63), "--repository", "R"],
            "'--seed': Input should be less than",
        ),
        (
            ["train", "criteo-dlrm", "--data", "D", "--seed", str(2**63), "--repository", "R"],
            "'--seed': Input should be less than",
        ),
        (["import", "--factory", "net", "--repository", "R", "--name", "m"], "'net': give FILE.py:CALLABLE"),
        (["import", "--factory", "no.py:f", "--repository", "R", "--name", "m"], "no.py: no such file"),
        (["import", "--factory", "no.py:f", "--repository", "R", "--name", "a/b"], "model name 'a/b'"),
        (["import", "--factory", "f.py:f", "--repository", "R", "--name", "m", "--sla-ms", "0"], "SLA latency_ms is 0"),
        (
            ["import", "--factory", "f.py:f", "--repository", "R", "--name", "m", "--lookups", "x=0"],
            "'x=0': give INPUT=N",
        ),
    ],
)
def test_wrong_usage_ends_with_status_2(hebe, monkeypatch, arguments, message):
    monkeypatch.setenv("COLUMNS", "300")
    code, _, err = hebe(*arguments)
    assert code == 2
    assert message in err.replace("│", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--repository", "ABSENT"], "not a model repository"),
        (["show", "ncf", "--repository", "ABSENT"], "not a model repository"),
        (["memory", "ncf", "--repository", "ABSENT"], "not a model repository"),
        (["new", "ncf", "--scale", "0.001", "--repository", "FILE"], "Not a directory"),
        (["train", "criteo-dlrm", "--data", "ABSENT", "--repository", "ABSENT"], "absent: no such file"),
    ],
)
def test_what_fails_is_one_line_and_status_1(hebe, tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    places = {"ABSENT": tmp_path / "absent", "FILE": tmp_path / "file" / "below"}
    code, out, err = hebe(*(places.get(argument, argument) for argument in arguments))
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "dlrm-rmc1"], "making dlrm-rmc1 needs"),
        (["train", "criteo-dlrm", "--data", "FILE"], "training criteo-dlrm needs"),
    ],
)
def test_what_there_is_no_memory_for_is_refused(hebe, tmp_path, models, monkeypatch, arguments, message):
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda: 12_345_678)
    (tmp_path / "file").write_text("")
    arguments = [argument.replace("FILE", str(tmp_path / "file")) for argument in arguments]
    code, out, err = hebe(*arguments, "--repository", models)
    assert (code, out) == (1, "")
    assert message in err
    assert "12,345,678 are available" in err
    assert not models.exists()


def test_a_damaged_model_is_named_by_verify(hebe, answer, models):
    stored = answer("new", "ncf", "--scale", 0.001, "--repository", models)
    table = next((Path(stored["path"]) / "tables").iterdir())
    content = bytearray(table.read_bytes())
    content[-1] ^= 1
    table.write_bytes(content)
    assert hebe("show", "ncf", "--repository", models)[0] == 0
    code, _, err = hebe("show", "ncf", "--repository", models, "--verify")
    assert code == 1
    assert f"{table.name}: checksum differs" in err
