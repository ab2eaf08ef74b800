"""`hebe model` but for imports."""

import json
from pathlib import Path

import numpy as np
import pytest

from hebe.models import catalog
from hebe.models.architectures.ranking_model import RankingModel
from hebe.models.repository import memory_estimate
from hebe.models.repository.repository import ModelRepository
from hebe.models.training.criteo_sample import generate_criteo


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


def test_new_and_its_features_may_take_new_keys(answer, models):
    answer("new", "ncf", "--scale", 0.001, "--repository", models, "--new-keys")
    spec = ModelRepository(models).open("ncf").spec
    assert spec == catalog.entry("ncf", scale=0.001).taking_new_keys() != catalog.entry("ncf", scale=0.001)


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


def clicks(path, labels):
    """A Criteo-format file whose categories tell the label."""
    rng = np.random.default_rng(0)
    lines = []
    for label in labels:
        counts = [str(count) for count in rng.integers(0, 20, 13)]
        lines.append("\t".join([str(label), *counts, *[f"{label * 7 + k:08x}" for k in range(26)]]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_train_stores_a_model_and_tells_its_auc(answer, models, tmp_path):
    log = clicks(tmp_path / "log.tsv", np.random.default_rng(1).integers(0, 2, 300))
    report = answer("train", "criteo-dlrm", "--scale", 0.01, "--data", log, "--repository", models, "--epochs", 2)
    assert report["version"] == 1
    assert report["rows"] == 240
    assert report["auc"] > 0.9
    assert ModelRepository(models).open("criteo-dlrm").provenance["epochs"] == 2


def test_train_says_why_there_is_no_auc(hebe, answer, models, tmp_path):
    log = clicks(tmp_path / "log.tsv", [0, 1] * 40 + [0] * 20)
    arguments = ("train", "criteo-dlrm", "--scale", 0.001, "--data", log, "--repository", models)
    code, out, _ = hebe(*arguments)
    assert code == 0
    told = (
        "auc: not measured: the 20 held-out rows, the last fifth of the file, all have the same label. Give more rows"
    )
    assert told in out
    assert answer(*arguments)["auc"] is None


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
        (["train", "dlrm-rmc1", "--data", "D", "--repository", "R"], "of one lookup; take criteo-dlrm or recos-dlrm"),
        (["train", "mt-wnd", "--data", "D", "--repository", "R"], "one label; take criteo-dlrm or recos-dlrm"),
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
    generate_criteo(tmp_path / "file", 10)
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
