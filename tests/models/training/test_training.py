"""Training: it learns what was planted, is repeatable, holds out the tail, and leaves nothing behind when it fails."""

import math
import os
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import RankingModel
from hebe.models.catalog import entry
from hebe.models.repository import memory_estimate
from hebe.models.repository.repository import ModelRepository, RepositoryError
from hebe.models.training import training
from hebe.models.training.auc import roc_auc
from hebe.models.training.criteo import CriteoFile, CriteoFormatError
from hebe.models.training.criteo_features import CriteoTransform
from hebe.models.training.criteo_sample import generate_criteo
from hebe.models.training.training import TrainingError, held_out_start, needed_bytes, train
from hebe.spec import SpecError

SPEC = entry("criteo-dlrm", scale=0.1)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("criteo") / "sample.tsv"
    generate_criteo(path, 12_000, seed=1)
    return path


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    repository = ModelRepository(tmp_path_factory.mktemp("models"))
    seen = []
    report = train(SPEC, data, repository, batch_size=32, progress=lambda *state: seen.append(state))
    return repository, report, seen


def test_it_learns_what_was_planted(trained):
    _, report, _ = trained
    # The planted weights themselves give 0.84; the share of clicks alone a log-loss of 0.57.
    assert report.auc > 0.70
    assert report.log_loss < 0.52
    assert (report.model, report.version, report.epochs) == ("criteo-dlrm", 1, 1)
    assert (report.rows, report.held_out_rows, report.bad_lines) == (9600, 2400, 0)


def test_progress_counts_rows_up_to_all_of_them(trained):
    _, report, seen = trained
    done = [state[0] for state in seen]
    assert done == sorted(done)
    assert seen[-1] == (9600, 9600, report.loss)


def test_the_stored_model_scores_the_tail_as_reported(trained, data):
    repository, report, _ = trained
    stored = repository.open(report.model)
    model = RankingModel(SPEC, seed=99)
    for table in SPEC.tables:
        model.table_weight(table.name).data.copy_(torch.from_numpy(np.array(stored.table(table.name))))
    model.dense_net.load_state_dict(stored.dense_state())
    file = CriteoFile(data)
    (tail,) = file.batches(10_000, held_out_start(file.count_rows()))
    inputs = {name: torch.from_numpy(values) for name, values in CriteoTransform.for_model(SPEC).inputs(tail).items()}
    with torch.inference_mode():
        scores = model(inputs.pop("dense"), inputs)[:, 0].numpy().astype(np.float64)
    assert roc_auc(tail.labels, scores) == pytest.approx(report.auc, abs=1e-6)
    log_loss = -np.mean(np.log(np.where(tail.labels == 1, scores, 1 - scores)))
    assert log_loss == pytest.approx(report.log_loss, abs=1e-5)
    assert stored.provenance["auc"] == report.auc
    assert stored.provenance["data"] == "sample.tsv"
    assert stored.provenance["key_hash"] == "fnv1a-splitmix64"


def small(data: Path, path: Path, rows: int) -> Path:
    with data.open("rb") as source:
        path.write_bytes(b"".join(source.readline() for _ in range(rows)))
    return path


def weights(repository: ModelRepository, version: int) -> list[np.ndarray]:
    stored = repository.open(SPEC.name, version)
    dense = [tensor.numpy() for _, tensor in sorted(stored.dense_state().items())]
    return dense + [np.array(stored.table(table.name)) for table in SPEC.tables]


def test_the_same_seed_gives_the_same_model_and_another_seed_another(data, tmp_path):
    repository = ModelRepository(tmp_path / "models")
    path = small(data, tmp_path / "rows.tsv", 400)
    for seed in (7, 7, 8):
        torch.rand(3)  # the global random state must not matter
        train(SPEC, path, repository, seed=seed, epochs=2)
    first, same, other = (weights(repository, version) for version in (1, 2, 3))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_held_out_tail_is_not_trained_on(data, tmp_path):
    repository = ModelRepository(tmp_path / "models")
    path = small(data, tmp_path / "rows.tsv", 100)
    train(SPEC, path, repository)
    lines = path.read_bytes().splitlines(keepends=True)
    flipped = [(b"0" if line[:1] == b"1" else b"1") + line[1:] for line in lines[80:]]
    path.write_bytes(b"".join(lines[:80] + flipped))
    train(SPEC, path, repository)
    first, second = (weights(repository, version) for version in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_bad_lines_are_named_or_skipped_on_both_sides_of_the_split(data, tmp_path):
    lines = small(data, tmp_path / "rows.tsv", 100).read_bytes().splitlines(keepends=True)
    lines[10] = lines[90] = lines[95] = b"broken\n"
    path = tmp_path / "broken.tsv"
    path.write_bytes(b"".join(lines))
    repository = ModelRepository(tmp_path / "models")
    with pytest.raises(CriteoFormatError, match="line 11: 1 fields"):
        train(SPEC, path, repository)
    report = train(SPEC, path, repository, skip_bad_lines=True)
    assert (report.rows, report.held_out_rows, report.bad_lines) == (79, 18, 3)
    path.write_bytes(b"".join(lines[:10] + [b"broken\n"] * 200))
    with pytest.raises(CriteoFormatError, match="42 held-out lines is malformed"):
        train(SPEC, path, repository, skip_bad_lines=True)
    path.write_bytes(b"".join([*lines[:1], *[b"broken\n"] * 9]).replace(lines[0][:1] + b"\t", b"5\t", 1))
    with pytest.raises(CriteoFormatError, match="8 lines to train on is malformed"):
        train(SPEC, path, repository, skip_bad_lines=True)


def test_an_interruption_leaves_nothing_behind(data, tmp_path):
    def interrupt(*_state: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SPEC, data, ModelRepository(tmp_path), progress=interrupt)
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() >= 1


def test_labels_of_one_kind_leave_the_auc_unmeasured(data, tmp_path):
    path = small(data, tmp_path / "rows.tsv", 60)
    path.write_bytes(b"".join(b"0" + line[1:] for line in path.read_bytes().splitlines(keepends=True)))
    repository = ModelRepository(tmp_path / "models")
    assert math.isnan(train(SPEC, path, repository).auc)
    assert "auc" not in repository.open(SPEC.name).provenance


def test_what_cannot_be_trained_is_said_before_training(data, tmp_path):
    repository = ModelRepository(tmp_path / "models")
    with pytest.raises(SpecError, match="dense_dim 13"):
        train(entry("dlrm-rmc1"), data, repository)
    with pytest.raises(SpecError, match="outputs is 2"):
        train(replace(SPEC, outputs=2), data, repository)
    with pytest.raises(TrainingError, match="batch_size is 0"):
        train(SPEC, data, repository, batch_size=0)
    with pytest.raises(TrainingError, match="batch_size is 16385: must be at most 16384, the rows that are shuffled"):
        train(SPEC, data, repository, batch_size=16_385)
    with pytest.raises(TrainingError, match=r"4 row\(s\)"):
        train(SPEC, small(data, tmp_path / "rows.tsv", 4), repository)
    with pytest.raises(RepositoryError, match="not a directory"):
        train(SPEC, data, ModelRepository(data / "models"))
    assert not repository.root.exists()


def test_a_model_larger_than_memory_is_refused_before_it_is_drawn(data, tmp_path, monkeypatch):
    repository = ModelRepository(tmp_path / "models")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**18))
    huge = replace(SPEC, tables=tuple(replace(table, rows=10**13) for table in SPEC.tables))
    with pytest.raises(
        memory_estimate.NotEnoughMemory, match=r"training criteo-dlrm needs 17,680,\S+ bytes .* --scale"
    ):
        train(huge, data, repository)
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda: 100 << 20)
    with pytest.raises(memory_estimate.NotEnoughMemory, match="104,857,600 are available"):
        train(SPEC, data, repository)
    assert not repository.root.exists()


def test_a_model_larger_than_the_disk_is_refused_before_it_is_trained(data, tmp_path, monkeypatch):
    repository = ModelRepository(tmp_path / "models")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(RepositoryError, match="bytes and the disk has 1,000 left"):
        train(SPEC, data, repository, progress=lambda *_state: pytest.fail("it was trained"))
    assert not repository.root.exists()


def test_data_may_be_called_anything(data, tmp_path):
    path = small(data, tmp_path / os.fsdecode(b"clicks-\xff.tsv"), 100)
    train(SPEC, path, repository := ModelRepository(tmp_path / "models"))
    assert repository.open(SPEC.name).provenance["data"] == "clicks-?.tsv"


def test_the_scores_of_the_held_out_rows_count(data, tmp_path, monkeypatch):
    """Of a whole day of clicks they are more than a small model."""
    asked = []
    monkeypatch.setattr(training, "check_memory", lambda _what, needed, _remedy: asked.append(needed))
    train(SPEC, small(data, tmp_path / "rows.tsv", 300), ModelRepository(tmp_path / "models"))
    assert asked == [needed_bytes(SPEC, build_dense_net(SPEC), held_out_rows=60)]
    assert asked[0] == needed_bytes(SPEC, build_dense_net(SPEC)) + 60 * memory_estimate.HELD_OUT_ROW_BYTES


def test_a_held_out_row_takes_what_is_counted_for_it():
    random = np.random.default_rng(0)
    rows = 200_000
    labels, logits = random.integers(0, 2, rows).astype(np.float32), random.standard_normal(rows, dtype=np.float32)
    tracemalloc.start()
    try:
        roc_auc(labels, logits)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept_bytes = labels.nbytes + 2 * logits.nbytes  # the scores beside the logits they are made of
    assert peak_bytes + kept_bytes < 1.05 * rows * memory_estimate.HELD_OUT_ROW_BYTES


def test_a_diverging_loss_stops_training(data, tmp_path):
    with pytest.raises(TrainingError, match="diverged"):
        train(SPEC, small(data, tmp_path / "rows.tsv", 2000), ModelRepository(tmp_path / "models"), learning_rate=1e30)


def test_most_rows_is_as_if_the_file_ended_there(data, tmp_path):
    repository = ModelRepository(tmp_path / "models")
    first = train(SPEC, small(data, tmp_path / "rows.tsv", 300), repository)
    second = train(SPEC, data, repository, most_rows=300)
    assert (second.rows, second.held_out_rows, second.auc) == (240, 60, first.auc)
    assert all(np.array_equal(a, b) for a, b in zip(weights(repository, 1), weights(repository, 2), strict=True))
