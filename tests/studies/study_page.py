"""The page of a study's result, for the tests."""

from hebe.report.figures import FigureFile
from hebe.studies.page import study_page


def page_of(study, result):
    """The text of the page that a run of the module `study` would write."""
    name = study.__name__.rpartition(".")[2].replace("_", "-")
    file = FigureFile.here(name, f"hebe study {name}", 1.0, True, result.figures)
    return study_page(study.DESCRIPTION, file, result).render()
