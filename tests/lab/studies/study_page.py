"""The page of a study's result, for the tests."""

from hebe.report.document import Picture
from hebe.report.figures import FigureFile
from hebe.report.html import page
from hebe_lab.page import study_document
from hebe_lab.studies import STUDIES


def name_of(study):
    """What `hebe study` calls a study's module."""
    (name,) = (name for name, module in STUDIES.items() if module == study.__name__)
    return name


def page_of(study, result):
    """The text of the page that a run of the module `study` would write."""
    name = name_of(study)
    file = FigureFile.here(name, f"hebe study {name}", 1.0, True, result.figures)
    return page(study_document(study.DESCRIPTION, file, result))


def assert_well_told(study, result, figures_of_the_paper=1):
    """What holds of every study's result."""
    paper = name_of(study).partition("-")[0]
    assert result.tables
    assert all(table.rows for table in result.tables)
    assert all(figure.name.startswith(f"{paper}.") for figure in result.figures)
    assert sum(figure.paper is not None for figure in result.figures) >= figures_of_the_paper
    drawn = page_of(study, result)
    assert drawn.count("<svg") == sum(isinstance(block, Picture) for block in result.content) > 0
    assert ">nan<" not in drawn.lower()
