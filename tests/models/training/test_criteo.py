"""The reader of Criteo-format files: forms, missing fields, splits by row, and what it says of broken files."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from hebe.models.training.criteo import (
    CATEGORICAL_COLUMNS,
    INTEGER_COLUMNS,
    MAX_FIELD_BYTES,
    MAX_LINE_BYTES,
    CriteoFile,
    CriteoFormatError,
)

ROWS = [
    ["1", "5", "", "-1", *["7"] * 10, "68fd1e64", "", *["0b153874"] * 24],
    ["0", *["0"] * 13, *["a"] * 26],
    ["0", *["123456789"] * 13, *["ffffffff"] * 26],
]


def tsv(path: Path, rows: list[list[str]] = ROWS, end: str = "\n") -> Path:
    path.write_bytes("".join("\t".join(row) + end for row in rows).encode())
    return path


def read(path: Path, batch_rows: int = 100, **options: bool):
    return list(CriteoFile(path, **options).batches(batch_rows))


def check_rows(batch) -> None:
    assert batch.labels.dtype == np.float32
    assert batch.labels.tolist() == [1.0, 0.0, 0.0]
    assert batch.integers.shape == (3, 13)
    assert batch.integers[0, 0] == 5
    assert np.isnan(batch.integers[0, 1])
    assert batch.integers[0, 2] == -1
    assert (batch.integers[2] == 123456789).all()
    assert batch.categories.shape == (3, 26)
    assert batch.categories[0, :3].tolist() == [b"68fd1e64", b"", b"0b153874"]
    assert batch.categories[1, 25] == b"a"


def test_tab_separated_without_header(tmp_path):
    file = CriteoFile(tsv(tmp_path / "rows.tsv"))
    assert not file.has_header
    assert file.count_rows() == 3
    (batch,) = file.batches(10)
    check_rows(batch)
    assert len(batch) == 3


@pytest.mark.parametrize("url", ["100", "http://" + "a" * MAX_FIELD_BYTES])
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_header_gives_the_columns_in_any_order_and_case(tmp_path, delimiter, url):
    header = ["url", *CATEGORICAL_COLUMNS[::-1], "LABEL", *(name.lower() for name in INTEGER_COLUMNS)]
    lines = [header] + [[url, *row[:13:-1], row[0], *row[1:14]] for row in ROWS]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(delimiter.join(line) for line in lines))
    file = CriteoFile(path)
    assert file.has_header
    assert file.count_rows() == 3
    check_rows(next(file.batches(10)))


def test_gzip_is_told_by_content_not_by_name(tmp_path):
    plain = tsv(tmp_path / "plain")
    packed = tmp_path / "rows.tsv"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    check_rows(read(packed)[0])


def test_windows_line_ends_blank_lines_byte_order_mark_and_no_final_newline(tmp_path):
    path = tsv(tmp_path / "rows.tsv", end="\r\n\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().rstrip())
    assert CriteoFile(path).count_rows() == 3
    check_rows(read(path)[0])


def test_a_last_field_that_is_empty_is_missing(tmp_path):
    path = tsv(tmp_path / "rows.tsv", [["1", *[""] * 39]])
    (batch,) = read(path)
    assert np.isnan(batch.integers).all()
    assert (batch.categories == b"").all()


def test_decimal_integers_are_read(tmp_path):
    (batch,) = read(tsv(tmp_path / "rows.tsv", [["0.0", *["260.0"] * 13, *["a"] * 26]]))
    assert (batch.integers == 260.0).all()


def test_batches_and_splits_are_by_row_in_order(tmp_path):
    rows = [[str(n % 2), *[str(n)] * 13, *["a"] * 26] for n in range(25)]
    file = CriteoFile(tsv(tmp_path / "rows.tsv", rows))
    batches = list(file.batches(4, start=3, stop=20))
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 1]
    assert np.concatenate([batch.integers[:, 0] for batch in batches]).tolist() == list(range(3, 20))
    assert list(file.batches(4, start=25)) == []
    with pytest.raises(ValueError, match="batch_rows"):
        next(file.batches(0))


BAD_ROWS = {
    r"label is '2': must be 0 or 1 \(--skip-bad-lines passes over such lines\)": ["2", *ROWS[1][1:]],
    "label is '': must be 0 or 1": ["", *ROWS[1][1:]],
    "label is 'yes': must be 0 or 1": ["yes", *ROWS[1][1:]],
    "label is 'inf': must be 0 or 1": ["inf", *ROWS[1][1:]],
    "I3 is 'x7': must be a number or empty": [*ROWS[1][:3], "x7", *ROWS[1][4:]],
    "I13 is 'inf': must be a finite number or empty": [*ROWS[1][:13], "inf", *ROWS[1][14:]],
    "39 fields, expected 40": ROWS[1][:39],
    "41 fields, expected 40": [*ROWS[1], "more"],
    "C26 has 65 bytes": [*ROWS[1][:39], "a" * (MAX_FIELD_BYTES + 1)],
}


@pytest.mark.parametrize("message", BAD_ROWS)
def test_a_malformed_line_is_named_or_skipped_and_counted(tmp_path, message):
    path = tsv(tmp_path / "rows.tsv", [ROWS[0], BAD_ROWS[message], ROWS[1], ROWS[2]])
    with pytest.raises(CriteoFormatError, match=rf"rows\.tsv, line 2: .*{message}"):
        read(path)
    (batch,) = read(path, skip_bad_lines=True)
    check_rows(batch)
    assert batch.bad_lines == 1
    assert CriteoFile(path).count_rows() == 4


def test_lines_that_are_all_malformed_leave_an_empty_batch(tmp_path):
    bad = list(BAD_ROWS.values())
    path = tsv(tmp_path / "rows.tsv", [ROWS[0], *bad])
    first, rest = CriteoFile(path, skip_bad_lines=True).batches(1), CriteoFile(path, skip_bad_lines=True)
    assert len(next(first)) == 1
    (batch,) = rest.batches(100, start=1)
    assert len(batch) == 0
    assert batch.categories.shape == (0, 26)
    assert batch.bad_lines == len(bad)


def test_line_numbers_count_header_and_blank_lines(tmp_path):
    path = tmp_path / "rows.csv"
    header = ",".join(["label", *INTEGER_COLUMNS, *CATEGORICAL_COLUMNS])
    path.write_text(f"{header}\n{','.join(ROWS[1])}\n\n2,{','.join(ROWS[1][1:])}\n")
    with pytest.raises(CriteoFormatError, match="line 4: field label"):
        read(path)


QUOTED = {
    "all": lambda row: [f'"{field}"' for field in row],
    "categories": lambda row: [*row[:14], *(f'"{field}"' for field in row[14:])],
    "some rows": lambda row: [f'"{field}"' for field in row] if row[0] == "0" else row,
}


@pytest.mark.parametrize("quoting", QUOTED)
@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("header", [True, False])
def test_quoted_fields_are_read_without_their_quotes(tmp_path, quoting, delimiter, header):
    path = tmp_path / "rows.csv"
    lines = [['"label"', *INTEGER_COLUMNS, *CATEGORICAL_COLUMNS]] if header else []
    path.write_text("\n".join(delimiter.join(line) for line in [*lines, *map(QUOTED[quoting], ROWS)]) + "\n")
    if delimiter == "\t" and not header and quoting == "some rows":
        return  # nothing says that tabs and quotes go together
    check_rows(next(CriteoFile(path).batches(10)))


def test_quotes_are_as_rfc_4180_has_them(tmp_path):
    values = {'"a,b"': b"a,b", '"a""b"': b'a"b', '""': b"", '""""': b'"', "plain": b"plain", '" x "': b" x "}
    path = tmp_path / "rows.csv"
    path.write_text(",".join([*ROWS[1][:14], *values, *["z"] * (26 - len(values))]) + "\r\n")
    (batch,) = read(path)
    assert batch.categories[0, : len(values)].tolist() == list(values.values())
    assert batch.categories[0, 25] == b"z"


@pytest.mark.parametrize("field", ['"a', 'a"', '"a"b', 'a"b', '"a" ', ' "a"', '"a""'])
def test_quotes_that_do_not_match_are_named_or_passed_over(tmp_path, field):
    path = tmp_path / "rows.csv"
    rows = [ROWS[0], [*ROWS[1][:20], field, *ROWS[1][21:]], ROWS[1], ROWS[2]]
    path.write_text("\n".join(map(",".join, rows)))
    with pytest.raises(CriteoFormatError, match=r"line 2: quotes must surround a whole field, and be doubled"):
        read(path)
    (batch,) = read(path, skip_bad_lines=True)
    check_rows(batch)
    assert batch.bad_lines == 1


def test_a_quoted_field_too_many_is_counted(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(map(",".join, [ROWS[1], [*ROWS[1], '"more,of,it"']])))
    with pytest.raises(CriteoFormatError, match=r"line 2: 41 fields, expected 40"):
        read(path)


def test_tab_separated_lines_without_header_keep_their_quotes(tmp_path):
    (batch,) = read(tsv(tmp_path / "rows.tsv", [ROWS[1], [*ROWS[1][:39], '"a']]))
    assert batch.categories[:, 25].tolist() == [b"a", b'"a']


def test_files_that_are_not_criteo_format(tmp_path):
    path = tmp_path / "rows.tsv"
    with pytest.raises(CriteoFormatError, match="no such file"):
        CriteoFile(path)
    with pytest.raises(CriteoFormatError, match="a directory"):
        CriteoFile(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(CriteoFormatError, match="line 1 is empty"):
        CriteoFile(path)
    path.write_text("a,b,c\n1,2,3\n")
    with pytest.raises(CriteoFormatError, match=r"3 field\(s\).*begins with 'a,b,c"):
        CriteoFile(path)
    path.write_text(",".join(["label", *INTEGER_COLUMNS, *CATEGORICAL_COLUMNS[:-1]]))
    with pytest.raises(CriteoFormatError, match="no column C26"):
        CriteoFile(path)
    path.write_text(",".join(["label", "I1", *INTEGER_COLUMNS, *CATEGORICAL_COLUMNS]))
    with pytest.raises(CriteoFormatError, match="I1 appears twice"):
        CriteoFile(path)


def test_a_file_without_line_ends_is_refused_not_loaded(tmp_path):
    path = tmp_path / "zeros"
    path.write_bytes(b"0" * (MAX_LINE_BYTES * 4))
    with pytest.raises(CriteoFormatError, match=f"longer than {MAX_LINE_BYTES}"):
        CriteoFile(path)


def test_a_line_that_is_too_long_is_passed_over_like_other_bad_ones(tmp_path):
    path = tsv(tmp_path / "plain", ROWS * 3)
    whole = path.read_bytes().splitlines(keepends=True)
    long = whole[0].rstrip(b"\n") + b"a" * (3 * MAX_LINE_BYTES) + b"\n"
    path.write_bytes(whole[0] + long + b"".join(whole[1:]) + long[:-1])
    with pytest.raises(CriteoFormatError, match=f"line 2: longer than {MAX_LINE_BYTES}"):
        list(CriteoFile(path).batches(4))
    file = CriteoFile(path, skip_bad_lines=True)
    assert file.count_rows() == len(whole) + 2
    batches = list(file.batches(100))
    assert sum(len(rows) for rows in batches) == len(whole)
    assert sum(rows.bad_lines for rows in batches) == 2


def test_a_broken_gzip_file_is_named(tmp_path):
    path = tmp_path / "rows.gz"
    whole = gzip.compress(tsv(tmp_path / "plain", ROWS * 2000).read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CriteoFormatError, match="broken gzip data"):
        read(path)
    path.write_bytes(b"\x1f\x8bnothing of the kind")
    with pytest.raises(CriteoFormatError, match="broken gzip data"):
        CriteoFile(path)
