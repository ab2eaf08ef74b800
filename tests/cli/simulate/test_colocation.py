"""`hebe simulate --plan` of a plan of `hebe plan colocate`, as a user runs it: the docs' example, and a plan from
profiles that `hebe profile` wrote."""

import json
import math
import tomllib
from dataclasses import replace

import pytest
import tomli_w

from hebe.cli.main import main
from hebe_lab.baselines.closed_forms import mdc_latency_s
from tests.examples.colocation_files import TARGETS, plan_file, times_file
from tests.examples.pool_files import write
from tests.examples.server_profiles import ON_HOST, PIPELINE, profile_file, scaling

RUN = [*TARGETS, "--queries", "2000"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return plan_file(tmp_path_factory.mktemp("plan")).read_text()


@pytest.fixture
def example(written, tmp_path):
    """The docs' example planned, and service times that go with it."""
    times_file(tmp_path)
    plan = tmp_path / "shared.toml"
    plan.write_text(written)
    write(tmp_path / "scalability.csv", ["model,workers,cache_ways,qps,bandwidth_bytes_per_s"])
    return plan


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def simulated(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    return result, {each["model"]: each for each in result["models"]}, err


def fault(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert not out
    return " ".join(err.split()).removeprefix("error: ")


def changed(plan, change):
    """The plan with its content changed."""
    content = tomllib.loads(plan.read_text())
    change(content)
    plan.write_text(tomli_w.dumps(content))


@pytest.mark.usefixtures("example")
def test_a_plan_keeps_its_targets_at_its_demand(capsys, tmp_path):
    result, models, shown = simulated(capsys, "times.csv", "--plan", "shared.toml", *RUN, "--page", "run.html")
    assert (result["kind"], result["servers"], result["load_factor"], result["all_held"]) == ("colocation", 8, 1, True)
    ranker = models["ranker"]
    assert (ranker["sla_ms"], ranker["percentile"], ranker["queries"], ranker["runs_held"]) == (300, 95, 2000, 3)
    assert ranker["demand_qps"] == ranker["load_qps"] == 60
    assert ranker["throughput_qps"]["value"] == pytest.approx(60, rel=0.1)
    assert ranker["capacity_qps"] == pytest.approx(7 * 8.924, rel=1e-3)
    assert models["filter"]["capacity_qps"] == pytest.approx(7 * 499.8 + 2000, rel=1e-3)
    shared, single = result["groups"]
    assert (shared["servers"], single["servers"]) == (7, 1)
    assert [each["model"] for each in shared["tenants"]] == ["filter", "ranker"]
    on_seven = shared["tenants"][1]
    assert (on_seven["workers"], on_seven["cache_ways"]) == (1, 1)
    # Work that comes is work that is done.
    expected = 60 * 0.06 * on_seven["slowdown"] / 7
    assert on_seven["utilisation"]["value"] == pytest.approx(expected, rel=0.1)
    for words in ("At the planned demand, all models keep the SLA target on 8 servers.", "p95 300 ms", "1 / 1", "fcfs"):
        assert words in shown
    page = (tmp_path / "run.html").read_text()
    assert page.count("<svg") == 4
    for words in ("all models keep the SLA target", "Tail latency over its bound", "ranker: latency by percentile"):
        assert words in page
    assert result["page"] == "run.html"


@pytest.mark.usefixtures("example")
def test_half_of_the_cache_makes_a_model_slower_and_a_second_worker_alone_does_not(capsys):
    """`filter` does half with one way; two workers do twice as much, so they are not slowed down by each other."""
    result, _, _ = simulated(capsys, "times.csv", "--plan", "shared.toml", *RUN, "--seeds", 1)
    (shared, _), (single,) = (group["tenants"] for group in result["groups"])
    assert shared["slowdown"] == pytest.approx(1.6, rel=0.05)
    assert single["slowdown"] == pytest.approx(1.0, abs=0.15)


@pytest.mark.usefixtures("example")
def test_too_much_load_shows_in_attainment(capsys):
    result, models, shown = simulated(capsys, "times.csv", "--plan", "shared.toml", *RUN, "--load-factor", 2)
    assert not result["all_held"]
    assert models["ranker"]["load_qps"] == 120
    assert models["ranker"]["attainment"]["value"] < 0.3
    assert models["ranker"]["runs_held"] == 0
    assert models["ranker"]["throughput_qps"]["value"] < 115
    assert result["groups"][0]["tenants"][1]["utilisation"]["value"] > 0.95
    shown = " ".join(shown.split())
    assert "At 2 x the demand, the SLA target is not kept by ranker: plan with a larger --over-provision." in shown


@pytest.mark.usefixtures("example")
def test_the_same_seed_gives_the_same_and_a_policy_can_be_chosen(capsys):
    asked = ("times.csv", "--plan", "shared.toml", *RUN, "--seeds", 1)
    first, again = simulated(capsys, *asked)[0], simulated(capsys, *asked)[0]
    assert first == again
    other, models, _ = simulated(capsys, *asked, "--policy", "matching")
    assert models["ranker"]["policy"] == {"name": "matching"}
    assert other["models"] != first["models"]


def test_what_waits_is_what_theory_says(capsys, example):
    """One server alone with one worker and constant service: the M/D/1 queue."""

    def alone(content):
        content["demand_qps"] = {"ranker": 12.0}
        tenant = {"model": "ranker", "workers": 1, "cores_per_worker": 1, "cache_ways": 2, "qps": 10.0}
        content["group"] = [{"servers": 1, "utilization": 1.0, "tenant": [tenant]}]

    changed(example, alone)
    write(example.parent / "times.csv", ["model,server_type,items,ms_0,ms_1,ms_2", "ranker,cpu,10,60,60,60"])
    result, models, _ = simulated(
        capsys, "times.csv", "--plan", "shared.toml", "--sla-ms", 300, *TARGETS[2:], "--queries", 20000, "--seeds", 1
    )
    assert result["groups"][0]["tenants"][0]["slowdown"] == pytest.approx(1.0)
    assert result["groups"][0]["tenants"][0]["utilisation"]["value"] == pytest.approx(12 * 0.06, rel=0.03)
    mean_wait_s = mdc_latency_s(12.0, 0.06, 1) - 0.06
    # Beyond its probability of 0.72 the wait is nearly exponential.
    tail_s = 0.06 + mean_wait_s / 0.72 * math.log(0.72 / 0.05)
    assert models["ranker"]["tail_ms"]["value"] == pytest.approx(1e3 * tail_s, rel=0.15)


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("factor", "stretch", "words"),
    [
        (2.5, 0.41, "ranker: the 10 queries/s that 1 worker alone served by its scalability profile cannot be with"),
        (0.5, 2.1, "ranker: the 10 queries/s that 1 worker alone served by its scalability profile could be with"),
    ],
)
def test_service_times_that_the_throughputs_cannot_be_of_are_told(capsys, tmp_path, factor, stretch, words):
    times_file(tmp_path, {"filter": 0.7, "ranker": 60.0 * factor})
    _, models, shown = simulated(capsys, "times.csv", "--plan", "shared.toml", *RUN, "--seeds", 1, "--page", "run.html")
    assert models["ranker"]["alone"]["stretch"] == pytest.approx(stretch, rel=0.1)
    assert words in " ".join(shown.split())
    assert words in (tmp_path / "run.html").read_text()
    assert "filter: the" not in shown
    assert "larger --over-provision" not in shown


def test_models_without_demand_are_left_out(capsys, example):
    changed(example, lambda content: content["demand_qps"].update(filter=0.0))
    result, models, shown = simulated(capsys, "times.csv", "--plan", "shared.toml", *TARGETS[2:], "--sla-ms", 300)
    assert set(models) == {"ranker"}
    assert [len(group["tenants"]) for group in result["groups"]] == [1, 0]
    assert "ranker keeps the SLA target" in shown


def test_the_plan_says_of_which_type_its_servers_are(capsys, example, tmp_path):
    times_file(tmp_path, types=("gpu", "cpu"))
    message = fault(capsys, "times.csv", "--plan", "shared.toml", *RUN)
    assert "has service times of filter on gpu, cpu, and shared.toml does not say of which type" in message
    changed(example, lambda content: content["server"].update(server_type="cpu"))
    assert simulated(capsys, "times.csv", "--plan", "shared.toml", *RUN)[0]["all_held"]
    changed(example, lambda content: content["server"].update(server_type="big"))
    message = fault(capsys, "times.csv", "--plan", "shared.toml", *RUN)
    assert "no service times of filter on big, which the plan uses for filter" in message


@pytest.mark.usefixtures("example")
def test_what_is_missing_is_named(capsys, tmp_path):
    times_file(tmp_path, {"filter": 0.7}, name="one.csv")
    asked = ("--plan", "shared.toml", *RUN)
    assert fault(capsys, "one.csv", *asked) == "one.csv: holds no model ranker: there are filter"
    assert "shared.toml: scalability.csv, which it was made from, has throughputs and no service times" in fault(
        capsys, *asked
    )
    assert "no SLA target of filter: give --sla-ms" in fault(capsys, "times.csv", "--plan", "shared.toml")
    assert "--sla-ms is 0.5: below the fastest service time of filter" in fault(
        capsys, "times.csv", "--plan", "shared.toml", "--sla-ms", "filter=0.5,ranker=300", "--sizes", "fixed:10"
    )


def test_a_fleet_too_large_to_simulate_is_refused(capsys, example):
    changed(example, lambda content: content["group"][0].update(servers=20_000))
    message = fault(capsys, "times.csv", "--plan", "shared.toml", *RUN)
    assert message == "shared.toml: filter has 20,002 workers: at most 10,000 are simulated"


def test_a_scalability_profile_without_throughput_is_refused(capsys, example):
    def nothing(content):
        profile = content["scalability"][1]
        profile["qps"] = [0.0, 0.0]
        profile["qps_by_cache_ways"] = [[], [0.0, 0.0]]

    changed(example, nothing)
    message = fault(capsys, "times.csv", "--plan", "shared.toml", *RUN)
    assert message == "shared.toml: scalability of ranker: qps is 0 throughout, but a group serves it"


def test_profiles_that_hebe_profile_wrote_say_all_that_is_needed(capsys, tmp_path):
    """Of servers of two workers: alone with both a query takes as long as the profile says."""
    write(tmp_path / "server.csv", ["cores,cache_ways,bandwidth_bytes_per_s", "2,2,1e10"])
    write(tmp_path / "demand.csv", ["model,qps", "m,700", "n,200"])
    folder = tmp_path / "profiles"
    lanes = (replace(ON_HOST, workers=2, batch_size=64),)
    for model, qps in (("m", (150.0, 350.0)), ("n", (120.0, 150.0))):
        profile_file(folder / f"{model}.json", model=model, lanes=lanes, scalability=scaling(model, qps), item_s=5e-5)
    with pytest.raises(SystemExit):
        main(["plan", "colocate", "profiles", "server.csv", "demand.csv", "--plan", "plans/shared.toml",
              "--policy", "one-model-a-server", "--over-provision", "0.1"])  # fmt: skip
    capsys.readouterr()
    result, models, _ = simulated(
        capsys, "--plan", "plans/shared.toml", "--sizes", "fixed:64", "--queries", 2000, "--seeds", 1
    )
    assert models["m"]["sla_ms"] == 20
    assert models["m"]["alone"]["workers"] == 2
    tenants = {each["model"]: each for group in result["groups"] for each in group["tenants"]}
    assert tenants["m"]["workers"] == 2
    assert tenants["m"]["slowdown"] == pytest.approx(1.0)
    assert tenants["n"]["slowdown"] == pytest.approx(1.0)
    assert result["servers"] == 5  # 770 / 350 and 220 / 150
    busy = 700 * (1e-3 + 64 * 5e-5) / 6
    assert tenants["m"]["utilisation"]["value"] == pytest.approx(busy, rel=0.1)
    assert result["all_held"]

    profile_file(folder / "n.json", model="n", lanes=(PIPELINE,), scalability=scaling("n", (120.0, 150.0)))
    assert "n on cpu runs as pipeline-on-host, in stages" in fault(capsys, "--plan", "plans/shared.toml")
    (folder / "n.json").unlink()
    assert "profiles: holds no model n" in fault(capsys, "--plan", "plans/shared.toml")


def test_an_sla_target_that_is_asked_for_changes_no_slowdown(capsys, tmp_path):
    """The throughputs that slowdowns are told from are the limits at the profiled target."""
    write(tmp_path / "server.csv", ["cores,cache_ways,bandwidth_bytes_per_s", "2,2,3e9"])
    write(tmp_path / "demand.csv", ["model,qps", "m,700", "n,200"])
    for model, qps in (("m", (150.0, 350.0)), ("n", (120.0, 150.0))):
        profile_file(
            tmp_path / "profiles" / f"{model}.json", model=model, lanes=(replace(ON_HOST, workers=2),),
            scalability=scaling(model, qps), item_s=5e-5,
        )  # fmt: skip
    with pytest.raises(SystemExit):
        main(["plan", "colocate", "profiles", "server.csv", "demand.csv"])
    capsys.readouterr()
    asked = ("--plan", "shared.toml", "--sizes", "fixed:64", "--queries", 2000, "--seeds", 1)
    slowdowns = []
    for more in ((), ("--sla-ms", 8), ("--sla-ms", 60)):
        result, models, _ = simulated(capsys, *asked, *more)
        slowdowns.append([each["slowdown"] for group in result["groups"] for each in group["tenants"]])
        assert models["m"]["sla_ms"] == (more[1] if more else 20)
    assert max(slowdowns[0]) > 1.05
    assert slowdowns[1] == slowdowns[2] == slowdowns[0]
