from hebe.models.catalog.layout import plain
from hebe.models.catalog.paper_table import PaperTable

TABLE = PaperTable("A paper, Table 1", "At p95.", "Dots.", "dot", prefix="paper-")


def test_an_entry_has_what_its_table_says_of_all_and_what_is_its_own():
    spec = TABLE.entry("wnd", plain([70], 4, 2), 25.0, "Mine.", architecture="wide-and-deep", towers={"deep": (8,)})
    assert (spec.name, spec.size, spec.source) == ("paper-wnd", "production", "A paper, Table 1")
    assert (spec.sla.latency_ms, spec.sla.percentile) == (25.0, 95.0)
    assert spec.notes == "Mine. At p95."
    assert spec.settings == {}


def test_the_first_width_of_a_published_dense_tower_is_the_dense_input():
    spec = TABLE.dlrm("rm", plain([70], 4, 2), (16, 8, 4), (8, 1), 100.0, "Mine.")
    assert (spec.architecture, spec.dense_dim) == ("dlrm", 16)
    assert dict(spec.towers) == {"bottom": (8, 4), "top": (8, 1)}
    assert dict(spec.settings) == {"interaction": "dot"}
    assert spec.notes == "Dots. Mine. At p95."
