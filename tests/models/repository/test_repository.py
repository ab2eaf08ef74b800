import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hebe.models.architectures.build import build_dense_net
from hebe.models.repository.repository import ROWS_AS_OF, ModelRepository, RepositoryError
from hebe.models.repository.table_file import file_size_bytes
from hebe.op_graph import Op, OpGraph
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget

SPEC = ModelSpec(
    name="small",
    architecture="dlrm",
    tables=(EmbeddingTableSpec("user", 300, 4), EmbeddingTableSpec("item", 17, 8)),
    features=(
        FeatureSpec("user", "user", 2, Pooling.SUM),
        FeatureSpec("clicked", "item", 3, Pooling.MEAN),
        FeatureSpec("item", "item", 1, Pooling.SUM),
    ),
    dense_dim=5,
    towers={"bottom": (8, 4), "top": (8, 1)},
    settings={"interaction": "concat"},
    sla=SlaTarget(12.5, 99.0),
    notes='quotes " and newlines \n and ☃',
)


def rows_of(table, seed=0):
    return np.random.default_rng([seed, table.rows]).standard_normal((table.rows, table.dim), dtype=np.float32)


def write(repository, spec=SPEC, *, rows_seed=0, weights_seed=7, **options):
    tables = {table.name: rows_of(table, rows_seed) for table in spec.tables}
    return repository.write(spec, tables, build_dense_net(spec, weights_seed).state_dict(), **options)


GRAPH = OpGraph(
    ("dense", "sparse", "lengths"),
    (
        Op("columns", "aten.slice.Tensor", ({"input": "sparse"}, 1, 0, 3)),
        Op("score", "aten.linear.default", ({"op": "columns"}, {"weight": "top"})),
    ),
    "score",
)
IMPORTED = dataclasses.replace(SPEC, architecture="imported", towers={}, settings={})


def write_imported(repository):
    tables = {table.name: rows_of(table) for table in SPEC.tables}
    return repository.write(IMPORTED, tables, {"top": torch.arange(3.0)[None]}, GRAPH)


@pytest.fixture
def repository(tmp_path):
    return ModelRepository(tmp_path / "models")


def test_what_was_written_is_read_back(repository):
    written = write(repository, provenance={"command": "test", "epochs": 3})
    stored = repository.open("small")
    assert stored == written
    assert stored.spec == SPEC
    assert stored.version == 1
    told = {ROWS_AS_OF: written.provenance[ROWS_AS_OF], "command": "test", "epochs": 3}
    assert dict(stored.provenance) == told
    for table in SPEC.tables:
        np.testing.assert_array_equal(stored.table(table.name), rows_of(table))
    expected = build_dense_net(SPEC, 7)
    net = stored.dense_net()
    inputs = torch.randn(6, 5), torch.randn(6, SPEC.sparse_width), torch.zeros(6, 0, dtype=torch.int64)
    torch.testing.assert_close(net(*inputs), expected(*inputs), rtol=0, atol=0)
    assert not net.training
    assert not any(parameter.requires_grad for parameter in net.parameters())
    assert set(stored.file_bytes) == {
        "tables/user.safetensors",
        "tables/item.safetensors",
        "dense.safetensors",
    }
    for name, size_bytes in stored.file_bytes.items():
        assert (stored.path / name).stat().st_size == size_bytes


def test_a_table_is_mapped_from_its_file(repository):
    rows = write(repository).table("user")
    assert not rows.flags.owndata
    with pytest.raises(KeyError, match="no table nothing"):
        repository.open("small").table("nothing")


def test_versions_count_up_and_the_latest_is_opened(repository):
    assert repository.versions("small") == ()
    assert write(repository).version == 1
    assert write(repository, version=9).version == 9
    assert write(repository).version == 10
    assert repository.versions("small") == (1, 9, 10)
    assert repository.open("small").version == 10
    assert repository.open("small", 9).version == 9
    assert repository.names() == ("small",)


def test_a_version_is_never_overwritten(repository):
    before = write(repository).files
    with pytest.raises(RepositoryError, match="1: exists"):
        write(repository, version=1)
    assert repository.open("small").files == before
    with pytest.raises(RepositoryError, match="version is 0"):
        write(repository, version=0)


def test_wrong_rows_are_refused_and_leave_nothing(repository):
    rows = {"user": np.zeros((299, 4), np.float32), "item": rows_of(SPEC.table("item"))}
    with pytest.raises(RepositoryError, match="table user: 299 rows were given: must be 300"):
        repository.write(SPEC, rows, build_dense_net(SPEC, 7).state_dict())
    assert repository.names() == ()
    assert os.listdir(repository.root / "small") == [".lock"]


def test_wrong_weights_are_refused_before_they_are_published(repository):
    tables = {table.name: rows_of(table) for table in SPEC.tables}
    state = build_dense_net(SPEC, 7).state_dict()
    state.popitem()
    with pytest.raises(RepositoryError, match="weights do not fit architecture dlrm"):
        repository.write(SPEC, tables, state)
    assert repository.versions("small") == ()


def test_tables_and_provenance_are_checked(repository):
    state = build_dense_net(SPEC, 7).state_dict()
    with pytest.raises(RepositoryError, match="differ: item"):
        repository.write(SPEC, {"user": rows_of(SPEC.table("user"))}, state)
    with pytest.raises(RepositoryError, match="provenance must be"):
        write(repository, provenance={"net": object()})


def test_progress_ends_at_the_size_of_the_files(repository):
    seen = []
    stored = write(repository, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (sum(stored.file_bytes.values()),) * 2
    assert seen == sorted(seen)
    seen.clear()
    stored.verify(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (sum(stored.file_bytes.values()),) * 2


def test_what_was_written_survives_a_power_failure(tmp_path, monkeypatch):
    """Every file is flushed, and every directory in which a name is new: up to the first that there was."""
    flushed, real = set(), os.fsync

    def noted(descriptor):
        flushed.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    repository = ModelRepository(tmp_path / "new" / "models")
    write(repository)
    small = repository.root / "small"
    staged = {small / ".writing-1" / path.relative_to(small / "1") for path in (small / "1").rglob("*")}
    assert flushed == staged | {small / ".writing-1", small, repository.root, tmp_path / "new", tmp_path}
    flushed.clear()
    write(repository)
    assert small in flushed
    assert repository.root not in flushed, "where nothing is new"


def test_a_full_disk_leaves_nothing(repository, monkeypatch):
    write(repository)
    real = os.fsync

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("item.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device", "item.safetensors")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RepositoryError, match="cannot be written: No space left on device; nothing was stored"):
        write(repository)
    assert sorted(os.listdir(repository.root / "small")) == [".lock", "1"]


def test_a_model_larger_than_the_disk_is_refused_at_once(repository):
    table = EmbeddingTableSpec("user", 10**15, 4)
    spec = ModelSpec("huge", "dlrm", (table,), (FeatureSpec("user", "user", 1, Pooling.SUM),))
    with pytest.raises(RepositoryError, match=r"needs 16,0.* bytes and the disk has"):
        repository.write(spec, {"user": iter([])}, {})


def test_whether_a_model_can_be_written_is_told_beforehand(repository, monkeypatch):
    repository.check_writable(SPEC)
    assert not repository.root.exists()
    needed = sum(map(file_size_bytes, SPEC.tables))
    for free in (needed, needed - 1):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        why = f"needs {needed:,} bytes and the disk has {free:,} left; free some, write it to a repository on a larger"
        refused = pytest.raises(RepositoryError, match=why)
        with contextlib.nullcontext() if free == needed else refused:
            repository.check_writable(SPEC)
    repository.root.mkdir()
    (repository.root / SPEC.name).write_text("")
    with pytest.raises(RepositoryError, match="models/small: not a directory that can be written to"):
        repository.check_writable(SPEC)


def test_a_model_whose_directory_is_anothers_is_told_beforehand(repository, monkeypatch):
    write(repository)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != repository.root / "small" and access(path, mode))
    with pytest.raises(RepositoryError, match="models/small: not a directory that can be written to"):
        repository.check_writable(SPEC)
    repository.check_writable(dataclasses.replace(SPEC, name="other"))


def test_the_name_of_a_file_that_is_no_unicode_may_be_in_the_provenance(repository):
    stored = write(repository, provenance={"data": os.fsdecode(b"clicks-\xff.tsv")})
    assert stored.provenance["data"] == "clicks-?.tsv"


WRITER_THAT_DIES = """
import os, signal, sys
import numpy as np
from hebe.models.repository.repository import ModelRepository
from hebe.op_graph import Op, OpGraph
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

table = EmbeddingTableSpec("user", 300, 4)
spec = ModelSpec("small", "dlrm", (table,), (FeatureSpec("user", "user", 2, Pooling.SUM),), towers={"top": (1,)})

def chunks():
    yield np.zeros((100, 4), np.float32)
    os.kill(os.getpid(), signal.SIGKILL)

ModelRepository(sys.argv[1]).write(spec, {"user": chunks()}, {})
"""


def test_what_a_crash_leaves_is_not_a_version_and_is_removed_by_the_next_write(repository):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        [sys.executable, "-c", WRITER_THAT_DIES, str(repository.root)], env=environment, check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert len(list((repository.root / "small").glob(".writing-*"))) == 1
    assert repository.names() == ()
    assert write(repository).version == 1
    assert sorted(os.listdir(repository.root / "small")) == [".lock", "1"]


def test_writers_at_once_each_get_a_version(repository):
    with ThreadPoolExecutor(3) as writers:
        stored = list(writers.map(lambda _: write(repository), range(6)))
    assert sorted(model.version for model in stored) == [1, 2, 3, 4, 5, 6]
    assert repository.versions("small") == (1, 2, 3, 4, 5, 6)


def test_a_graph_that_reads_keys_needs_a_spec_that_says_so(repository):
    spec = dataclasses.replace(IMPORTED, settings={"reads_keys": True})
    tables = {table.name: rows_of(table) for table in SPEC.tables}
    with pytest.raises(RepositoryError, match=r"settings.reads_keys is True, but the graph says otherwise"):
        repository.write(spec, tables, {"top": torch.arange(3.0)[None]}, GRAPH)


def test_an_imported_model_is_run_from_its_graph(repository):
    stored = write_imported(repository)
    assert stored.imported
    assert stored.graph() == GRAPH
    net = stored.dense_net()
    sparse = torch.randn(5, SPEC.sparse_width)
    scores = net(torch.zeros(5, 5), sparse, torch.zeros(5, 0, dtype=torch.int64))
    torch.testing.assert_close(scores, (sparse[:, :3] @ torch.arange(3.0))[:, None])
    assert not any(tensor.requires_grad for tensor in net.buffers())


def test_a_graph_that_does_not_fit_its_weights_is_refused(repository):
    tables = {table.name: rows_of(table) for table in SPEC.tables}
    with pytest.raises(RepositoryError, match=r"weights do not fit graph.json: op score: argument"):
        repository.write(IMPORTED, tables, {"bottom": torch.zeros(1, 3)}, GRAPH)
    forbidden = OpGraph(GRAPH.inputs, (Op("x", "os.system.default", ("true",)),), "x")
    with pytest.raises(RepositoryError, match=r"'os.system.default' is not an ATen op"):
        repository.write(IMPORTED, tables, {}, forbidden)
    assert repository.names() == ()


FILES = ["model.toml", "dense.safetensors", "tables/user.safetensors", "tables/item.safetensors", "graph.json"]


def read_everything(repository):
    stored = repository.open("small")
    stored.verify()


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_an_error(repository, file):
    path = write_imported(repository).path / file
    path.unlink()
    said = f"{file}: no such file" if file != "model.toml" else "has no model.toml and is no version: "
    with pytest.raises(RepositoryError, match=f"{said}.*restore it"):
        repository.open("small")


@given(file=st.sampled_from(FILES), data=st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_corruption_is_an_error_that_names_the_file(tmp_path, file, data):
    repository = ModelRepository(tmp_path / "models")
    stored = repository.open("small") if repository.versions("small") else write_imported(repository)
    path = stored.path / file
    content = path.read_bytes()
    how = data.draw(st.sampled_from(["flip", "truncate", "append", "zeros"]))
    if how == "flip":
        position = data.draw(st.integers(0, len(content) - 1))
        bit = data.draw(st.integers(0, 7))
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
    elif how == "truncate":
        damaged = content[: data.draw(st.integers(0, len(content) - 1))]
    elif how == "append":
        damaged = content + data.draw(st.binary(min_size=1, max_size=9))
    else:
        damaged = bytes(len(content))
    path.write_bytes(damaged)
    try:
        with pytest.raises(RepositoryError, match=rf"{file}: .*(restore|write the model again)"):
            read_everything(repository)
    finally:
        path.write_bytes(content)
    read_everything(repository)


def sealed(text):
    """What a model.toml of this text is: its last line is right, whoever wrote it."""
    return text + f"# SHA-256 of all lines above: {hashlib.sha256(text).hexdigest()}\n".encode()


def content_of(stored):
    return tomllib.loads((stored.path / "model.toml").read_text())


def put(content, place, value):
    *path, last = place
    for step in path:
        content = content[step]
    content[last] = value


HOSTILE = [
    (("provenance",), "x", "provenance is 'x': must be a table"),
    (("provenance",), [1], r"provenance is \[1\]: must be a table"),
    (("files",), "x", "missing or malformed field"),
    (("files", "dense.safetensors"), 3, "missing or malformed field"),
    (("files", "dense.safetensors", "size_bytes"), [1], r"size_bytes is \[1\]: must be a whole number"),
    (("files", "tables/user.safetensors", "size_bytes"), "9", "size_bytes is '9': must be a whole number"),
    (("files", "tables/user.safetensors", "size_bytes"), True, "size_bytes is True"),
    (("files", "tables/user.safetensors", "size_bytes"), -1, "size_bytes is -1"),
    (("files", "tables/user.safetensors", "sha256"), 7, "sha256 is 7: must be 64 hexadecimal digits"),
    (("files", "tables/user.safetensors", "sha256"), "A" * 64, "sha256 is 'AAA.*': must be 64 hexadecimal digits"),
    (("files", "tables/user.safetensors", "more"), 7, "missing or malformed field"),
    (("spec",), "x", "model spec: unknown field"),
    (("spec",), [[1]], "model spec|missing or malformed field"),
    (("spec", "notes"), 3, "notes is 3: must be text"),
    (("spec", "source"), ["x"], r"source is \['x'\]: must be text"),
    (("spec", "size"), {}, "size is {}: must be text"),
    (("spec", "settings", "interaction"), [1], r"settings.interaction is \[1\]: must be a number, text"),
    (("spec", "settings", "interaction"), 7, "settings.interaction is 7: must be one of"),
    (("spec", "towers"), 3, "model spec"),
    (("spec", "towers", "top"), [2**62, 2**62, 1], "weights do not fit architecture dlrm"),
    (("spec", "dense_dim"), 2**63 - 1, "weights do not fit architecture dlrm"),
    (("spec", "outputs"), 2**63 - 1, "weights do not fit architecture dlrm"),
    (("spec", "sla", "latency_ms"), "soon", "model spec"),
    (("spec", "tables", 0, "rows"), 2**63 - 1, "its header .* is not that of table user"),
    (("spec", "features", 0, "pooling"), [1], "model spec"),
]


@pytest.mark.parametrize(("place", "value", "message"), HOSTILE, ids=str)
def test_a_spec_that_is_sealed_but_wrong_is_an_error(repository, place, value, message):
    stored = write(repository)
    content = content_of(stored)
    put(content, place, value)
    (stored.path / "model.toml").write_bytes(sealed(tomli_w.dumps(content).encode()))
    with pytest.raises(RepositoryError, match=message):
        read_everything(repository)


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b"= 3\n", b"x = \n", b"x = " + b"[" * 5000 + b"]" * 5000 + b"\n"])
def test_what_is_no_toml_though_sealed_is_an_error(repository, text):
    stored = write(repository)
    (stored.path / "model.toml").write_bytes(sealed(text))
    with pytest.raises(RepositoryError, match=r"model.toml: not TOML: .*; write the model again"):
        repository.open("small")


@given(
    data=st.data(),
    value=st.sampled_from([-1, 0, 2**62, 1.5, float("nan"), True, "", "x", "é" * 300, [], [1], [[1]], {}, {"a": 1}]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sealed_spec_is_read_or_refused(tmp_path, data, value):
    repository = ModelRepository(tmp_path / "models")
    if not repository.versions("small"):
        path = write_imported(repository).path / "model.toml"
        path.with_name("kept").write_bytes(path.read_bytes())
    path = repository.root / "small" / "1" / "model.toml"
    whole = content = tomllib.loads(path.with_name("kept").read_text())
    while True:
        steps = range(len(content)) if isinstance(content, list) else sorted(content)
        step = data.draw(st.sampled_from(steps))
        if not isinstance(content[step], list | dict) or not content[step] or data.draw(st.integers(0, 5)) == 0:
            break
        content = content[step]
    content[step] = value
    path.write_bytes(sealed(tomli_w.dumps(whole).encode()))
    with contextlib.suppress(RepositoryError):
        read_everything(repository)
        _ = repository.open("small").rows_as_of_s


@pytest.mark.parametrize("position", [0, 20, 4095])
def test_a_damaged_table_header_is_found_on_opening(repository, position):
    path = write(repository).path / "tables/user.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(RepositoryError, match=r"user.safetensors: its header .* is not that of table user"):
        repository.open("small")


def test_a_file_truncated_after_opening_is_an_error(repository):
    stored = write(repository)
    path = stored.path / "tables/user.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RepositoryError, match="truncated"):
        stored.table("user")
    path.write_bytes(b"")
    with pytest.raises(RepositoryError, match="truncated"):
        stored.table("user")


def test_a_renamed_model_is_an_error(repository):
    write(repository)
    (repository.root / "small").rename(repository.root / "other")
    with pytest.raises(RepositoryError, match="its spec is of model small, but it lies under other"):
        repository.open("other")


def test_unknown_names_are_errors_that_name_the_known(repository):
    with pytest.raises(RepositoryError, match="not a model repository"):
        repository.names()
    write(repository)
    with pytest.raises(RepositoryError, match="has no model 'big'; it has: small"):
        repository.open("big")
    with pytest.raises(RepositoryError, match=r"has no model '\.\./small'"):
        repository.open("../small")
    with pytest.raises(RepositoryError, match="no version 4; it has: 1"):
        repository.open("small", 4)


def test_strangers_in_the_directory_are_not_models(repository):
    write(repository)
    (repository.root / "notes.txt").write_text("hello")
    (repository.root / "empty").mkdir()
    (repository.root / "small" / "backup").mkdir()
    (repository.root / "small" / "01").mkdir()
    assert repository.names() == ("small",)
    assert repository.versions("small") == (1,)


def test_a_directory_without_model_toml_is_no_version(repository):
    write(repository)
    newer = write(repository)
    (repository.root / "small" / "9").mkdir()
    (repository.root / "stray" / "1" / "tables").mkdir(parents=True)
    assert repository.names() == ("small",)
    assert repository.versions("small") == (1, 2)
    assert repository.open("small") == newer
    assert repository.incomplete("small") == (repository.root / "small" / "9",)
    assert repository.incomplete() == (repository.root / "small" / "9", repository.root / "stray" / "1")
    with pytest.raises(RepositoryError, match=r"no version 9; it has: 1, 2; .*/small/9 has no model.toml and is no"):
        repository.open("small", 9)
    with pytest.raises(RepositoryError, match=r"no model 'stray'; it has: small; .*/stray/1 has no model.toml"):
        repository.open("stray")


def test_a_model_is_told_from_a_repository(repository, monkeypatch):
    stored = write(repository)
    assert repository.repository_above() is None
    assert ModelRepository(stored.path.parent).repository_above() == repository.root
    assert ModelRepository(stored.path).repository_above() == repository.root
    assert ModelRepository(repository.root / "absent").repository_above() is None
    monkeypatch.chdir(stored.path)
    assert ModelRepository(".").repository_above() == Path("../..")


def test_the_number_of_a_directory_that_is_no_version_is_taken(repository):
    write(repository)
    (repository.root / "small" / "9").mkdir()
    with pytest.raises(RepositoryError, match="9: exists and is never overwritten"):
        write(repository, version=9)
    assert write(repository).version == 10


@pytest.fixture
def forbid(monkeypatch):
    """Directories that may not be listed, whoever asks: root may list all."""

    def forbid(*directories) -> None:
        listed = Path.iterdir

        def iterdir(path):
            if path in directories:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return listed(path)

        monkeypatch.setattr(Path, "iterdir", iterdir)

    return forbid


def test_a_model_that_cannot_be_listed_hides_no_other(repository, forbid):
    write(repository)
    (repository.root / "secret").mkdir()
    forbid(repository.root / "secret")
    assert repository.names() == ("secret", "small")
    assert repository.versions("small") == (1,)
    assert repository.incomplete() == ()
    for ask in (repository.versions, repository.open):
        with pytest.raises(RepositoryError, match="/secret: cannot be listed: Permission denied"):
            ask("secret")


def test_a_repository_that_cannot_be_listed_is_not_said_to_be_none(repository, forbid):
    write(repository)
    forbid(repository.root)
    with pytest.raises(RepositoryError, match="models: cannot be listed: Permission denied"):
        repository.names()


def test_a_version_that_may_not_be_looked_into_counts(repository, monkeypatch):
    newer = write(repository, version=2)

    def lstat(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "lstat", lstat)
    assert repository.versions("small") == (newer.version,)


def test_a_root_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryError, match="cannot be written: Not a directory"):
        write(ModelRepository(tmp_path / "file" / "models"))


def test_a_version_tells_of_when_its_rows_are(repository):
    before_s = time.time()
    assert before_s - 1 <= write(repository).rows_as_of_s <= time.time() + 1
    told = write(repository, provenance={ROWS_AS_OF: "2026-05-04T05:02:01.5+02:00"})
    assert told.rows_as_of_s == datetime(2026, 5, 4, 3, 2, 1, 500_000, UTC).timestamp()
    with pytest.raises(RepositoryError, match="rows_as_of is 'noon': must be a time"):
        _ = write(repository, provenance={ROWS_AS_OF: "noon"}).rows_as_of_s


def test_the_identity_changes_with_spec_and_files_and_with_nothing_else(repository):
    same = write(repository), write(repository)
    others = (
        write(repository, rows_seed=2),
        write(repository, weights_seed=2),
        write(repository, dataclasses.replace(SPEC, sla=SlaTarget(123.0))),
    )
    identities = [version.identity for version in (*same, *others)]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4
    assert len({version.tables_identity for version in (*same, *others)}) == 2
