import csv

import pytest

from hebe.simulation.analytic.server_types import EC2, HERA_SOCKET, HERCULES, HERCULES_AVAILABLE
from tests.places import SHARED_DATA

RECORDED = SHARED_DATA / "hardware" / "hercules_server_types.csv"


def table_two():
    """Hercules' Table II as type, available, ranks, accelerator: recorded where it is at hand, else by its rule."""
    if RECORDED.is_file():
        with RECORDED.open() as file:
            for row in csv.DictReader(file):
                ranks = int(row["memory"].removeprefix("NMPx")) if row["memory"] != "DDR4" else 0
                yield row["type"], int(row["available"]), ranks, row["gpu"] or None
        return
    counts = (100, 100, 15, 10, 5, 10, 5, 6, 4, 2)
    for number, count in enumerate(counts, start=1):
        ranks = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8}.get(number, 0)
        gpu = None if number < 6 else "P100" if number == 6 else "V100"
        yield f"T{number}", count, ranks, gpu


@pytest.mark.parametrize("row", list(table_two()), ids=lambda row: row[0])
def test_hercules_types_are_those_of_its_table(row):
    name, available, ranks, gpu = row
    server = HERCULES[name]
    assert (server.name, HERCULES_AVAILABLE[name], server.near_memory_ranks) == (name, available, ranks)
    assert (server.accelerator and server.accelerator.name) == gpu
    assert server.cores == (18 if name == "T1" else 20)


def test_peaks_are_those_of_the_data_sheets():
    assert HERCULES["T1"].peak_flops_per_s == pytest.approx(921.6e9)
    assert HERCULES["T2"].memory_bandwidth_bytes_per_s == pytest.approx(4 * 2666e6 * 8, rel=1e-3)
    assert HERCULES["T1"].peak_power_watts == 86 + 28
    assert HERCULES["T2"].peak_power_watts == 125 + 50
    assert HERA_SOCKET.memory_bandwidth_bytes_per_s == pytest.approx(6 * 2666e6 * 8, rel=1e-3)


def test_ec2_types_have_prices_and_only_one_an_accelerator():
    assert {name: server.price_per_hour for name, server in EC2.items()} == {
        "g4dn.xlarge": 0.526,
        "c5n.2xlarge": 0.432,
        "r5n.large": 0.149,
        "t3.xlarge": 0.1664,
    }
    assert [name for name, server in EC2.items() if server.accelerator] == ["g4dn.xlarge"]


def test_ec2_types_have_whole_cores_and_the_rates_of_their_data_sheets():
    vcpus = {"g4dn.xlarge": 4, "c5n.2xlarge": 8, "r5n.large": 2, "t3.xlarge": 4}
    for name, server in EC2.items():
        assert (server.cores, server.flops_per_cycle_per_core) == (vcpus[name] // 2, 64.0)
    assert EC2["r5n.large"].memory_bandwidth_bytes_per_s == pytest.approx(6 * 2933e6 * 8, rel=1e-3)
    assert EC2["c5n.2xlarge"].memory_bandwidth_bytes_per_s == pytest.approx(6 * 2666e6 * 8, rel=1e-3)
