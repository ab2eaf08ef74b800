import tomllib
from dataclasses import fields

import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files import server_specs
from hebe.capacity.files.server_specs import BUILT_IN, TEMPLATE, read_server_spec, server_named
from hebe.spec import AcceleratorSpec, ServerSpec
from tests.places import DOCS

NEEDED = """name = "mine"
cores = 8
memory_bytes = 64e9
memory_bandwidth_bytes_per_s = 50e9
clock_hz = 2.5e9
flops_per_cycle_per_core = 32
peak_power_watts = 100
llc_bytes = 16_000_000
"""
ACCELERATOR = """[accelerator]
name = "gpu"
peak_flops_per_s = 10e12
memory_bytes = 16e9
memory_bandwidth_bytes_per_s = 500e9
pcie_bandwidth_bytes_per_s = 11e9
compute_units = 40
launch_overhead_s = 5e-6
peak_power_watts = 150
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def test_a_file_is_a_server_type(written):
    server = server_named(str(written(NEEDED + ACCELERATOR)))
    assert (server.name, server.cores, server.memory_bytes, server.llc_bytes) == ("mine", 8, 64 * 10**9, 16_000_000)
    assert server.idle_power_watts == pytest.approx(23.0)
    assert server.accelerator.memory_bytes == 16 * 10**9
    assert server.accelerator.idle_power_watts == 0.0


def test_the_template_is_a_file_with_every_field(written):
    server = read_server_spec(written(TEMPLATE))
    assert server.accelerator is None
    server_part, accelerator_part = TEMPLATE.split("# [accelerator]")
    uncommented = server_part + ("# [accelerator]" + accelerator_part).replace("\n# ", "\n").removeprefix("# ")
    shown = tomllib.loads(uncommented)
    assert set(shown) == {field.name for field in fields(ServerSpec)}
    assert set(shown["accelerator"]) == {field.name for field in fields(AcceleratorSpec)}
    assert read_server_spec(written(uncommented)).accelerator.name == "V100"


def test_the_documented_file_is_the_templates_beginning(written):
    text = (DOCS / "analytic-servers.md").read_text()
    documented = text.split("```toml\n")[1].split("```")[0]
    assert documented in TEMPLATE
    assert read_server_spec(written(documented)).name == "my-server"


def test_known_fields_are_those_of_the_specs():
    known = {*server_specs._NEEDED, *server_specs._MAY}
    assert known == {field.name for field in fields(ServerSpec)}
    known = {*server_specs._ACCELERATOR_NEEDED, *server_specs._ACCELERATOR_MAY}
    assert known == {field.name for field in fields(AcceleratorSpec)}


def test_built_in_types_go_by_name():
    assert server_named("T7") is BUILT_IN["T7"]
    assert len(BUILT_IN) == 15


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("T11", "'T11' is not built in; near are T1, T10"),
        ("c5n", "near are c5n.2xlarge"),
        ("quantum", "there are T1, T2"),
        ("nowhere.toml", "nowhere.toml: cannot be read: No such file"),
    ],
)
def test_what_is_no_type_is_named(text, message):
    with pytest.raises(PlanFileError, match=message):
        server_named(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores = 8", "cors = 8", "unknown field 'cors': did you mean cores"),
        ("cores = 8", "colour = 8", "unknown field 'colour': "),
        ("cores = 8\n", "", "cores is missing"),
        ("cores = 8", "cores = 0", "cores is 0: must be more"),
        ("cores = 8", "cores = 8.5", "cores is 8.5: must be a whole number"),
        ("cores = 8", "cores = 1e308", "cores is 1e.308: must be at most 768"),
        ("cores = 8", "cores = true", "cores is True: must be a number"),
        ("cores = 8", 'cores = "8"', "cores is '8': must be a number"),
        ("clock_hz = 2.5e9", "clock_hz = -1", "clock_hz is -1: must be a finite number of at least 0"),
        ("clock_hz = 2.5e9", "clock_hz = nan", "clock_hz is nan: must be a finite"),
        ("memory_bytes = 64e9", "memory_bytes = inf", "memory_bytes is inf: must be a finite"),
        ('name = "mine"', 'name = "my server"', "server type name 'my server'"),
        ('name = "mine"', "name = 3", "server type name 3"),
        ("llc_bytes = 16_000_000", "idle_power_watts = 200\nllc_bytes = 1", "idle_power_watts is 200.0: must be at"),
        ("llc_bytes = 16_000_000", "accelerator = 1\nllc_bytes = 1", r"accelerator is 1: must be a table"),
        ("llc_bytes = 16_000_000", "llc_bytes = ", "cannot be read: "),
    ],
)
def test_faults_name_file_and_field(written, old, new, message):
    with pytest.raises(PlanFileError, match=message) as fault:
        read_server_spec(written(NEEDED.replace(old, new)))
    assert str(fault.value).startswith(str(written(NEEDED)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("compute_units = 40\n", "", "accelerator: compute_units is missing"),
        ("compute_units = 40", "compute_units = 0", "accelerator: compute_units is 0"),
        (
            "peak_flops_per_s = 10e12",
            "peak_flops_per_s = 0",
            "peak_flops_per_s is 0.0: must be a finite number above 0",
        ),
        ("compute_units = 40", "compute_unit = 40", "unknown field 'compute_unit': did you mean compute_units"),
    ],
)
def test_faults_of_an_accelerator_are_named(written, old, new, message):
    with pytest.raises(PlanFileError, match=message):
        read_server_spec(written(NEEDED + ACCELERATOR.replace(old, new)))
