from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from hebe.embeddings.memory.table_memory import RowFormat
from hebe.models import hot_rows
from hebe.models.hot_rows import choose_hot_rows, counted_frequencies, read_key_trace
from hebe.models.repository.repository import RepositoryError
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, OutOfRange, Pooling

SPEC = ModelSpec(
    "m",
    "dlrm",
    (EmbeddingTableSpec("narrow", 6, 1), EmbeddingTableSpec("wide", 4, 4)),
    (FeatureSpec("f", "narrow", 2, Pooling.SUM), FeatureSpec("g", "wide", 1, Pooling.SUM)),
)
EVEN = {"narrow": np.ones(6), "wide": np.ones(4)}


def test_rows_are_ranked_by_lookups_a_byte_over_all_tables():
    frequencies = {"narrow": np.array([1.0, 9, 2, 0, 0, 3]), "wide": np.array([8.0, 40, 1, 0])}
    chosen = choose_hot_rows(SPEC, frequencies, capacity_bytes=2 * 4 + 16)
    # A byte: wide 1 has 2.5, narrow 1 has 2.25, narrow 5 has 0.75; wide 0, of 0.5, has no room.
    assert {name: own.tolist() for name, own in chosen.rows.items()} == {"narrow": [1, 5], "wide": [1]}
    assert chosen.rows["wide"].dtype == np.int64
    assert (chosen.size_bytes, chosen.count) == (24, 3)
    assert chosen.expected_coverage == pytest.approx(52 / 64)


def test_rows_after_the_first_that_does_not_fit_are_not_taken_instead_of_it():
    frequencies = {"narrow": np.array([2.0, 1, 0, 0, 0, 0]), "wide": np.array([40.0, 30, 0, 0])}
    chosen = choose_hot_rows(SPEC, frequencies, capacity_bytes=16 + 15)
    assert {name: own.tolist() for name, own in chosen.rows.items()} == {"wide": [0]}


def test_equals_go_by_table_and_key():
    assert choose_hot_rows(SPEC, {"narrow": np.ones(6), "wide": 4 * np.ones(4)}, 7 * 4).rows["narrow"].tolist() == [
        *range(6)
    ]
    chosen = choose_hot_rows(SPEC, EVEN, capacity_bytes=3 * 4)
    assert {name: own.tolist() for name, own in chosen.rows.items()} == {"narrow": [0, 1, 2]}


@pytest.mark.parametrize(("capacity", "count", "covered"), [(0, 0, 0.0), (3, 0, 0.0), (10**9, 10, 1.0), (88, 10, 1.0)])
def test_the_ends_hold_nothing_and_everything(capacity, count, covered):
    frequencies = {"narrow": np.array([1.0, 0, 0, 0, 0, 0]), "wide": np.array([1.0, 2, 0, 0])}
    chosen = choose_hot_rows(SPEC, frequencies, capacity)
    assert (chosen.count, chosen.expected_coverage) == (count, pytest.approx(covered))


def test_lookups_so_few_that_those_of_a_byte_are_0_are_equals():
    frequencies = {"narrow": np.full(6, 5e-324), "wide": np.full(4, 5e-324)}
    chosen = choose_hot_rows(SPEC, frequencies, capacity_bytes=3 * 4)
    assert {name: own.tolist() for name, own in chosen.rows.items()} == {"narrow": [0, 1, 2]}


def test_narrower_rows_are_more_rows():
    frequencies = {"narrow": np.zeros(6), "wide": np.array([3.0, 2, 1, 4])}
    assert choose_hot_rows(SPEC, frequencies, 16).count == 1
    chosen = choose_hot_rows(SPEC, frequencies, 16, RowFormat.FP16)
    assert chosen.rows["wide"].tolist() == [3, 0]
    assert chosen.size_bytes == 16


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=4),
    st.integers(0, 3000),
    st.integers(0, 2**32),
)
def test_no_row_left_out_is_worth_more_than_one_taken_and_little_room_is_left(shapes, capacity, seed):
    rng = np.random.default_rng(seed)
    tables = tuple(EmbeddingTableSpec(f"t{i}", rows, dim) for i, (rows, dim) in enumerate(shapes))
    spec = ModelSpec("m", "dlrm", tables, tuple(FeatureSpec(f"f{t.name}", t.name, 1, Pooling.SUM) for t in tables))
    frequencies = {table.name: rng.integers(0, 4, table.rows).astype(np.float64) for table in tables}
    frequencies["t0"][0] += rng.choice([1.0, 1e-300, 1e300])
    chosen = choose_hot_rows(spec, frequencies, capacity)
    sizes = sum(len(own) * 4 * spec.table(name).dim for name, own in chosen.rows.items())
    assert chosen.size_bytes == sizes <= capacity
    covered = sum(frequencies[name][own].sum() for name, own in chosen.rows.items())
    assert chosen.expected_coverage == pytest.approx(covered / sum(own.sum() for own in frequencies.values()))
    out, held = {}, {}
    for table in tables:
        taken = chosen.rows.get(table.name, np.empty(0, np.int64))
        assert len(np.unique(taken)) == len(taken)
        assert (np.diff(frequencies[table.name][taken]) <= 0).all(), "the most looked up first"
        left = np.setdiff1d(np.arange(table.rows), taken)
        out[table.name] = frequencies[table.name][left] / (4 * table.dim)
        held[table.name] = frequencies[table.name][taken] / (4 * table.dim)
    best_out = max((own.max() for own in out.values() if own.size), default=0.0)
    assert all((own >= best_out * (1 - 1e-12)).all() for own in held.values())
    if any(own.size for own in out.values()):
        assert capacity - sizes < max(4 * table.dim for table in tables)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wide": np.ones(5)}, r"table wide have shape \[5\]: must be \[4\]"),
        ({"wide": np.ones((4, 1))}, r"shape \[4, 1\]"),
        ({"wide": np.array([1.0, np.nan, 1, 1])}, "table wide must be finite"),
        ({"narrow": np.array([1.0, -1, 1, 1, 1, 1])}, "table narrow must be finite numbers of at least 0"),
        ({"other": np.ones(4)}, "has no table other"),
        ({"narrow": np.zeros(6), "wide": np.zeros(4)}, "all frequencies are 0"),
    ],
)
def test_frequencies_that_are_none_are_named(change, said):
    with pytest.raises(ValueError, match=said):
        choose_hot_rows(SPEC, EVEN | change, 100)


def test_missing_tables_and_negative_capacities_are_named():
    with pytest.raises(ValueError, match="of table wide are missing"):
        choose_hot_rows(SPEC, {"narrow": np.ones(6)}, 100)
    with pytest.raises(ValueError, match="capacity of -1 bytes"):
        choose_hot_rows(SPEC, EVEN, -1)


def test_a_trace_is_counted():
    counts = counted_frequencies(SPEC, {"narrow": np.array([[1, 5], [1, -1], [0, 1]])})
    assert counts["narrow"].tolist() == [1, 3, 0, 0, 0, 1]
    assert counts["wide"].tolist() == [0, 0, 0, 0]


def test_keys_of_a_feature_are_counted_in_its_table_as_it_reads_them():
    features = (
        FeatureSpec("f", "narrow", 2, Pooling.SUM, OutOfRange.WRAP),
        FeatureSpec("h", "narrow", 1, Pooling.SUM),
        FeatureSpec("g", "wide", 1, Pooling.SUM),
    )
    spec = replace(SPEC, features=features)
    counts = counted_frequencies(
        spec, {"f": np.array([[1, 7], [-1, 13]]), "h": np.array([0, -1]), "wide": np.array([2])}
    )
    assert counts["narrow"].tolist() == [1, 3, 0, 0, 0, 1]
    assert counts["wide"].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("rule", "row"),
    [
        (OutOfRange.REFUSE, None),
        (OutOfRange.CLAMP_HIGH, None),
        (OutOfRange.WRAP, 5),
        (OutOfRange.CLAMP, 0),
        (OutOfRange.CLAMP_LOW, 0),
        (OutOfRange.UNKNOWN, None),
    ],
)
def test_minus_one_is_no_key_where_a_query_with_it_would_be_refused(rule, row):
    spec = replace(SPEC, features=(FeatureSpec("f", "narrow", 1, Pooling.SUM, rule), *SPEC.features[1:]))
    counts = counted_frequencies(spec, {"f": np.array([3, -1])})["narrow"]
    assert np.flatnonzero(counts).tolist() == sorted({3} | ({row} - {None}))


def test_new_keys_are_never_hot():
    spec = replace(SPEC, features=(FeatureSpec("f", "narrow", 1, Pooling.SUM, OutOfRange.UNKNOWN), *SPEC.features[1:]))
    assert counted_frequencies(spec, {"f": np.array([3, 6, 2**63 - 1])})["narrow"].tolist() == [0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ({"other": np.array([1])}, "no table or feature other; its tables: narrow, wide"),
        ({"g": np.array([4])}, r"keys of g lie in \[4, 4\]: table wide has 4 rows"),
        ({"narrow": np.array([6])}, r"narrow lie in \[6, 6\]: table narrow has 6 rows"),
        ({"narrow": np.array([-2, 3])}, r"lie in \[-2, 3\]"),
        ({"narrow": np.array([1.0])}, "are float64: must be int64"),
        ({"narrow": np.array([-1])}, "has no key"),
        ({}, "has no key"),
    ],
)
def test_traces_that_are_none_are_named(trace, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        counted_frequencies(SPEC, trace)
    save_file(trace, tmp_path / "trace.safetensors")
    with pytest.raises(RepositoryError, match=r"trace\.safetensors"):
        read_key_trace(tmp_path / "trace.safetensors", SPEC)


def test_a_trace_is_read_from_a_file(tmp_path):
    path = tmp_path / "keys.safetensors"
    trace = {"narrow": np.array([1, 1, 4]), "wide": np.array([3])}
    save_file(trace, path)
    read, counted = read_key_trace(path, SPEC), counted_frequencies(SPEC, trace)
    assert {name: own.tolist() for name, own in read.items()} == {name: own.tolist() for name, own in counted.items()}


def test_files_that_are_no_trace_are_named(tmp_path, monkeypatch):
    path = tmp_path / "keys.safetensors"
    with pytest.raises(RepositoryError, match=r"keys.safetensors: cannot be read: No such file"):
        read_key_trace(path, SPEC)
    for content in (b"", b"PK\x03\x04 this is no safetensors file", (2**40).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(RepositoryError, match=r"keys.safetensors: is no key trace"):
            read_key_trace(path, SPEC)
    save_torch_file({"narrow": torch.zeros(3, dtype=torch.bfloat16)}, path)
    with pytest.raises(RepositoryError, match=r"keys.safetensors: keys of narrow are BF16: must be I64"):
        read_key_trace(path, SPEC)
    with pytest.raises(RepositoryError, match="cannot be read"):
        read_key_trace(tmp_path, SPEC)
    monkeypatch.setattr(hot_rows, "MOST_TRACE_BYTES", 10)
    with pytest.raises(RepositoryError, match="a trace has at most 10"):
        read_key_trace(path, SPEC)
