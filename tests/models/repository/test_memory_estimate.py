import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.embeddings.tiers.background import MOST_HELD_BYTES
from hebe.models import catalog
from hebe.models.architectures.build import build_dense_net
from hebe.models.repository import memory_estimate
from hebe.models.repository.memory_estimate import (
    KEPT_ACTIVATIONS,
    KEPT_QUERIES,
    MAKING_BYTES,
    OP_BYTES,
    PACKED_WEIGHTS,
    PROCESS_BYTES,
    THREAD_BYTES,
    TRAINING_BYTES,
    TRITON_BYTES,
    NotEnoughMemory,
    activation_bytes,
    buffer_bytes,
    check_memory,
    estimate_memory,
    making_bytes,
    training_bytes,
)
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

SPEC = ModelSpec(
    "m",
    "dlrm",
    (EmbeddingTableSpec("a", 1_000_000, 8), EmbeddingTableSpec("b", 3, 4)),
    (FeatureSpec("a", "a", 5, Pooling.SUM), FeatureSpec("b", "b", 2, Pooling.CONCAT)),
    dense_dim=3,
)


class Doubling(nn.Module):
    """Makes [n, 16], then [n, 32], then drops both; 8 weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, dense, sparse, lengths):  # noqa: ARG002
        doubled = torch.cat([sparse, sparse], 1)
        doubled = torch.cat([doubled, doubled], 1)
        score = doubled.sum(1) * self.weight[0]
        del doubled
        return torch.sigmoid(score)


def test_activations_are_the_most_bytes_alive_at_once():
    width = SPEC.sparse_width
    # While the second cat runs, its argument (2 widths) and its result (4 widths) live.
    assert activation_bytes(SPEC, Doubling(), 100) == 100 * 4 * (2 * width + 4 * width)


def test_a_batch_that_might_not_fit_is_not_run_but_reckoned():
    thousand = activation_bytes(SPEC, Doubling(), 1000)
    assert activation_bytes(SPEC, Doubling(), 10**12) == 10**9 * thousand


def test_views_inputs_and_weights_are_not_activations():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1000, 1000))

        def forward(self, dense, sparse, lengths):  # noqa: ARG002
            return sparse[:, 1:].t().view(-1, 10), self.weight.t()[:, 1]

    assert activation_bytes(SPEC, Views(), 10) == 0


def test_buffers_are_the_keys_and_the_dense_nets_inputs():
    assert buffer_bytes(SPEC, 100) == 100 * (8 * (5 + 2) + 8 * 1 + 4 * (3 + 8 + 8))


def test_the_parts_add_up():
    estimate = estimate_memory(SPEC, Doubling(), workers=3, batch_size=100)
    tables = 32_000_000 + 64  # each table on a cache line, all on whole huge pages of 2 MiB
    assert estimate.table_bytes == -(-tables // (2 << 20)) * (2 << 20)
    assert estimate.dense_net_bytes == 32 + 6 * OP_BYTES
    assert estimate.query_bytes == 100 * (8 * 7 + 4 * 3)
    kept = KEPT_ACTIVATIONS * activation_bytes(SPEC, Doubling(), 100) + KEPT_QUERIES * estimate.query_bytes
    assert estimate.worker_bytes == THREAD_BYTES + buffer_bytes(SPEC, 100) + round(kept)
    others = estimate.table_bytes + estimate.dense_net_bytes + estimate.query_bytes
    assert estimate.model_bytes == others + 3 * estimate.worker_bytes
    assert estimate.total_bytes == PROCESS_BYTES + estimate.model_bytes
    assert estimate.batch_bytes == 0
    two_threads = estimate_memory(SPEC, Doubling(), workers=3, batch_size=100, worker_threads=2)
    assert two_threads.worker_bytes == 2 * estimate.worker_bytes
    assert two_threads.model_bytes == estimate.model_bytes + 3 * estimate.worker_bytes


class Reading(nn.Module):
    """Has a small matrix that it multiplies by, and a larger one that `read` reads."""

    def __init__(self, read):
        super().__init__()
        self.top, self.table = nn.Linear(SPEC.sparse_width, 20), nn.Parameter(torch.ones(1000, SPEC.sparse_width))
        self.gru = nn.GRU(SPEC.sparse_width, SPEC.sparse_width, batch_first=True)
        self.read = read

    def forward(self, dense, sparse, lengths):  # noqa: ARG002
        return self.top(sparse).sum(1) + self.read(self, sparse).sum()


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        (lambda m, sparse: sparse @ m.table.T, 1000),
        (lambda m, sparse: functional.linear(sparse, m.table), 1000),
        (lambda m, sparse: functional.linear(sparse, m.table[:200]), 200),
        (lambda m, sparse: torch.einsum("nd,rd->nr", sparse, m.table), 1000),
        (lambda m, sparse: m.gru(sparse[:, None])[0], 3 * SPEC.sparse_width),
        (lambda m, sparse: m.table[sparse[:, 0].long()], 20),
        (lambda m, sparse: functional.embedding(sparse[:, 0].long(), m.table), 20),
        (lambda m, sparse: m.table.sum() * sparse, 20),
    ],
)
def test_matrices_of_products_are_laid_out_anew_by_each_thread(read, rows):
    net = Reading(read).eval()
    width = SPEC.sparse_width
    one, three = (estimate_memory(SPEC, net, workers=3, batch_size=4, worker_threads=n) for n in (1, 3))
    assert one.dense_net_bytes > 4 * 1000 * width, "all that it has is there, once"
    assert three.worker_bytes == 3 * one.worker_bytes
    plain = estimate_memory(SPEC, Doubling(), workers=3, batch_size=4)
    kept = [KEPT_ACTIVATIONS * activation_bytes(SPEC, each, 4) for each in (net, Doubling())]
    packed = one.worker_bytes - plain.worker_bytes - kept[0] + kept[1]
    assert packed == pytest.approx(PACKED_WEIGHTS * 4 * rows * width, abs=2)


@pytest.mark.parametrize(
    ("items", "kept_widths", "given_back_widths"),
    [
        (100_000, 6, 0),  # the second cat's result takes 26 MB
        (200_000, 2, 4),  # 51 MB
        (300_000, 0, 6),  # the first cat's takes 38 MB
    ],
)
def test_the_largest_activations_are_given_back(items, kept_widths, given_back_widths):
    width_bytes = 4 * items * SPEC.sparse_width
    estimate = estimate_memory(SPEC, Doubling(), batch_size=items)
    assert estimate.batch_bytes == pytest.approx(given_back_widths * width_bytes, rel=1e-6)
    kept = estimate.worker_bytes - THREAD_BYTES - buffer_bytes(SPEC, items) - KEPT_QUERIES * estimate.query_bytes
    scores = 3 * 4 * items
    assert KEPT_ACTIVATIONS * kept_widths * width_bytes <= kept + 1
    assert kept <= KEPT_ACTIVATIONS * (kept_widths * width_bytes + scores) + 1


def test_a_result_lives_until_it_was_read_last_whatever_python_holds():
    class Held(nn.Module):
        def forward(self, dense, sparse, lengths):  # noqa: ARG002
            first = sparse + 1
            second = first[:, 1:] * 2  # reads a view of the first, for the last time
            third = second + 1
            return third.sum(1)

    width = SPEC.sparse_width
    assert activation_bytes(SPEC, Held(), 100) == 100 * 4 * (width + (width - 1))


def test_bounded_table_memory_bounds_the_tables():
    assert estimate_memory(SPEC, Doubling(), table_memory_bytes=8 << 20).table_bytes == 8 << 20
    assert estimate_memory(SPEC, Doubling(), table_memory_bytes=8 << 30).table_bytes < 64 << 20


def test_threads_that_read_through_tiers_have_rows_of_a_batch_beside_them():
    """Those of the batch before too, in the warm-up, as long as what was freed is kept."""
    whole = estimate_memory(SPEC, Doubling(), batch_size=4096, worker_threads=3).worker_bytes
    bound = 8 << 20
    tiered = estimate_memory(SPEC, Doubling(), 1, 4096, bound, worker_threads=3).worker_bytes
    planned = [EmbeddingHierarchy.planned_scratch_bytes(SPEC, items, bound) for items in (4096, 1024)]
    assert tiered - whole == pytest.approx(3 * sum(planned), abs=3)


def test_tiers_have_work_in_the_background_beside_them():
    """On top of the total, which is of a server that has nothing to do."""
    whole, tiered = (estimate_memory(SPEC, Doubling(), 1, 4096, bound) for bound in (None, 8 << 20))
    assert (whole.background_bytes, tiered.background_bytes) == (
        0,
        EmbeddingHierarchy.planned_background_bytes(SPEC, 4096, 8 << 20),
    )
    assert 0 < tiered.background_bytes <= MOST_HELD_BYTES


def test_narrower_rows_take_less():
    narrow = estimate_memory(SPEC, Doubling(), row_format=RowFormat.INT8)
    rows = 1_000_000 * (8 + 4) + 64
    assert narrow.table_bytes == -(-rows // (2 << 20)) * (2 << 20)
    assert narrow.model_bytes < estimate_memory(SPEC, Doubling()).model_bytes


def test_a_catalog_model_of_production_size_is_estimated_without_its_tables():
    spec = catalog.entry("din", "production")
    estimate = estimate_memory(spec, build_dense_net(spec), workers=2)
    assert spec.table_bytes < estimate.table_bytes < 1.001 * spec.table_bytes
    assert estimate.worker_bytes > 256 * 4 * spec.sparse_width, "attention makes results larger than its input"


def test_training_holds_rows_accumulators_gradients_and_moments():
    rows = 4 * (1_000_000 * (8 + 1) + 3 * (4 + 1))
    piece = 4 * 1_000_000 * 8
    always = TRAINING_BYTES + (TRITON_BYTES if find_spec("triton") else 0) + rows + piece + 4 * 32
    activations = activation_bytes(SPEC, Doubling(), 1)
    assert training_bytes(SPEC, Doubling(), step_items=10, score_items=100) == always + 100 * activations
    assert training_bytes(SPEC, Doubling(), step_items=100, score_items=10) == always + 250 * activations
    assert training_bytes(SPEC, Doubling(), 100, 10, held_out_rows=7) == always + 250 * activations + 7 * 66


def test_making_holds_pieces_of_a_table_however_large_it_is():
    assert making_bytes(SPEC, Doubling()) == MAKING_BYTES + 2 * 32_000_000 + 4 * 32
    spec = catalog.entry("din", "production")
    assert making_bytes(spec, build_dense_net(spec)) < 256 << 20 < spec.table_bytes


def test_what_does_not_fit_is_refused_with_both_figures(monkeypatch):
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda: 1_000_000)
    check_memory("this", 1_000_000, "do that")
    with pytest.raises(NotEnoughMemory) as refused:
        check_memory("this", 1_000_001, "do that")
    assert str(refused.value) == "this needs 1,000,001 bytes of memory and 1,000,000 are available: do that"
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda: None)
    check_memory("this", 10**18, "do that")


def test_an_estimate_does_without_torchs_compiler():
    """Which takes longer to import than all the rest together."""
    code = """
import sys
from hebe.models.architectures.build import build_dense_net
from hebe.models import catalog
from hebe.models.repository.memory_estimate import estimate_memory
spec = catalog.entry("ncf")
estimate_memory(spec, build_dense_net(spec))
assert "torch" in sys.modules
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
