from __future__ import annotations

import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hebe.machine import process_limits
from hebe.machine.process_limits import allow_many_connections, handed_over_soon

# In a process of its own, since the setting is for good.
FAULTS = """
import resource
from hebe.machine.process_limits import keep_large_allocations

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytearray(20 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults()
print(keep_large_allocations(), without, faults())
"""


def test_memory_that_is_freed_is_not_fetched_anew():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    told, without, kept = done.stdout.split()
    assert told == "False" or int(kept) < 0.2 * int(without)


SCATTERED = """
import gc, pathlib
from hebe.machine.process_limits import give_back_freed, keep_large_allocations

def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

keep_large_allocations()
before = resident_bytes()
blocks = [bytearray(200_000) for _ in range(800)]
between = blocks[::80]
del blocks
kept = resident_bytes()
give_back_freed()
print(kept - before, resident_bytes() - before)
"""


def test_what_was_freed_among_what_is_in_use_is_given_back():
    done = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert left < 0.2 * kept or kept < 100e6  # a C library that keeps nothing


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(process_limits, "sys", SimpleNamespace(platform="other"))
    assert process_limits.keep_large_allocations() is False
    process_limits.give_back_freed()


def test_threads_hand_over_soon_for_a_time():
    before_s = sys.getswitchinterval()
    with handed_over_soon():
        assert sys.getswitchinterval() < before_s
    assert sys.getswitchinterval() == before_s


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 1 << 20, 65_536),
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 65_536),
        (100_000, 1 << 20, 100_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_of_open_files_is_raised_and_the_hard_one_left(monkeypatch, soft, hard, raised):
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    allow_many_connections()
    assert limits[-1] == (raised, hard)
