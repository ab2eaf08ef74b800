"""Options that contradict each other are refused before anything is loaded."""

import pytest
import typer

from hebe.cli.terminal.options import load_options


def test_a_bound_of_table_memory_and_tiers_contradict_each_other(tmp_path):
    file = tmp_path / "tiers.toml"
    bound = "eager", "1G", tmp_path / "stores", file, "fp32"
    file.write_text('[volatile_db]\ntype = "parallel_hash_map"\n')
    with pytest.raises(typer.BadParameter, match="has tiers, through which all tables are read: leave --table-memory"):
        load_options(*bound)
    assert load_options("eager", None, None, file, "fp32").hierarchy.is_tiered
    file.write_text(f'[update_source]\ntype = "log_directory"\naddress = "{tmp_path}"\n')
    assert load_options(*bound).table_memory_bytes == 1 << 30, "updates alone are no tiers"


def test_a_bound_of_table_memory_needs_a_place_for_the_rest(tmp_path):
    for bound, place in (("1G", None), (None, tmp_path)):
        with pytest.raises(typer.BadParameter, match="belong together"):
            load_options("eager", bound, place, None, "fp32")
