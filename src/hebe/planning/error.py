"""The error of a planning problem that makes no sense or has no answer."""


class PlanningError(ValueError):
    """Figures that contradict themselves, or a demand that nothing can meet; the message names the field or the
    binding constraint, and what to do."""
