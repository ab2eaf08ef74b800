"""What `hebe serve --profile` refuses before anything starts."""

from dataclasses import replace

import pytest
from tests.examples.profiles import profile

from hebe.cli.main import main
from hebe.profiling.files.server_profile import write_server_profile


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
