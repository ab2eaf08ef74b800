"""How models are shown, without a command."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from hebe.cli.model.tables import (
    byte_progress,
    features_table,
    list_table,
    memory_table,
    print_stored,
    size_text,
    sla_text,
    spec_table,
    summary,
)
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.models.repository.memory_estimate import MemoryEstimate
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget

SPEC = ModelSpec(
    "ranker",
    "dlrm",
    (EmbeddingTableSpec("users", 2_000_000, 4), EmbeddingTableSpec("ads", 500, 4)),
    (
        FeatureSpec("user", "users", 1, Pooling.SUM),
        *(FeatureSpec(f"ad{number}", "ads", 3, Pooling.MEAN) for number in range(5)),
    ),
    towers={"top": (24, 1)},
    sla=SlaTarget(20.0, 99.0),
    source="Hera (Choi et al., HPCA 2023), table II",
)
ESTIMATE = MemoryEstimate(
    process_bytes=400 << 20, table_bytes=40 << 20, dense_net_bytes=1 << 20, worker_bytes=2 << 20, query_bytes=1 << 10,
    batch_bytes=0, background_bytes=0, workers=3, worker_threads=1, batch_size=256, row_format=RowFormat.FP32,
)  # fmt: skip


def shown(table, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1.5 * (1 << 20), "1.5 MiB"),
        (123.4 * (1 << 30), "123 GiB"),
        (5000 * (1 << 40), "5000 TiB"),
    ],
)
def test_sizes(size_bytes, text):
    assert size_text(size_bytes) == text


def test_a_list_names_each_source_once_without_where_in_it():
    other = replace(SPEC, name="other", source="Hercules (Ke et al., HPCA 2022), table I")
    lines = shown(list_table([SPEC, replace(SPEC, name="second"), other]))
    first = lines.index("Hera (Choi et al., HPCA 2023)")
    assert [line.split()[0] for line in lines[first + 1 : first + 3]] == ["ranker", "second"]
    assert lines[first + 3] == "Hercules (Ke et al., HPCA 2022)"
    assert lines[first + 1].split()[1:] == ["2", "2", "M", "16", "30.5", "MiB", "p99", "20", "ms"]


def test_a_model_is_told_without_what_it_has_not():
    lines = {line.split("  ")[0]: line for line in shown(spec_table(SPEC))}
    assert lines["dense input"].endswith("none")
    assert lines["towers"].endswith("top 24-1")
    assert lines["SLA target"].endswith(sla_text(SPEC))
    assert "settings" not in lines
    assert "notes" not in lines


def test_features_that_are_alike_share_a_row():
    _, user, ads = shown(features_table(SPEC))
    assert user.split() == ["user", "1", "sum", "4", "2,000,000", "users"]
    assert ads.split() == ["ad0,", "ad1", "...", "ad4", "(5)", "3", "mean", "4", "500", "ads"]


def test_memory_adds_up_and_says_whether_it_fits():
    lines = shown(memory_table(SPEC, ESTIMATE, 1 << 30))
    assert any("3 workers" in line and "6 MiB" in line and "256 items" in line for line in lines)
    (total,) = [line for line in lines if line.startswith("in all")]
    assert "447 MiB" in total
    assert total.endswith("fits: 1 GiB are available here")
    assert not any("each batch" in line or "background" in line for line in lines)
    (total,) = [line for line in shown(memory_table(SPEC, ESTIMATE, 1 << 20)) if line.startswith("in all")]
    assert "does not fit: 1 MiB are available here; shrink it with --scale, or bound it with --table-memory" in total
    (total,) = [line for line in shown(memory_table(SPEC, ESTIMATE, None)) if line.startswith("in all")]
    assert total.endswith("447 MiB")


def test_memory_tells_of_threads_of_large_batches_and_of_tables_held_in_part():
    some = replace(ESTIMATE, workers=1, worker_threads=2, batch_bytes=5 << 20, table_bytes=10 << 20)
    some = replace(some, background_bytes=64 << 20)
    lines = shown(memory_table(SPEC, some, None))
    assert any(line.startswith("worker ") and line.endswith("256 items, 2 threads each") for line in lines)
    assert any(line.startswith("each batch") and "5 MiB" in line for line in lines)
    assert any(line.startswith("background") and "64 MiB" in line for line in lines)
    assert any("a part of the rows" in line for line in lines)


def test_a_summary_is_of_all_tables():
    told = summary(SPEC)
    assert (told["tables"], told["rows"], told["lookups_per_item"]) == (2, 2_000_500, 16)
    assert told["table_bytes"] == 2_000_500 * 4 * 4
    assert (told["sla_ms"], told["percentile"]) == (20.0, 99.0)


def test_progress_over_bytes_takes_any_numbers():
    with byte_progress("writing") as tell:
        tell(0, 10 << 20)
        tell((10 << 20) - 1, 10 << 20)
        tell(10 << 20, 10 << 20)


def test_what_to_type_next_can_be_typed_where_paths_have_spaces(capsys):
    stored = SimpleNamespace(name="ranker", version=1, file_bytes={"dense": 5}, path=Path("/my models/ranker/1"))
    print_stored(stored, Path("/my models"), as_json=False)
    assert "serve it: hebe serve '/my models'" in capsys.readouterr().out
