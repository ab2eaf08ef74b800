from pathlib import Path

import numpy as np
import pytest

from hebe.simulation.measured.service_samples import read_samples, read_service_tables
from hebe.simulation.measured.service_table import ServiceTableError
from tests.places import SHARED_DATA

RECORDED = SHARED_DATA / "kairos"
ROW = "ncf,gpu,10,1,2,3"


def write(path: Path, *rows: str, header: str = "model,server_type,items,ms_0,ms_1,ms_2") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_files_are_added_and_the_slowest_sample_left_out(tmp_path):
    run = write(tmp_path / "run.csv", "ncf,gpu,10,100,1,2", "ncf,gpu,20,3,4,200")
    loading = write(tmp_path / "load.csv", "ncf,gpu,20,1,1,1", "ncf,gpu,10,1,1,1")
    table = read_service_tables([run, loading])["ncf"]
    np.testing.assert_allclose(table.quantiles_s[0, [10, 20]], [[2e-3, 3e-3], [4e-3, 5e-3]])


def test_server_types_keep_the_order_of_the_first_file_and_models_are_sorted(tmp_path):
    path = write(tmp_path / "t.csv", "wnd,gpu,10,1,2,3", "ncf,gpu,10,1,2,3", "ncf,cpu,10,1,2,3")
    samples = read_samples([path])
    assert samples.models == ("ncf", "wnd")
    assert samples.table("ncf").types == ("gpu", "cpu")


def test_kairos_words_for_the_columns_are_known(tmp_path):
    ours = write(tmp_path / "ours.csv", ROW)
    theirs = write(tmp_path / "theirs.csv", ROW, header="model,instance,batch,ms_0,ms_1,ms_2")
    tables = [read_service_tables([path])["ncf"] for path in (ours, theirs)]
    np.testing.assert_array_equal(tables[0].quantiles_s, tables[1].quantiles_s)
    with pytest.raises(ServiceTableError, match=r"theirs\.csv: line 2: batch is 'ten'"):
        read_samples([write(theirs, "ncf,gpu,ten,1,2,3", header="model,instance,batch,ms_0,ms_1,ms_2")])


def test_files_of_a_spreadsheet_are_read_as_others(tmp_path):
    plain = write(tmp_path / "plain.csv", ROW, "ncf,gpu,20,4,5,6")
    spoilt = tmp_path / "spoilt.csv"
    header, first, second = plain.read_text().splitlines()
    spoilt.write_bytes(("\ufeff" + "\r\n".join([header, first, "", second, ",,,", "", ""])).encode())
    tables = [read_service_tables([path])["ncf"] for path in (plain, spoilt)]
    np.testing.assert_array_equal(tables[0].quantiles_s, tables[1].quantiles_s)


def test_spaces_around_the_columns_names_are_no_part_of_them(tmp_path):
    spaced = write(tmp_path / "t.csv", ROW, header=" model, server_type, items, ms_0,ms_1 , ms_2")
    table = read_service_tables([spaced])["ncf"]
    np.testing.assert_array_equal(
        table.quantiles_s, read_service_tables([write(tmp_path / "u.csv", ROW)])["ncf"].quantiles_s
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("ncf,gpu,1.5,1,2,3", "items is '1.5': must be a whole number of items, at least 1"),
        ("ncf,gpu,0,1,2,3", "items is '0'"),
        ("ncf,gpu,1234567890,1,2,3", "items is '1234567890'"),
        ("ncf,,7,1,2,3", "server_type is ''"),
        (" ncf,gpu,7,1,2,3", "model is ' ncf': must be a name without spaces around it"),
        ("ncf,gpu,7,1,oops,3", "ms_1 is 'oops'"),
        ("ncf,gpu,7,1,nan,3", "ms_1 is 'nan'"),
        ("ncf,gpu,7,1,2,-3", "ms_2 is '-3': must be a number of milliseconds"),
        ("ncf,gpu,7,1,1e16,3", "ms_1 is '1e16': must be 0, or lie between 1e-15 and 1e+15: check the unit"),
        ("ncf,gpu,7,1,1e-16,3", "ms_1 is '1e-16': must be 0, or lie between 1e-15 and 1e+15: check the unit"),
        ("ncf,gpu,7,1,2", "has 5 fields: must have 6, as the header"),
        (ROW, "ncf on gpu at 10 items is given twice, before in line 2"),
    ],
)
@pytest.mark.parametrize("empty_lines", [0, 2])
def test_a_bad_row_is_named_by_line_and_column(tmp_path, row, message, empty_lines):
    path = write(tmp_path / "t.csv", ROW, *[""] * empty_lines, row)
    with pytest.raises(ServiceTableError) as fault:
        read_samples([path])
    assert f"t.csv: line {3 + empty_lines}: {message}" in str(fault.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "columns must be model, server_type, items, then at least two of samples: ms_0, ms_1"),
        ("model,items,ms_0", "columns must be model"),
        ("model;server_type;items;ms_0;ms_1", "has semicolons: must have commas between the columns"),
        ("model\tserver_type\titems\tms_0\tms_1", "has tabs: must have commas between the columns"),
        ("model,server_type,items,ms_0", "columns must be model"),
        ("model,server_type,batch,ms_0,ms_1", "columns must be model"),
        ("model,server_type,items,ms_0,ms_1,power", "unknown field 'power'"),
        ("model,server_type,items,ms_0,ms_1,ms_0", "column 'ms_0' is there twice"),
    ],
)
def test_a_bad_header_is_named(tmp_path, header, message):
    with pytest.raises(ServiceTableError) as fault:
        read_samples([write(tmp_path / "t.csv", header=header)])
    assert f"t.csv: line 1: {message}" in str(fault.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ServiceTableError, match=r"none\.csv: cannot be read: No such file"):
        read_samples([tmp_path / "none.csv"])
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ServiceTableError, match=r"b\.csv: line 1: byte 0xff is not UTF-8"):
        read_samples([tmp_path / "b.csv"])
    with pytest.raises(ServiceTableError, match=r"q\.csv: cannot be read: "):
        read_samples([write(tmp_path / "q.csv", 'ncf,"gpu,10,1,2,3')])


@pytest.mark.parametrize(
    ("run", "load", "message"),
    [
        ([ROW, "ncf,gpu,20,1,2,3"], [ROW], "load.csv: has no ncf on gpu at 20 items, which RUN has in line 3"),
        (["ncf,gpu,20,1,2,3"], ["ncf,gpu,20,1,2,3", ROW], "run.csv: has no ncf on gpu at 10 items, which LOAD has in"),
    ],
)
def test_a_row_that_one_of_the_files_lacks_is_named(tmp_path, run, load, message):
    paths = [write(tmp_path / "run.csv", *run), write(tmp_path / "load.csv", *load)]
    with pytest.raises(ServiceTableError) as fault:
        read_service_tables(paths)
    assert message.replace("RUN", str(paths[0])).replace("LOAD", str(paths[1])) in str(fault.value)


def test_files_with_unlike_counts_of_samples_do_not_add_up(tmp_path):
    three = write(tmp_path / "a.csv", ROW)
    two = write(tmp_path / "b.csv", "ncf,gpu,10,1,2", header="model,server_type,items,ms_0,ms_1")
    with pytest.raises(ServiceTableError, match=r"b\.csv: has 2 samples in a row, and .*a\.csv 3"):
        read_service_tables([three, two])


def test_rows_of_models_that_are_not_asked_for_may_be_missing(tmp_path):
    samples = read_samples([write(tmp_path / "run.csv", ROW, "wnd,gpu,10,1,2,3"), write(tmp_path / "load.csv", ROW)])
    assert samples.table("ncf").types == ("gpu",)
    with pytest.raises(ServiceTableError, match=r"load\.csv: has no wnd on gpu at 10 items"):
        samples.table("wnd")


def test_server_types_are_measured_equally_far(tmp_path):
    path = write(tmp_path / "t.csv", "ncf,gpu,20,1,2,3", ROW, "ncf,cpu,10,1,2,3")
    with pytest.raises(
        ServiceTableError,
        match=r"t\.csv: line 4: ncf on cpu was measured up to 10 items, on gpu up to 20 \(line 2\)",
    ):
        read_service_tables([path])


def test_a_zero_in_one_file_may_be_more_in_another(tmp_path):
    zero = write(tmp_path / "a.csv", "ncf,gpu,70,0,0,0")
    with pytest.raises(ServiceTableError, match=r"a\.csv: line 2: ms_0 is 0: samples must be positive milliseconds"):
        read_service_tables([zero])
    more = write(tmp_path / "b.csv", "ncf,gpu,70,9,1,1")
    assert read_service_tables([zero, more])["ncf"].mean_s[0, -1] == pytest.approx(1e-3)
    with pytest.raises(ServiceTableError, match=r"a\.csv: line 2: ms_1 is 0 in all files together"):
        read_service_tables([zero, write(tmp_path / "b.csv", "ncf,gpu,70,9,0,1")])


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded data is not part of the product")
def test_the_recorded_measurements_are_read_whole():
    tables = read_service_tables([RECORDED / "exec_ms.csv", RECORDED / "load_ms.csv"])
    assert set(tables) == {"ncf", "rm2", "wnd", "mtwnd", "dien"}
    for table in tables.values():
        assert table.quantiles_s.shape == (4, 1001, 99)
