"""What holds for every test."""

from hypothesis import settings

# The same examples on every run, and no time limit on one: a slow machine is not a fault.
settings.register_profile("hebe", deadline=None, derandomize=True)
settings.load_profile("hebe")
