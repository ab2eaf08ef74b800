import re

import pytest

from hebe.embeddings.hps.parameters import PARAMETERS, Fate, Kind, converted
from tests.places import DOCS

DOCUMENT = DOCS / "embeddings-hps.md"


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        (True, Kind.BOOL, True),
        ("True", Kind.BOOL, True),
        (" false ", Kind.BOOL, False),
        (3, Kind.INT, 3),
        ("64", Kind.INT, 64),
        (3, Kind.FLOAT, 3.0),
        ("0.5", Kind.FLOAT, 0.5),
        ("1", Kind.FLOAT, 1.0),
        ("0.5", Kind.STRING, "0.5"),
        (["0", 1], Kind.INTS, [0, 1]),
        (["0.0", 1], Kind.FLOATS, [0.0, 1.0]),
        ([], Kind.STRINGS, []),
    ],
)
def test_values_come_as_types_and_as_strings(given, kind, value) -> None:
    found = converted(given, kind)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (1, Kind.BOOL, "true or false"),
        ("yes", Kind.BOOL, "true or false"),
        (True, Kind.INT, "a whole number"),
        (0.5, Kind.INT, "a whole number"),
        ("0.5", Kind.INT, "a whole number"),
        (None, Kind.FLOAT, "a number"),
        (True, Kind.FLOAT, "a number"),
        (1, Kind.STRING, "a string"),
        (0, Kind.INTS, "a list of whole numbers"),
        ([["0"]], Kind.INTS, "a whole number"),
        (10**400, Kind.FLOAT, "a number of at most"),
        (["1" + "0" * 400], Kind.FLOATS, "a number of at most"),
        ("[" * 100_000, Kind.FLOAT, "a number"),
    ],
)
def test_wrong_values(given, kind, message) -> None:
    with pytest.raises(ValueError, match=f"must be {message}"):
        converted(given, kind)


def test_every_parameter_says_what_becomes_of_it() -> None:
    for parameters in PARAMETERS.values():
        names = [parameter.name for parameter in parameters]
        assert len(set(names)) == len(names)
        for parameter in parameters:
            assert parameter.fate in (Fate.MAPPED, Fate.NOT_NEEDED, Fate.NOT_HONOURED)
            assert parameter.note or parameter.fate is Fate.MAPPED, parameter.name
            if parameter.default is not None and isinstance(parameter.default, int | float | str | list):
                converted(parameter.default, parameter.kind)


def test_the_documentation_has_them_all() -> None:
    told = set(re.findall(r"`([a-z0-9_]+)`", DOCUMENT.read_text()))
    missing = {parameter.name for parameters in PARAMETERS.values() for parameter in parameters} - told
    assert not missing
