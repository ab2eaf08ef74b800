import pytest

from hebe.embeddings.circuit_breaker import BreakerOptions, CircuitBreaker


def test_opens_after_failures_in_a_row_and_probes_ever_more_seldom() -> None:
    breaker = CircuitBreaker(BreakerOptions(failures=2, pause_s=1.0, longest_pause_s=3.0))
    assert not breaker.failed(0.0)
    breaker.succeeded()
    assert not breaker.failed(1.0)
    assert breaker.closed
    assert breaker.failed(2.0)
    assert not breaker.closed
    assert breaker.probe_s == 3.0
    assert not breaker.failed(2.5), "a call that began before"
    assert breaker.probe_s == 3.0
    breaker.failed(3.0)
    assert breaker.probe_s == 5.0
    breaker.failed(5.0)
    assert breaker.probe_s == 8.0
    breaker.succeeded()
    assert breaker.closed
    breaker.failed(9.0)
    assert breaker.failed(10.0)
    assert breaker.probe_s == 11.0, "the pause is short again"


@pytest.mark.parametrize("options", [{"failures": 0}, {"pause_s": 0.0}, {"pause_s": 2.0, "longest_pause_s": 1.0}])
def test_options_out_of_range(options) -> None:
    with pytest.raises(ValueError, match="must be"):
        BreakerOptions(**options)
