"""What a host that has others to serve denied, and where no one tells."""

from types import SimpleNamespace

import pytest

from hebe.cli.terminal import host_watch
from hebe.cli.terminal.host_watch import HostWatch, denied_words
from hebe.machine.meters.processor import ProcessorMeterError, ProcessorUse


def test_is_what_was_denied_since_it_was_last_asked(monkeypatch):
    shares = iter([0.2, 0.0])
    meter = SimpleNamespace(read=lambda: ProcessorUse(0.5, 0.5, 0.5, next(shares), 100))
    monkeypatch.setattr(host_watch, "ProcessorMeter", lambda: meter)
    watch = HostWatch()
    assert [watch.denied_share(), watch.denied_share()] == [0.2, 0.0]


def test_a_system_that_does_not_tell_denies_nothing(monkeypatch):
    def absent():
        raise ProcessorMeterError("/proc/stat cannot be read")

    monkeypatch.setattr(host_watch, "ProcessorMeter", absent)
    assert HostWatch().denied_share() == 0.0


def test_this_machine_tells():
    assert 0 <= HostWatch().denied_share() <= 1


@pytest.mark.parametrize("share", [0.0, 0.09])
def test_next_to_nothing_is_no_warning(share):
    assert denied_words(share) == ""


def test_the_warning_says_what_to_do():
    words = denied_words(0.12, "run it anew")
    assert "gave 12% of the cores' time to others. It may be too low: run it anew when" in words
