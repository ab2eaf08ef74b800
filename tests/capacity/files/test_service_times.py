"""Service times from files: samples, latency profiles, and what `hebe profile` wrote."""

import json
from dataclasses import replace

import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.service_times import read_prices, read_service_times
from hebe.profiling.files.server_profile import write_server_profile
from tests.examples.pool_files import samples, write
from tests.examples.server_profiles import ON_HOST, PIPELINE, profile_file, server_profile


def test_what_hebe_profile_wrote_is_service_times(tmp_path):
    path = profile_file(tmp_path / "p" / "cpu.json")
    profile_file(tmp_path / "p" / "gpu.json", server="gpu", fixed_s=4e-3, item_s=1e-5, lanes=(ON_HOST,))
    one, both = read_service_times([path], None), read_service_times([tmp_path / "p"], None)
    assert (one.model, one.table.types, one.files) == ("m", ("cpu",), (path,))
    assert (both.table.types, both.workers_per_server) == (("cpu", "gpu"), (2, 2))
    mean_s = one.table.mean_s[0]
    assert mean_s[[0, 15, 39, 63]] == pytest.approx([1.1e-3, 2.6e-3, 5e-3, 7.4e-3])
    # beyond the batch size: its parts one after another
    assert one.table.largest == 4096
    assert mean_s[[64, 99, 127, 128]] == pytest.approx([8.5e-3, 12e-3, 14.8e-3, 15.9e-3])
    spread_s = one.table.profile("cpu", [64, 128]).spread_s
    assert spread_s[1] == pytest.approx(2**0.5 * spread_s[0], rel=0.01)
    assert both.of_types(["gpu"], "").workers_per_server == (2,)


def test_profiles_of_both_kinds_go_together(tmp_path):
    profile_file(tmp_path / "cpu.json")
    sizes = list(range(1, 101))
    fields = {"batch_sizes": sizes, "service_s": [size * 1e-3 for size in sizes], "spread_s": [0.0] * len(sizes)}
    (tmp_path / "gpu.json").write_text(json.dumps([{"model": "m", "server_type": "gpu", **fields}]))
    times = read_service_times([tmp_path / "cpu.json", tmp_path / "gpu.json"], None)
    assert times.table.types == ("cpu", "gpu")
    assert times.workers_per_server == (2, 1)
    assert times.table.largest == 100
    (tmp_path / "gpu.json").write_text(json.dumps([{"model": "m", "server_type": "cpu", **fields}]))
    with pytest.raises(PlanFileError, match=r"gpu\.json: line 1, profile 1: m on cpu is given twice, before"):
        read_service_times([tmp_path / "cpu.json", tmp_path / "gpu.json"], None)


def test_a_type_whose_profile_is_no_one_number_is_told_when_it_is_asked_for(tmp_path):
    profile_file(tmp_path / "p" / "a.json")
    profile_file(tmp_path / "p" / "b.json", server="gpu", lanes=(PIPELINE,))
    profile_file(tmp_path / "p" / "c.json", server="both", lanes=(ON_HOST, ON_HOST))
    profile_file(tmp_path / "p" / "d.json", model="other", lanes=(PIPELINE,))
    times = read_service_times([tmp_path / "p"], "m")
    assert times.of_types(["cpu"], "").table.types == ("cpu",)
    with pytest.raises(PlanFileError) as fault:
        times.of_types(["gpu"], "the pool has")
    assert str(fault.value) == (
        f"{tmp_path}/p/b.json: m on gpu runs as pipeline-on-host, in stages that work side by side or fuse queries: how"
        " long a query takes there is not one number by its size; profile it with --placement model-on-host, or plan by"
        " its throughput: hebe plan provision"
    )
    with pytest.raises(PlanFileError, match="m on both runs in two lanes, with service times of their own: how long"):
        times.of_types(["both"], "the pool has")
    with pytest.raises(PlanFileError, match="other on cpu runs as pipeline-on-host"):
        read_service_times([tmp_path / "p"], "other")
    with pytest.raises(PlanFileError, match="holds several models: choose one by model: m, other"):
        read_service_times([tmp_path / "p"], None)


def test_bad_profiles_are_named_by_file_and_field(tmp_path):
    path = profile_file(tmp_path / "p" / "a.json")
    profile_file(tmp_path / "p" / "b.json")
    with pytest.raises(PlanFileError, match=r"p/b\.json: m on cpu is given twice, before in .*p/a\.json"):
        read_service_times([tmp_path / "p"], None)
    with pytest.raises(PlanFileError, match=r"p/b\.json: m on cpu is given twice, before in .*p/a\.json"):
        read_service_times([path, tmp_path / "p" / "b.json"], None)
    path.write_text(path.read_text().replace('"spread_s"', '"spread"'))
    with pytest.raises(PlanFileError, match=r"p/a\.json: latency profile: field 'spread_s' is missing"):
        read_service_times([path], None)
    path.write_text('{"kind": "plan"}')
    with pytest.raises(PlanFileError, match=r"p/a\.json: kind 'plan', format None: must be kind 'server profile'"):
        read_service_times([path], None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanFileError, match=r"empty: holds no profile \(\*\.json\) of hebe profile"):
        read_service_times([tmp_path / "empty"], None)
    with pytest.raises(PlanFileError, match="or directories of profiles that hebe profile wrote"):
        read_service_times([tmp_path / "empty", write(tmp_path / "t.csv", samples())], None)


def test_remarks_are_of_the_types_that_are_looked_at(tmp_path):
    made = server_profile(lanes=(replace(ON_HOST, workers=8),))
    write_server_profile(tmp_path / "p" / "one.json", replace(made, subject=replace(made.subject, load="any")))
    profile_file(tmp_path / "p" / "two.json", server="gpu", lanes=(replace(ON_HOST, workers=1),))
    times = read_service_times([tmp_path / "p"], None)
    assert len(times.remarks) == 1
    assert f"{tmp_path}/p/one.json: m on cpu: " in times.remarks[0]
    assert times.of_types(["gpu"], "").remarks == []


def stated(folder, *lines):
    text = '[[profile]]\nmodel = "m"\nserver_type = "cpu"\nbatch_sizes = [1, 10]\nservice_s = [0.001, 0.004]\n'
    return write(folder / "stated.toml", [text + "spread_s = [0.0, 0.0]", *lines])


def test_a_latency_profile_may_say_at_how_many_queries_a_server_works(tmp_path):
    assert read_service_times([stated(tmp_path)], None).workers_per_server == (1,)
    times = read_service_times([stated(tmp_path, "workers = 6")], None)
    assert times.workers_per_server == (6,)
    assert times.table.mean_s[0, [0, 9]] == pytest.approx([1e-3, 4e-3])


def test_estimates_are_told_of_the_types_that_are_looked_at(tmp_path):
    measured = stated(tmp_path).read_text()
    assert read_service_times([stated(tmp_path, "estimated = false")], None).remarks == []
    times = read_service_times([stated(tmp_path, "estimated = true", measured.replace("cpu", "gpu"))], None)
    assert times.remarks == ["Service times of m on cpu are estimated, not measured."]
    assert times.of_types(["gpu"], "").remarks == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("workers = 0", "workers is 0: must be 1 to 768"),
        ("workers = 1000", "workers is 1,000: must be 1 to 768"),
        ("workers = 2.5", "workers is 2.5: must be a whole number"),
        ("workers = true", "workers is True: must be a finite number"),
        ("estimated = 3", "estimated is 3: must be true or false"),
        ("worker = 3", "unknown field 'worker'"),
    ],
)
def test_what_a_latency_profile_says_wrongly_is_named(tmp_path, line, message):
    with pytest.raises(PlanFileError, match=rf"stated\.toml: line 1, profile 1: {message}"):
        read_service_times([stated(tmp_path, line)], None)


def test_samples_that_cannot_be_used_are_told_in_the_words_of_their_reader(tmp_path):
    with pytest.raises(PlanFileError, match=r"a\.csv: line 14: ms_2 is '-3': must be a number of milliseconds"):
        read_service_times([write(tmp_path / "a.csv", [*samples(), "m,gpu,70,1,2,-3,4,5"])], None)
    with pytest.raises(PlanFileError, match=r"b\.csv: has no m on cpu at 1 items, which .*a\.csv has in line"):
        read_service_times([write(tmp_path / "a.csv", samples()), write(tmp_path / "b.csv", samples("n"))], "m")


def test_prices_are_by_server_type_or_in_kairos_words(tmp_path):
    ours = write(tmp_path / "ours.csv", ["server_type,price_per_hour", "gpu,0.5", "cpu,0.1"])
    theirs = write(tmp_path / "theirs.csv", ["instance,price", "gpu,0.5", "cpu,0.1"])
    assert read_prices(ours) == read_prices(theirs) == {"gpu": 0.5, "cpu": 0.1}
    with pytest.raises(PlanFileError, match=r"theirs\.csv: line 3: instance gpu is given twice"):
        read_prices(write(theirs, ["instance,price", "gpu,0.5", "gpu,0.1"]))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "prices.csv: holds no price entries"),
        (["gpu,"], "prices.csv: line 2: price_per_hour is missing"),
        (["gpu,0"], "prices.csv: line 2: price_per_hour is '0': must be a finite number of more than 0"),
        (["gpu,-1"], "prices.csv: line 2: price_per_hour is '-1': must be a finite number of more than 0"),
        (["gpu,1e-20"], "prices.csv: line 2: price_per_hour is '1e-20': must lie between 1e-15 and 1e+15"),
        (["gpu,nan"], "prices.csv: line 2: price_per_hour is 'nan'"),
        (["gpu,-1"], "prices.csv: line 2: price_per_hour is '-1'"),
        (["gpu,1", "gpu,2"], "prices.csv: line 3: server_type gpu is given twice"),
    ],
)
def test_bad_prices_are_named(tmp_path, lines, message):
    with pytest.raises(PlanFileError) as fault:
        read_prices(write(tmp_path / "prices.csv", ["server_type,price_per_hour", *lines]))
    assert message in str(fault.value)


def test_an_unknown_column_of_prices_is_named(tmp_path):
    with pytest.raises(PlanFileError, match="unknown field 'price': known are server_type, price_per_hour"):
        read_prices(write(tmp_path / "prices.csv", ["server_type,price", "gpu,0.5"]))
