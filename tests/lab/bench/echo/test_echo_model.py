import json

from hebe.load_generator.protobuf_wire import parse_model_config, parse_model_metadata
from hebe_lab.bench.echo.echo_model import EchoModel


def test_a_model_without_dense_features_has_no_such_input():
    assert EchoModel(features=1, dense_dim=0).inputs() == [("feature_0", "INT64", 80)]


def test_both_protocols_tell_the_same():
    model = EchoModel(features=2, lookups=3, dense_dim=4, rows=50, sla_ms=7.5)
    pages = {path: json.loads(page) for path, page in model.pages().items()}
    assert list(pages) == ["/v2/models/echo", "/v2/models/echo/config"]
    assert parse_model_metadata(model.metadata_message()) == pages["/v2/models/echo"]["inputs"]
    told = pages["/v2/models/echo/config"]["parameters"]
    assert parse_model_config(model.config_message())[0] == {name: each["string_value"] for name, each in told.items()}


def test_an_answer_holds_a_kilobyte_of_scores():
    assert EchoModel().infer_message().endswith(bytes(1024))
