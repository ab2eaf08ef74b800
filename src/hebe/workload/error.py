"""The errors of a workload that cannot be drawn as described."""


class WorkloadError(ValueError):
    """A workload description or trace that makes no sense; the message names the field and what it should be."""


class RecordingError(WorkloadError):
    """A recorded file that a form of a workload names, and that cannot be read."""
