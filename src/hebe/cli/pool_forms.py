"""The short forms in which a command line names pools and distribution policies: `gpu=1,cpu=13`, `threshold:300`."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from hebe.planning.pool_problem import PoolProblem
from hebe.simulation.policy_choice import PolicyChoice, PolicyKind, policy_for_pool


def parse_counts(text: str, option: str) -> dict[str, int]:
    """Counts by server type from `TYPE=COUNT,TYPE=COUNT`. Wrong usage of `option` if it is none."""
    counts: dict[str, int] = {}
    for entry in text.split(","):
        name, equals, number = (part.strip() for part in entry.rpartition("="))
        if not equals or not name or not number.isascii() or not number.isdigit():
            raise typer.BadParameter(f"{entry.strip()!r}: must be TYPE=COUNT, separated by commas", param_hint=option)
        if name in counts:
            raise typer.BadParameter(f"server type {name} is given twice", param_hint=option)
        if len(number) > 9:
            raise typer.BadParameter(f"{name}={number}: at most 999,999,999", param_hint=option)
        counts[name] = int(number)
    return counts


def parse_types(text: str, option: str) -> list[str]:
    """Names of server types, separated by commas, each once. Wrong usage of `option` otherwise."""
    names = [name.strip() for name in text.split(",")]
    for at, name in enumerate(names):
        if not name:
            raise typer.BadParameter(f"{text!r}: must be names separated by commas", param_hint=option)
        if name in names[:at]:
            raise typer.BadParameter(f"server type {name} is given twice", param_hint=option)
    return names


def parse_policy(form: str) -> tuple[PolicyKind, int | None]:
    """The policy that the form of `--policy` names, and the threshold that it may have: `threshold:ITEMS`.
    Wrong usage if it names none."""
    name, colon, items = form.strip().partition(":")
    if name not in list(PolicyKind) or (colon and name != PolicyKind.THRESHOLD):
        forms = (f"{kind}[:ITEMS]" if kind is PolicyKind.THRESHOLD else str(kind) for kind in PolicyKind)
        raise typer.BadParameter(f"{form!r}: must be one of {', '.join(forms)}", param_hint="--policy")
    if colon and not (items.isascii() and items.isdigit() and len(items) <= 9):
        raise typer.BadParameter(f"{form!r}: must be threshold:ITEMS, a whole number", param_hint="--policy")
    return PolicyKind(name), int(items) if colon else None


def choose_policy(form: str, problem: PoolProblem, counts: Sequence[int]) -> PolicyChoice:
    """The policy that the form of `--policy` names, with parameters that fit the pool."""
    kind, threshold_items = parse_policy(form)
    return policy_for_pool(kind, problem, counts, threshold_items)
