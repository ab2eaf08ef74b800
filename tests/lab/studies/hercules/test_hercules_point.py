"""What a configuration reaches."""

import pytest

from hebe_lab.studies.hercules.live import Point


def test_efficiency_is_what_a_watt_serves_and_nothing_where_none_is_drawn():
    assert Point(100.0, 50.0, 0.5).efficiency == pytest.approx(2.0)
    assert Point(0.0, 50.0, 0.0).efficiency == Point(100.0, 0.0, 0.5).efficiency == 0.0
