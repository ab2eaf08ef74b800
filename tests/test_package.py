import subprocess
import sys

import numpy as np
import pytest

import hebe
from hebe.cli.main import main


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with two versions of one small model, made as a user makes them."""
    directory = tmp_path_factory.mktemp("repository")
    for seed in ("0", "1"):
        with pytest.raises(SystemExit) as exit_:
            main(["model", "new", "dlrm-rmc1", "--scale", "0.001", "--seed", seed, "--repository", str(directory)])
        assert exit_.value.code == 0
    return directory


def test_importing_hebe_is_light_and_knows_its_names():
    check = (
        "import sys, hebe\n"
        "assert not [name for name in ('torch', 'numpy', 'grpc', 'rich', 'typer') if name in sys.modules]\n"
        "assert hebe.Server.__module__ == 'hebe.serving.server'\n"
        "assert hebe.ServerOptions().host == '127.0.0.1'\n"
        "assert hebe.HPS.__module__ == 'hebe.embeddings.hps.hps'\n"
        "assert hebe.LookupLayer.__module__ == 'hebe.runtime.lookup_layer'\n"
        "assert hebe.JaggedKeys([7], [0, 1]).__module__ == 'hebe.query'\n"
        "assert hebe.open_update_log.__module__ == 'hebe.embeddings.updates.opening'\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="serve"):
        hebe.serve  # noqa: B018


def test_a_loaded_model_scores_items(repository):
    model = hebe.load(repository, "dlrm-rmc1")
    rng = np.random.default_rng(0)
    features = {
        feature.name: rng.integers(0, model.spec.table(feature.table).rows, (7, feature.lookups))
        for feature in model.spec.features
    }
    dense = rng.random((7, model.spec.dense_dim), dtype=np.float32)
    scores = model.predict(features, dense)
    assert (scores.shape, scores.dtype) == ((7, model.spec.outputs), np.float32)
    assert ((scores > 0) & (scores < 1)).all()
    one = model.predict({name: keys[3:4] for name, keys in features.items()}, dense[3:4])
    np.testing.assert_allclose(one, scores[3:4], atol=1e-6)
    older = hebe.load(str(repository), "dlrm-rmc1", version=1)
    assert (older.version, model.version) == (1, 2)
    assert np.abs(older.predict(features, dense) - scores).max() > 1e-3


def test_a_model_that_is_not_there_is_named(repository):
    from hebe.models.repository.repository import RepositoryError

    with pytest.raises(RepositoryError, match="dlrm-x"):
        hebe.load(repository, "dlrm-x")
    with pytest.raises(RepositoryError, match="3"):
        hebe.load(repository, "dlrm-rmc1", version=3)
