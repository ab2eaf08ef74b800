import re
import tomllib

import pytest
import tomli_w

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.colocation_plan import read_colocation_plan
from tests.examples.colocation_files import plan_file


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return plan_file(tmp_path_factory.mktemp("plan")).read_text()


@pytest.fixture
def plan(written, tmp_path):
    path = tmp_path / "shared.toml"
    path.write_text(written)
    return path


def content(plan):
    return tomllib.loads(plan.read_text())


def test_reads_what_the_planner_wrote(plan, tmp_path):
    found = read_colocation_plan(plan)
    assert found.demand_qps == {"filter": 4000.0, "ranker": 60.0}
    assert found.servers == 8
    shared, single = found.groups
    assert shared.servers == 7
    assert [(tenant.model, tenant.workers, tenant.cache_ways) for tenant in shared.tenants] == [
        ("filter", 1, 1),
        ("ranker", 1, 1),
    ]
    assert [(tenant.model, tenant.workers, tenant.qps) for tenant in single.tenants] == [("filter", 2, 2000.0)]
    assert found.scalability["ranker"].qps == (10.0, 11.0)
    assert found.server_type is None
    assert found.profiles == tmp_path / "scalability.csv"


def test_an_older_plan_does_not_say_from_what_it_was_made(plan):
    older = content(plan)
    for field in ("made_from", "over_provision_rate", "planned_qps"):
        older.pop(field)
    plan.write_text(tomli_w.dumps(older))
    assert read_colocation_plan(plan).profiles is None


def set_at(table, place, value):
    """Change, or take away where the value is None, what lies at this place of nested tables and arrays."""
    *path, last = place
    for step in path:
        table = table[step]
    if value is None:
        del table[last]
    else:
        table[last] = value


TENANT = {"model": "filter", "workers": 1, "cores_per_worker": 1, "cache_ways": 1, "qps": 1.0}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["kind"], "pool", "kind 'pool', version 2: must be kind 'colocation', version 2, as hebe plan colocate"),
        (["version"], 1, "kind 'colocation', version 1: must be kind 'colocation', version 2, as hebe plan colocate"),
        (["demand_qps"], None, "[demand_qps] is missing"),
        (["demand_qps", "ranker"], "many", "demand_qps: ranker is 'many': must be a number"),
        (["demand_qps", "ranker"], -1.0, "demand_qps: ranker is -1.0: must be a finite number of at least 0"),
        (["demand_qps"], {"ranker": 0.0}, "demand_qps: is 0 for every model"),
        (["demand_qps", "other"], 5.0, "demand_qps of other is 5, but no group has it with qps above 0"),
        (["server"], None, "[server] is missing"),
        (["server", "cores"], 0, "server: cores is 0: must be at least 1"),
        (["server", "cores"], 1, "group 1: workers x cores_per_worker add up to 2: the server has 1 cores"),
        (["group", 0, "tenant", 0, "cores_per_worker"], 2, "group 1: workers x cores_per_worker add up to 3: the"),
        (["group", 0, "tenant", 0, "cores_per_worker"], None, "group 1: tenant 1: cores_per_worker is missing"),
        (
            ["scalability", 0, "cores_per_worker"], 2,
            "group 1: cores_per_worker of filter is 1: its scalability is of workers with 2",
        ),
        (["server", "cache_ways"], 1, "group 1: cache_ways add up to 2: the server has 1 cache_ways"),
        (["server", "server_type"], 3, "server: server_type is 3: must be a name"),
        (["group"], None, "[[group]] is missing"),
        (["group"], [], "[[group]] is missing"),
        (["group", 0, "servers"], 0, "group 1: servers is 0: must be at least 1"),
        (["group", 0, "servers"], 1.5, "group 1: servers is 1.5: must be a whole number"),
        (["group", 1, "tenant"], None, "group 2: [[tenant]] is missing"),
        (["group", 0, "tenant", 1, "workers"], None, "group 1: tenant 2: workers is missing"),
        (["group", 0, "tenant", 0, "cache_ways"], 0, "group 1: tenant 1: cache_ways is 0: must be at least 1"),
        (["group", 0, "tenant", 1, "qps"], float("nan"), "group 1: tenant 2: qps is nan: must be a finite number"),
        (["group", 0, "tenant", 1, "qps"], 0.0, "demand_qps of ranker is 60, but no group has it with qps above 0"),
        (["group", 0, "tenant", 1], TENANT, "group 1: tenant 2: model filter is on this server already"),
        (["scalability"], None, "[[scalability]] is missing"),
        (["scalability", 1, "workers"], [2, 1], "scalability 2: scalability profile of ranker: workers is [2, 1]"),
        (["scalability", 1, "model"], "filter", "scalability 2: model filter is given twice"),
        (["scalability", 1, "model"], "other", "scalability of ranker is missing: what it does alone is needed"),
        (["made_from", "profiles"], 7, "made_from: profiles is 7: must be the name of a file"),
        (["policies"], "optimal", "unknown field 'policies': known are kind, version"),
        (["server", "core"], 4, "server: unknown field 'core': known are server_type, cores"),
        (["group", 0, "server"], 2, "group 1: unknown field 'server': known are servers, utilization, tenant"),
        (["group", 0, "tenant", 1, "ways"], 2, "group 1: tenant 2: unknown field 'ways': known are model, workers"),
        (["made_from"], "here", "made_from is 'here': must be a table of files"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(plan, place, value, message):
    changed = content(plan)
    set_at(changed, place, value)
    plan.write_text(tomli_w.dumps(changed))
    with pytest.raises(PlanFileError, match=re.escape(message)) as fault:
        read_colocation_plan(plan)
    assert str(fault.value).startswith(str(plan))


def test_a_file_that_is_no_plan(tmp_path):
    with pytest.raises(PlanFileError, match=r"none\.toml: cannot be read"):
        read_colocation_plan(tmp_path / "none.toml")
    (tmp_path / "cut.toml").write_text('kind = "colo')
    with pytest.raises(PlanFileError, match=r"cut\.toml: cannot be read"):
        read_colocation_plan(tmp_path / "cut.toml")
