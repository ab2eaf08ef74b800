"""Checks of what options are given: what passes, and how wrong usage is told.

Options that contradict each other are refused before anything is loaded.
"""

from pathlib import Path

import pytest
import typer

from hebe.cli.terminal.options import (
    check_at_least,
    check_percentile,
    check_rate_or_search,
    check_written,
    load_options,
    naming_options,
    parse_bytes,
    parse_form,
    parse_row_format,
)
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.workload import forms
from hebe.workload.query_sizes import FixedSizes
from hebe.workload.text_errors import RecordingError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("64K", 64 << 10),
        ("64k", 64 << 10),
        (" 800M ", 800 << 20),
        ("12GiB", 12 << 30),
        ("12gb", 12 << 30),
        ("1.5T", 3 << 39),
        ("1B", 1),
    ],
)
def test_bytes_are_written_with_powers_of_1024(text, size_bytes):
    assert parse_bytes(text, "--memory") == size_bytes


@pytest.mark.parametrize("text", ["", "much", "K", "1X", "12 34", "1KM", "inf", "1e400G", "nan"])
def test_what_is_no_number_of_bytes_is_told_with_the_forms(text):
    with pytest.raises(typer.BadParameter, match="write bytes as 4096, 64K, 800M or 12G") as told:
        parse_bytes(text, "--memory")
    assert told.value.param_hint == "--memory"


@pytest.mark.parametrize("text", ["0", "-1G", "0.5"])
def test_less_than_a_byte_is_refused(text):
    with pytest.raises(typer.BadParameter, match="must be at least 1 byte"):
        parse_bytes(text, "--memory")


def test_a_row_format_is_one_of_those_that_there_are():
    assert parse_row_format("fp16") is RowFormat("fp16")
    with pytest.raises(typer.BadParameter, match="'FP16': choose fp32, fp16, int8"):
        parse_row_format("FP16")


def test_either_a_rate_or_a_search_is_asked_for():
    check_rate_or_search(5.0, find_qps=False)
    check_rate_or_search(None, find_qps=True)
    for rate, find_qps in ((None, False), (5.0, True), (0.0, True)):
        with pytest.raises(typer.BadParameter, match="either --rate QPS or --find-qps"):
            check_rate_or_search(rate, find_qps)


@pytest.mark.parametrize(
    ("value", "limits", "says"),
    [
        (0.0, {"least": 0.0}, None),
        (-0.1, {"least": 0.0}, "-0.1: must be at least 0"),
        (float("inf"), {"least": 0.0}, "inf: must be at least 0"),
        (float("nan"), {"least": 0.0}, "nan: must be at least 0"),
        (0.1, {"more_than": 0.0}, None),
        (0.0, {"more_than": 0.0}, "0: must be a finite number of more than 0"),
        (float("inf"), {"more_than": 0.0}, "inf: must be a finite number of more than 0"),
        (float("nan"), {"more_than": 0.0}, "nan: must be a finite number of more than 0"),
    ],
)
def test_numbers_have_limits_and_are_finite(value, limits, says):
    if says is None:
        check_at_least("--x", value, **limits)
        return
    with pytest.raises(typer.BadParameter) as told:
        check_at_least("--x", value, **limits)
    assert (told.value.message, told.value.param_hint) == (says, "--x")


@pytest.mark.parametrize("percentile", [0.0, 100.0, -1.0, float("nan")])
def test_a_percentile_lies_between_0_and_100(percentile):
    check_percentile(99.9)
    with pytest.raises(typer.BadParameter, match="must lie between 0 and 100, both excluded"):
        check_percentile(percentile)


def test_a_file_is_written_once_and_not_where_another_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_written({"--output": Path("a.json"), "--plot": Path("a.svg")}, [Path("b.json")])
    with pytest.raises(typer.BadParameter, match=r"b\.json is read: write to another file"):
        check_written({"--output": tmp_path / "b.json"}, [Path("b.json")])
    with pytest.raises(typer.BadParameter, match="is written by --output too") as told:
        check_written({"--output": Path("a.json"), "--plot": Path("x/../a.json")}, [])
    assert told.value.param_hint == "--plot"


def test_a_form_that_there_is_not_is_wrong_usage_and_a_file_that_is_not_is_a_fault():
    assert parse_form("--sizes", forms.query_sizes, "fixed:7") == FixedSizes(7)
    with pytest.raises(typer.BadParameter, match="query sizes 'huge': must be one of") as told:
        parse_form("--sizes", forms.query_sizes, "huge")
    assert told.value.param_hint == "--sizes"
    with pytest.raises(RecordingError, match="cannot be read"):
        parse_form("--arrivals", forms.arrivals, "trace:nowhere.csv")


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("max_rows is 0: must be at least 1", "--max-rows is 0: must be at least 1"),
        ("max_rows is 9: more than max_rows_s, max_rows", "--max-rows is 9: more than max_rows_s, --max-rows"),
        ("wait_s is 3.0: leave --max-rows out", "--wait is 3.0: leave --max-rows out"),
        ("keys is 0", "--keys is 0"),
        ("keys 'x': no form of keys", "--keys 'x': no form of keys"),
        ("file /tmp/max_rows.pem of host max_rows.org: wait", "file /tmp/max_rows.pem of host max_rows.org: wait"),
        ("keys repeat, path is none", "keys repeat, path is none"),
    ],
)
def test_fields_are_called_as_the_options_are(message, named):
    app = typer.Typer()

    @app.command()
    def command(path: Path, max_rows: int = 1, keys: int = 1, wait: float = 1.0) -> None: ...

    context = typer.Context(typer.main.get_command(app))
    assert naming_options(message, context, {"wait_s": "--wait"}) == named


def test_a_bound_of_table_memory_and_tiers_contradict_each_other(tmp_path):
    file = tmp_path / "tiers.toml"
    bound = "eager", "1G", tmp_path / "stores", file, "fp32"
    file.write_text('[volatile_db]\ntype = "parallel_hash_map"\n')
    with pytest.raises(typer.BadParameter, match="has tiers, through which all tables are read: leave --table-memory"):
        load_options(*bound)
    assert load_options("eager", None, None, file, "fp32").hierarchy.is_tiered
    file.write_text(f'[update_source]\ntype = "log_directory"\naddress = "{tmp_path}"\n')
    assert load_options(*bound).table_memory_bytes == 1 << 30, "updates alone are no tiers"


def test_a_bound_of_table_memory_needs_a_place_for_the_rest(tmp_path):
    for bound, place in (("1G", None), (None, tmp_path)):
        with pytest.raises(typer.BadParameter, match="belong together"):
            load_options("eager", bound, place, None, "fp32")
