from rich.progress import Progress

from hebe.report.progress_bar import bar_of


def test_a_bar_shows_how_many_of_how_many():
    progress = Progress(disable=True)
    first, second = bar_of(progress, "first"), bar_of(progress, "second")
    first(2, 3)
    second(4, 4)
    shown = [(task.description, task.completed, task.total, task.finished) for task in progress.tasks]
    assert shown == [("first", 2, 3, False), ("second", 4, 4, True)]
