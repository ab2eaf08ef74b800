"""Distribution policies and pools as they are asked for: `threshold:300`, `{"gpu": 1, "cpu": 13}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hebe.capacity.errors import ArgumentError
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind, policy_for_pool


def parse_policy(form: str) -> tuple[PolicyKind, int | None]:
    """The policy that a form names, and the threshold that it may have: `threshold:ITEMS`. Raises `ArgumentError` for
    `policy` if it names none."""
    name, colon, items = form.strip().partition(":")
    if name not in list(PolicyKind) or (colon and name != PolicyKind.THRESHOLD):
        forms = (f"{kind}[:ITEMS]" if kind is PolicyKind.THRESHOLD else str(kind) for kind in PolicyKind)
        raise ArgumentError("policy", f"{form!r}: must be one of {', '.join(forms)}")
    if colon and not (items.isascii() and items.isdigit() and len(items) <= 9):
        raise ArgumentError("policy", f"{form!r}: must be threshold:ITEMS, a whole number")
    return PolicyKind(name), int(items) if colon else None


def choose_policy(form: str, problem: PoolProblem, counts: Sequence[int]) -> PolicyChoice:
    """The policy that a form names, with parameters that fit the pool."""
    kind, threshold_items = parse_policy(form)
    return policy_for_pool(kind, problem, counts, threshold_items)


def check_counts(field: str, counts: Mapping[str, int]) -> None:
    """Raises `ArgumentError` unless every server type has a whole number of at least 0."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ArgumentError(field, f"{name} is {count!r}: must be a whole number of at least 0")
