from __future__ import annotations

from hebe.serving.requests.settings import LOG_SETTINGS, trace_settings


def test_traces_are_of_every_request_or_of_none():
    on, off = trace_settings(on=True), trace_settings(on=False)
    assert (on["trace_level"], on["trace_rate"]) == (["TIMESTAMPS"], "1")
    assert off["trace_level"] == ["OFF"]
    assert on.keys() == off.keys()


def test_settings_are_of_the_types_that_both_protocols_carry():
    for value in [*trace_settings(on=True).values(), *trace_settings(on=False).values()]:
        assert all(isinstance(each, str) for each in (value if isinstance(value, list) else [value]))
    assert {type(value) for value in LOG_SETTINGS.values()} <= {bool, int, str}
