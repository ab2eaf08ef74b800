import numpy as np
import pytest

from hebe.load_generator.error import LoadError
from hebe.load_generator.queries.model_inputs import ModelInput, model_inputs
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget

TARGET = Target(parse_endpoint("h:8000"), "dlrm")
KEYS = {"name": "user", "datatype": "INT64", "shape": [-1, 80]}
DENSE = {"name": "dense", "datatype": "FP32", "shape": [-1, 13]}


def test_what_a_server_of_hebe_tells():
    told = model_inputs(TARGET, [KEYS, DENSE], {"rows.user": "4000000", "sla_ms": "20", "sla_percentile": "99"})
    assert told.inputs == (ModelInput("user", "INT64", (80,), 4_000_000), ModelInput("dense", "FP32", (13,), None))
    assert told.sla == SlaTarget(20.0, 99.0)
    assert told.item_bytes == 80 * 8 + 13 * 4


@pytest.mark.parametrize(
    ("said", "told"), [(8192, 8192), (0, None), (-1, None), (None, None), ("8", None), (True, None)]
)
def test_the_largest_query(said, told):
    assert model_inputs(TARGET, [DENSE], {}, said).max_items == told


def test_other_servers_need_the_largest_key():
    with pytest.raises(LoadError, match=r"input user: .* give --max-key"):
        model_inputs(TARGET, [KEYS], {})
    told = model_inputs(Target(parse_endpoint("h:8000"), "dlrm", max_key=9), [KEYS], {})
    assert told.inputs[0].rows == 10
    assert told.sla is None


@pytest.mark.parametrize(("max_key", "rows"), [(9, 10), (4_000_000, 4_000_000), (10**9, 4_000_000)])
def test_the_largest_key_bounds_what_the_server_tells(max_key, rows):
    """To ask for the hot rows alone; keys that the server would refuse are not sent."""
    target = Target(parse_endpoint("h:8000"), "dlrm", max_key=max_key)
    assert model_inputs(target, [KEYS], {"rows.user": "4000000"}).inputs[0].rows == rows


def test_keys_fit_their_datatype():
    target = Target(parse_endpoint("h:8000"), "m", max_key=10**9)
    told = model_inputs(target, [{"name": "k", "datatype": "INT16", "shape": [-1, 2]}], {})
    assert told.inputs[0].rows == 1 << 15
    assert told.inputs[0].dtype == np.dtype("<i2")


def test_any_number_of_fixed_dimensions():
    told = model_inputs(TARGET, [{"name": "x", "datatype": "FP64", "shape": [-1, 3, 5]}], {})
    assert told.inputs[0].item_bytes == 120
    assert model_inputs(TARGET, [{"name": "x", "datatype": "FP16", "shape": [-1]}], {}).inputs[0].item_bytes == 2


@pytest.mark.parametrize(
    ("metadata", "parameters", "message"),
    [
        ([], {}, "lists no inputs"),
        ([{"name": "x"}], {}, "lacks name, datatype or shape"),
        ([{"name": "x", "datatype": "FP32", "shape": []}], {}, r"input x has shape \[\]"),
        ([{"name": "x", "datatype": "FP32", "shape": [-1, -1]}], {}, r"input x has shape \[-1, -1\]"),
        ([{"name": "x", "datatype": "BYTES", "shape": [-1, 1]}], {}, "input x has datatype BYTES"),
        ([KEYS], {"rows.user": "many"}, "rows.user is 'many'"),
        ([KEYS], {"rows.user": "0"}, "rows.user is '0'"),
    ],
)
def test_what_cannot_be_drawn_is_named(metadata, parameters, message):
    with pytest.raises(LoadError, match=message):
        model_inputs(TARGET, metadata, parameters)


@pytest.mark.parametrize("parameters", [{"sla_ms": "soon"}, {"sla_ms": "0"}, {"sla_ms": "1", "sla_percentile": "100"}])
def test_a_senseless_sla_is_no_sla(parameters):
    assert model_inputs(TARGET, [DENSE], parameters).sla is None
