from pathlib import Path

import numpy as np
import pytest

from hebe.profile import LatencyProfile
from hebe.simulation.service_table import ServiceTable, ServiceTableError, read_service_tables

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "kairos"


def write(path: Path, rows: list[str], samples: int = 3) -> Path:
    header = ",".join(["model", "instance", "batch", *(f"ms_{at}" for at in range(samples))])
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_quantiles_are_interpolated_between_measured_sizes() -> None:
    table = ServiceTable.from_samples({"gpu": {10: [2e-3, 1e-3], 20: [4e-3, 3e-3]}})
    assert table.largest == 20
    assert table.samples == 2
    np.testing.assert_allclose(table.quantiles_s[0, [1, 10, 15, 20]], [[1e-3, 2e-3]] * 2 + [[2e-3, 3e-3], [3e-3, 4e-3]])
    np.testing.assert_allclose(table.mean_s[0, [9, 14, 19]], [1.5e-3, 2.5e-3, 3.5e-3])


def test_types_with_fewer_samples_keep_their_distribution() -> None:
    table = ServiceTable.from_samples({"a": {1: list(np.linspace(1, 2, 101))}, "b": {1: [1.0, 2.0, 3.0]}})
    assert table.quantiles_s.shape == (2, 2, 101)
    assert table.mean_s[1, 0] == pytest.approx(2.0, abs=0.01)


def test_a_profile_and_back() -> None:
    profile = LatencyProfile((1, 100), (1e-3, 5e-3), (1e-5, 1e-4))
    table = ServiceTable.from_profiles({"cpu": profile}, largest=100)
    again = table.profile("cpu", [1, 100])
    np.testing.assert_allclose(again.service_s, profile.service_s, rtol=1e-6)
    np.testing.assert_allclose(again.spread_s, profile.spread_s, rtol=0.15)


def test_some_types_in_another_order() -> None:
    table = ServiceTable.from_samples({"a": {1: [1.0, 1.0]}, "b": {1: [2.0, 2.0]}})
    assert table.of_types(["b"]).mean_s.tolist() == [[2.0]]
    with pytest.raises(ServiceTableError, match="server type c: not measured; there are a, b"):
        table.of_types(["c"])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({}, "no server type"),
        ({"a": {}}, "server type a: not measured at any size"),
        ({"a": {10: [1.0]}, "b": {20: [1.0]}}, "measured up to 10 items, another to 20"),
        ({"a": {10: [1.0, -1.0]}}, "server type a, 10 items"),
        ({"a": {10: [1.0, float("nan")]}}, "server type a, 10 items"),
        ({"a": {0: [1.0], 10: [1.0]}}, "server type a, 0 items"),
    ],
)
def test_samples_are_checked(samples: dict[str, dict[int, list[float]]], message: str) -> None:
    with pytest.raises(ServiceTableError, match=message):
        ServiceTable.from_samples(samples)


def test_files_are_added_and_the_slowest_sample_left_out(tmp_path: Path) -> None:
    run = write(tmp_path / "run.csv", ["ncf,gpu,10,100,1,2", "ncf,gpu,20,3,4,200"])
    loading = write(tmp_path / "load.csv", ["ncf,gpu,10,1,1,1", "ncf,gpu,20,1,1,1"])
    table = read_service_tables([run, loading])["ncf"]
    np.testing.assert_allclose(table.quantiles_s[0, [10, 20]], [[2e-3, 3e-3], [4e-3, 5e-3]])


@pytest.mark.parametrize(
    ("run", "load", "message"),
    [
        (
            ["ncf,gpu,10,1,2,3", "ncf,gpu,20,1,2,3"], ["ncf,gpu,10,1,1,1"],
            r"load\.csv: has no row of ncf, gpu, 20 items, which .*run\.csv has in line 3",
        ),
        (
            ["ncf,gpu,20,1,2,3"], ["ncf,gpu,20,1,1,1", "ncf,gpu,10,1,1,1"],
            r"run\.csv: has no row of ncf, gpu, 10 items, which .*load\.csv has in line 3",
        ),
    ],
)  # fmt: skip
def test_a_row_that_one_of_the_files_lacks_is_named(
    tmp_path: Path, run: list[str], load: list[str], message: str
) -> None:
    paths = [write(tmp_path / "run.csv", run), write(tmp_path / "load.csv", load)]
    with pytest.raises(ServiceTableError, match=message):
        read_service_tables(paths)


def test_rows_of_models_that_are_not_asked_for_may_be_missing(tmp_path: Path) -> None:
    run = write(tmp_path / "run.csv", ["ncf,gpu,10,1,2,3", "wnd,gpu,10,1,2,3"])
    loading = write(tmp_path / "load.csv", ["ncf,gpu,10,1,1,1"])
    assert set(read_service_tables([run, loading], only="ncf")) == {"ncf"}
    with pytest.raises(ServiceTableError, match=r"load\.csv: has no row of wnd, gpu, 10 items"):
        read_service_tables([run, loading])


def test_beyond_the_last_size_the_spread_stays() -> None:
    profile = LatencyProfile((1, 100), (1e-3, 5e-3), (1e-5, 1e-4))
    table = ServiceTable.from_profiles({"cpu": profile}, largest=200)
    wide = np.ptp(table.quantiles_s[0], axis=1)
    assert wide[200] == pytest.approx(wide[100])
    assert table.mean_s[0, -1] == pytest.approx(profile.service_time_s(200))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["ncf,gpu,ten,1,2,3"], r"t\.csv, line 2, field batch: 'ten'"),
        (["ncf,gpu,0,1,2,3"], r"t\.csv, line 2, field batch: 0"),
        (["ncf,gpu,10,1,2,3", "ncf,gpu,20,1,oops,3"], r"t\.csv, line 3, field ms_1: 'oops'"),
        (["ncf,gpu,10,1,nan,3"], r"t\.csv, line 2, field ms_1: 'nan'"),
        (["ncf,gpu,10,1,-2,3"], r"t\.csv, line 2, field ms_1: '-2'"),
        (["ncf,gpu,10,1,2"], r"t\.csv, line 2: 5 fields, the header has 6"),
        (["ncf,gpu,10,1,2,3", "ncf,gpu,10,1,2,3"], r"t\.csv, line 3: ncf, gpu, 10 items is there twice"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(ServiceTableError, match=message):
        read_service_tables([write(tmp_path / "t.csv", rows)])


def test_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("model,batch,ms_0\n")
    with pytest.raises(ServiceTableError, match=r"t\.csv, line 1: columns must be"):
        read_service_tables([tmp_path / "t.csv"])
    with pytest.raises(ServiceTableError, match=r"none\.csv: cannot be read"):
        read_service_tables([tmp_path / "none.csv"])
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ServiceTableError, match=r"b\.csv: cannot be read"):
        read_service_tables([tmp_path / "b.csv"])


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded data is not part of the product")
def test_the_recorded_measurements_are_read_whole() -> None:
    tables = read_service_tables([RECORDED / "exec_ms.csv", RECORDED / "load_ms.csv"])
    assert set(tables) == {"ncf", "rm2", "wnd", "mtwnd", "dien"}
    for table in tables.values():
        assert table.quantiles_s.shape == (4, 1001, 99)
