import contextlib
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import hebe
from hebe.cli.main import main
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.rocksdb.store import RocksDbStore
from tests.examples.hps_examples import documented, of_strings, write_json
from tests.examples.sparse_models import any_keys, write_sparse_model


def run(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as exit_:
        main(["model", "import-hps", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    assert exit_.value.code == code, captured.err
    return captured


def words_of(text):
    """Without the box and the line breaks of a message."""
    return " ".join(text.replace("│", " ").split())


def result_of(captured):
    return json.loads(captured.out.splitlines()[-1])


@pytest.fixture
def model(tmp_path):
    """A ps.json of strings with one table of 50 keys, one of which comes twice; keys and rows."""
    rng = np.random.default_rng(0)
    keys, rows = any_keys(rng, 50), rng.standard_normal((51, 16), np.float32)
    write_sparse_model(tmp_path / "0_sparse_1900.model", np.append(keys, keys[0]), rows)
    rows[0] = rows[50]
    return write_json(tmp_path / "ps.json", of_strings(tmp_path)), keys, rows[:50]


def test_it_says_what_becomes_of_each_parameter(model, capsys) -> None:
    shown = run(capsys, model[0]).out
    for words in (
        "gpucacheper", "cache_fraction = 0.5", "num_of_worker_buffer_in_pool", "not needed",
        "network_file", "not honoured", "the dense network", "volatile_db", "parallel_hash_map",
        "1 repeated keys: the last row counts", "nothing was written: --out hebe.toml",
        'hebe.LookupLayer("hebe.toml", "movielens_hugectr", "sparse_embedding0", 16)', "hebe model import --help",
    ):  # fmt: skip
        assert words in shown, words
    assert not list(Path.cwd().glob("hebe.toml"))


def test_what_it_writes_answers_lookups(model, tmp_path, capsys) -> None:
    ps_json, keys, rows = model
    out = tmp_path / "hebe.toml"
    result = result_of(run(capsys, ps_json, "--out", out, "--json"))
    assert result["written"] == str(out)
    assert result["tables"][0]["rows"] == 50
    assert result["tables"][0]["repeated_keys"] == 1
    fates = {(each["place"], each["parameter"]): each["fate"] for each in result["decisions"]}
    assert fates["models[movielens_hugectr]", "gpucacheper"] == "mapped"
    assert result["not_honoured"] == list(fates.values()).count("not honoured") == 3
    assert out.read_text().startswith("# From a ps.json")
    assert "dense_file" in out.read_text()
    assert stat.S_IMODE(out.stat().st_mode) & 0o400
    with hebe.HPS(out) as hps:
        assert np.array_equal(hps.lookup(keys, "movielens_hugectr", 0, wait=True), rows)
    failed = run(capsys, ps_json, "--out", out, code=2)
    assert "is there already: give another file, or --replace" in words_of(failed.err)
    run(capsys, ps_json, "--out", out, "--replace")
    assert "is read: write to another file" in words_of(run(capsys, ps_json, "--out", ps_json, code=2).err)


def test_sparse_files_are_loaded_into_a_persistent_store(model, tmp_path, capsys) -> None:
    ps_json, keys, rows = model
    assert "no persistent store: add --persistent-dir" in words_of(run(capsys, ps_json, "--load", code=2).err)
    out, stores = tmp_path / "hebe.toml", tmp_path / "stores"
    result = result_of(run(capsys, ps_json, "--out", out, "--persistent-dir", stores, "--load", "--json"))
    place = stores / "movielens_hugectr" / "1"
    assert result["tables"][0]["store"] == str(place)
    with contextlib.closing(RocksDbStore(place, read_only=True)) as store:
        assert store.size("sparse_embedding0") == 50
    for file in (tmp_path / "0_sparse_1900.model").iterdir():
        file.unlink()
    (tmp_path / "0_sparse_1900.model").rmdir()
    with hebe.HPS(out) as hps:
        assert np.array_equal(hps.lookup(keys, "movielens_hugectr", 0, wait=True), rows), "the store has them"


def test_rows_that_are_not_finite_are_not_loaded(model, tmp_path, capsys) -> None:
    ps_json, keys, rows = model
    rows[7, 3] = np.inf
    write_sparse_model(tmp_path / "0_sparse_1900.model", keys, rows)
    failed = run(capsys, ps_json, "--persistent-dir", tmp_path / "stores", "--load", code=1)
    said = "emb_vector of table sparse_embedding0: 1 of 50 rows are not finite (inf or nan), the first that of key "
    assert f"{said}{keys[7]}" in words_of(failed.err)


def test_files_that_are_elsewhere(tmp_path, model, capsys) -> None:
    ps_json = write_json(tmp_path / "moved.json", of_strings("/container"))
    shown = run(capsys, ps_json).out
    assert "/container/0_sparse_1900.model/key cannot be read: No such file or directory" in shown
    failed = run(capsys, ps_json, "--persistent-dir", tmp_path / "s", "--load", "--json", code=1)
    assert "/container/0_sparse_1900.model" in result_of(failed)["error"]
    result = result_of(run(capsys, ps_json, "--moved", f"/container={tmp_path}", "--json"))
    assert result["tables"][0]["rows"] == 50
    assert "give OLD=NEW" in words_of(run(capsys, ps_json, "--moved", "/container", code=2).err)
    del model


def test_a_password_is_for_its_owner_and_shown_to_nobody(tmp_path, capsys) -> None:
    ps_json, out = write_json(tmp_path / "ps.json", documented()), tmp_path / "hebe.toml"
    captured = run(capsys, ps_json, "--out", out, "--json")
    assert "a secret" not in captured.out + captured.err
    assert "password_file" in captured.err
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert HierarchyConfig.from_toml(out).volatile_db.password == "a secret"


def test_a_password_is_for_its_owner_whatever_lies_there(tmp_path, capsys) -> None:
    ps_json, out = write_json(tmp_path / "ps.json", documented()), tmp_path / "hebe.toml"
    beside = tmp_path / "hebe.toml.new"
    for path in (out, beside):
        path.write_text("anybody's")
        path.chmod(0o644)
    run(capsys, ps_json, "--out", out, "--replace")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert beside.read_text() == "anybody's"
    assert {path.name for path in tmp_path.iterdir()} == {"ps.json", "hebe.toml", "hebe.toml.new"}


def test_a_pipe_is_written_into_and_stays(model, tmp_path, capsys) -> None:
    out = tmp_path / "pipe"
    os.mkfifo(out)
    reader = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
    run(capsys, model[0], "--out", out, "--replace")
    assert out.is_fifo()
    assert os.read(reader, 1 << 16).startswith(b"# From a ps.json")
    os.close(reader)


def test_unknown_keys_are_named(tmp_path, capsys) -> None:
    data = documented()
    data["models"][0]["gpu_cacheper"] = 0.5
    failed = run(capsys, write_json(tmp_path / "ps.json", data), code=1)
    assert "unknown key gpu_cacheper: did you mean gpucacheper?" in failed.err
