"""The error of profiling that cannot begin or go on."""


class ProfilingError(RuntimeError):
    """What could not be measured or kept; the message says what was wrong and what to do."""
