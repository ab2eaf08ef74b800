"""What `hebe serve --profile` refuses before anything starts."""

from dataclasses import replace

import pytest

from hebe.cli.main import main
from hebe.cli.serve_profiles import keys_of
from hebe.profiling.server_profile import write_server_profile
from hebe.workload.forms import key_skew

from ..profiling.profiles import profile


@pytest.mark.parametrize("option", ["--workers=2", "--worker-cores=1", "--worker-threads=1", "--batch-size=256"])
def test_an_option_that_a_profile_decides_is_wrong_usage_even_at_its_default(tmp_path, capsys, option):
    with pytest.raises(SystemExit) as end:
        main(["serve", str(tmp_path), "--profile", "ranker.json", option])
    assert end.value.code == 2
    assert f"so does {option.partition('=')[0]}: leave one of them out" in " ".join(capsys.readouterr().err.split())


def test_a_profile_that_does_not_fit_ends_it_with_a_line(tmp_path, capsys):
    repository, path = tmp_path / "models", tmp_path / "dlrm.json"
    repository.mkdir()
    write_server_profile(path, replace(profile(), strategy="random"))
    with pytest.raises(SystemExit) as end:
        main(["serve", str(repository), "--profile", str(path)])
    assert end.value.code == 1
    assert f"{path}: the profile is of dlrm, which {repository} does not have" in capsys.readouterr().err


def with_load(load):
    return replace(profile(), subject=replace(profile().subject, load=load))


@pytest.mark.parametrize("keys", ["uniform", "zipf:1.05", "reuse"])
@pytest.mark.parametrize("quick", ["", ", quick"])
def test_the_rows_that_a_load_looked_up_are_told_by_its_words(keys, quick):
    made = with_load(f"sizes production, arrivals poisson, keys {keys}, seed 3{quick}")
    assert keys_of(made) == key_skew(keys)


@pytest.mark.parametrize(
    ("load", "says"),
    [("by hand", "names no keys"), (", keys zipf:much, seed 0", "zipf"), (", keys reuse:gone.csv, seed 0", "gone.csv")],
)
def test_a_load_that_names_no_keys_is_told(load, says):
    with pytest.raises(ValueError, match=says):
        keys_of(with_load(load))
