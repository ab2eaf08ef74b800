"""Entries of CSV, TOML and JSON files, and what of efficiency tuples and servers cannot be planned from."""

from pathlib import Path

import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.entries import ServerOffer, read_efficiency, read_servers
from hebe.profile import EfficiencyTuple
from tests.examples.provisioning_files import EFFICIENCY, SERVERS


def fault(read, *arguments):
    with pytest.raises(PlanFileError) as caught:
        read(*arguments)
    return str(caught.value)


def test_tuples_have_the_settings_of_their_columns_and_say_what_is_estimated(write):
    tuples = read_efficiency(write("efficiency.csv", EFFICIENCY), {})
    assert tuples[0] == EfficiencyTuple("rm1", "cpu", 100.0, 100.0, {"workers": 10, "fused": True})
    assert tuples[1] == EfficiencyTuple("rm1", "gpu", 200.0, 250.0, {}, True)
    assert tuples[2].configuration == {"workers": 4}


def test_a_tuple_without_power_has_that_of_its_server_type(write):
    path = write("efficiency.csv", "model,server_type,qps\nrm1,cpu,100\nrm1,gpu,200\nrm1,tpu,0\n")
    assert [one.power_watts for one in read_efficiency(path, {"cpu": 70.0, "gpu": 250.0})] == [70.0, 250.0, 0.0]
    assert fault(read_efficiency, path, {"cpu": 70.0}) == (
        "efficiency.csv: line 3: power_watts is missing or 0, and gpu has none in the servers' file"
    )


def test_servers_are_told_by_type_and_what_is_empty_is_not_known(write):
    path = write("servers.csv", "server_type,available,power_watts\ncpu,70,100\ngpu,5,\n")
    assert read_servers(path) == {"cpu": ServerOffer(70, None, 100.0), "gpu": ServerOffer(5, None, None)}


BAD = [
    ("efficiency.csv", "model,server_type,qps,watts\nrm1,cpu,1,1\n", "line 1: unknown field 'watts': known are model,"),
    ("efficiency.csv", "model,server_type\nrm1,cpu\n", "line 1: qps is missing"),
    ("efficiency.csv", "model,server_type,qps,qps\nrm1,cpu,1,1\n", "line 1: column 'qps' is there twice"),
    ("efficiency.csv", "model,,qps\nrm1,cpu,1\n", "line 1: column 2 has no name"),
    ("efficiency.csv", "", "line 1: must be a header"),
    ("efficiency.csv", "model,server_type,qps\n", "holds no efficiency entries"),
    ("efficiency.csv", f"{EFFICIENCY}rm1,cpu,1,1,,,\n", "line 6: rm1 on cpu is given twice, before at"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,nan"), "line 5: qps is 'nan': must be a finite"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,-4"), "line 5: qps is '-4': must be a finite"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,"), "line 5: qps is missing"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu", "rm2,"), "line 5: server_type is '': must be a name"),
    ("efficiency.csv", EFFICIENCY.replace("false", "perhaps"), "line 2: estimated is 'perhaps'"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400,260,,,", "rm2,gpu,4"), "line 5: has 3 fields: must have 7"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,1e308"), "line 5: qps is '1e308': must be 0, or lie"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,1e-300"), "line 5: qps is '1e-300': must be 0, or"),
    pytest.param(
        "efficiency.csv",
        EFFICIENCY.replace("rm2,gpu,400", f"rm2,gpu,{'9' * 5000}"),
        f"line 5: qps is '{'9' * 59}...: must be a finite number",
        id="many digits",
    ),
    (
        "efficiency.csv",
        EFFICIENCY.replace(",10,true", ",nan,true"),
        "line 2: configuration.workers is nan: must be a fi",
    ),
    ("efficiency.csv", EFFICIENCY.replace(".fused", "."), "line 1: column 'configuration.' names no setting"),
    ("servers.csv", "server_type,available\ncpu,1e7\n", "line 2: available is 10,000,000: at most 1,000,000"),
    (
        "servers.csv",
        "server_type,available\ncpu,1e19\n",
        "line 2: available is '1e19': must be 0, or lie between 1e-15",
    ),
    ("servers.csv", "server_type,available\ncpu,many\n", "line 2: available is 'many': must be a number"),
    ("servers.csv", "server_type,available\ncpu,1.5\n", "line 2: available is 1.5: must be a whole number"),
    ("servers.csv", f"{SERVERS}cpu,1,1\n", "line 4: server_type cpu is given twice"),
    ("servers.csv", f"{SERVERS}tpu,1,\n", "line 4: price_per_hour is given for some server types only"),
    ("efficiency.csv", "model;server_type;qps\nrm1;cpu;1\n", "line 1: has semicolons: must have commas between the co"),
    ("servers.csv", "server_type\tavailable\ncpu\t1\n", "line 1: has tabs: must have commas between the columns"),
]
READERS = {"efficiency.csv": lambda path: read_efficiency(path, {}), "servers.csv": read_servers}


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_bad_files_are_named_by_line_and_field(write, name, text, message):
    found = fault(READERS[name], write(name, text))
    assert found.startswith(name)
    assert message in found


BAD_TYPED = [
    (
        "s.toml",
        "[[server]]\nserver_type = 'cpu'\n\n[[server]]\nserver_type = 3\navailable = 1",
        "line 1, server 1: availa",
    ),
    ("s.toml", "[[server]]\nserver_type = 3\navailable = 1", "line 1, server 1: server_type is 3: must be a name"),
    ("s.toml", "server = [{server_type = 'cpu', available = -1}]", "server 1: available is -1"),
    ("s.toml", "[[server]\n", "cannot be read: "),
    ("s.toml", "[[servers]]\nserver_type = 'cpu'", "holds no array 'server'"),
    ("s.toml", "name = 1\n[[server]]\nserver_type = 'cpu'", "unknown field 'name': known is server"),
    ("s.toml", "server = [1]", "server: must hold tables only"),
    ("s.json", '[{"server_type": "cpu", "available": true}]', "server 1: available is True"),
    ("s.json", '[{"server_type": "cpu", "available": 1, "available": 2}]', "line 1: field 'available' is there twice"),
    (
        "s.json",
        '[\n{"available": {"available": ":"}, "server_type": "a\\":"},\n{"available" :\n2,\n"\\u0061vailable"\n: 2}]',
        "s.json: line 5: field 'available' is there twice in one object",
    ),
    ("s.json", '{"server": [],\n"server": []}', "s.json: line 2: field 'server' is there twice in one object"),
    ("s.json", '[{"server_type": "cpu", "available": NaN}]', "server 1: available is nan"),
    ("s.json", "[3]", "server 1: is 3: must be an object"),
    ("s.json", "[", "cannot be read: "),
    (
        "s.json",
        '[\n {"server_type": "{[\\"", \n"available": 1}, {\n}]',
        "s.json: line 3, server 2: server_type is missing",
    ),
    ("s.json", '{"server":\n[{"server_type": "cpu", "available": -1}]}', "s.json: line 2, server 1: available is -1"),
    (
        "s.json",
        '[\n{"server_type": "cpu", "available" 1}]',
        "cannot be read: Expecting ':' delimiter: line 2 column 36",
    ),
    *(
        pytest.param(name, text, f"{name}: cannot be read: {message}", id=f"{message} {name}")
        for message, texts in {
            "it holds a whole number of more than 4,300 digits": (f"[{'9' * 5000}]", f"a = {'9' * 5000}"),
            "it is nested too deep": ("[" * 100_000, "a = " + "[" * 100_000),
        }.items()
        for name, text in zip(("s.json", "s.toml"), texts, strict=True)
    ),
    ("s.json", "[]", "holds no server entries"),
    ("s.yaml", "", "ends in '.yaml': must be a .csv, .toml or .json file"),
    ("none.csv", None, "cannot be read: No such file"),
]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.csv", "\ufeffserver_type,available\ncpu,1\n{},1\n"),
        ("s.toml", "[[server]]\navailable = 1\nserver_type = '{}'\n"),
        ("s.json", '\ufeff[\n{{"available": 1,\n"server_type": "{}"}}]'),
    ],
)
def test_what_is_no_utf_8_is_named_by_line(write, name, text):
    path = write(name, "")
    filler = "# a line\n" * 20_000 * name.endswith("toml")  # more than is read at once
    path.write_bytes((filler + text).format("caf\0").encode().replace(b"\0", b"\xe9"))
    line = 3 + filler.count("\n")
    assert fault(read_servers, path) == f"{name}: line {line}: byte 0xe9 is not UTF-8: save the file as UTF-8"


@pytest.mark.parametrize(("name", "text", "message"), BAD_TYPED)
def test_bad_toml_and_json_files_are_named_by_entry_and_field(write, name, text, message):
    path = Path(name) if text is None else write(name, text)
    found = fault(read_servers, path)
    assert found.startswith(name)
    assert message in found
