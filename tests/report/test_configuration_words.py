import pytest

from hebe.report.configuration_words import configuration_words
from hebe.server_configuration import Lane, Placement

MODEL, PIPELINE = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST
SPARSE, HOT = Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR


@pytest.mark.parametrize(
    ("lanes", "words"),
    [
        ([Lane(MODEL, 1, 1, 64)], "model-on-host, 1 worker of 1 core, batches of 64"),
        ([Lane(MODEL, 4, 2, 1024)], "model-on-host, 4 workers of 2 cores, batches of 1,024"),
        (
            [Lane(PIPELINE, 2, 1, 16, 1)],
            "pipeline-on-host, 2 sparse workers of 1 core, 1 dense worker of 1 core, batches of 16",
        ),
        (
            [Lane(SPARSE, 3, 2, 64, 2, 4096)],
            "sparse-on-host, 3 sparse workers of 2 cores, 2 dense workers on the accelerator, batches of 64,"
            " fusing up to 4,096 items",
        ),
        (
            [Lane(HOT, 0, dense_workers=1), Lane(MODEL, 2)],
            "hot-sparse-on-accelerator, 1 dense worker on the accelerator, a query at a time;"
            " beside it model-on-host, 2 workers of 1 core, batches of 256",
        ),
    ],
)
def test_a_configuration_in_words(lanes, words):
    assert configuration_words(lanes) == words
