from __future__ import annotations

import sys

from hebe.machine.process_limits import handed_over_soon


def test_threads_hand_over_soon_for_a_time():
    before_s = sys.getswitchinterval()
    with handed_over_soon():
        assert sys.getswitchinterval() < before_s
    assert sys.getswitchinterval() == before_s
