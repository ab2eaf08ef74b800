"""What all plan files have in common: the kind, and the files that they name."""

import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.plan_content import file_made_from, plan_kind, read_plan


@pytest.mark.parametrize("kind", ["pool", "provisioning", "colocation"])
def test_a_plan_says_its_kind(tmp_path, kind):
    plan = tmp_path / "plan.toml"
    plan.write_text(f'\ufeffkind = "{kind}"\nversion = 1\n', encoding="utf-8")
    assert plan_kind(plan) == kind
    assert read_plan(plan, kind, 1) == {"kind": kind, "version": 1}
    with pytest.raises(PlanFileError, match=rf"version 1: must be kind '{kind}', version 2, as hebe plan p?"):
        read_plan(plan, kind, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "figures"', "kind is 'figures': must be a plan to simulate: 'pool' (hebe plan pool), 'provisioning'"),
        ("a = 1", "kind is None: must be a plan"),
        ('kind = ["pool"]', "kind is ['pool']: must be a plan"),
        ("kind = ", "cannot be read"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, text, message):
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    with pytest.raises(PlanFileError) as fault:
        plan_kind(plan)
    assert message in str(fault.value)


def test_a_plan_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PlanFileError, match=r"gone\.toml: cannot be read: No such file"):
        plan_kind(tmp_path / "gone.toml")


def test_what_a_plan_was_made_from(tmp_path):
    plan = tmp_path / "plans" / "day.toml"
    assert file_made_from(plan, {}, "efficiency") is None
    assert file_made_from(plan, {"made_from": {"loads": "x.csv"}}, "efficiency") is None
    found = file_made_from(plan, {"made_from": {"efficiency": "../e.csv"}}, "efficiency")
    assert found == tmp_path / "plans" / ".." / "e.csv"
    for wrong, message in (([], r"made_from is \[\]"), ({"efficiency": 3}, "made_from: efficiency is 3")):
        with pytest.raises(PlanFileError, match=message):
            file_made_from(plan, {"made_from": wrong}, "efficiency")
