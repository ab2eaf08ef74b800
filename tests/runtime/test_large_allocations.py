import subprocess
import sys
from types import SimpleNamespace

from hebe.runtime import large_allocations

# In a process of its own, since the setting is for good.
FAULTS = """
import resource
from hebe.runtime.large_allocations import keep_large_allocations

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


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(large_allocations, "sys", SimpleNamespace(platform="other"))
    assert large_allocations.keep_large_allocations() is False
