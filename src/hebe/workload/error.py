"""The error of a workload that cannot be drawn as described."""


class WorkloadError(ValueError):
    """A workload description or trace that makes no sense; the message names the field and what it should be."""
