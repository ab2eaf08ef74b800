import pytest

from hebe.embeddings.config.values import as_float, as_int, shown


def test_numbers_that_the_machine_has_are_themselves() -> None:
    for number in (0, -3, 2**63 - 1, -(2**63)):
        assert as_int(number) == number
        assert as_float(number) == float(number)
    assert as_float(0.5) == 0.5


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, 16**5000], ids=range(4))
def test_whole_numbers_beyond_64_bits(number: int) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number of 64 bits$"):
        as_int(number)


@pytest.mark.parametrize("number", [10**400, -(10**400), 16**5000], ids=range(3))
def test_whole_numbers_beyond_all_floats(number: int) -> None:
    with pytest.raises(ValueError, match=r"must be a number of at most 1\.8e\+308$"):
        as_float(number)


def test_what_is_shown_is_short() -> None:
    assert shown("int4") == "'int4'"
    assert shown("x" * 81) == "'" + "x" * 79 + "..."
    assert shown(10**400) == "1" + "0" * 79 + "..."
    assert shown([16**5000]) == "a whole number of thousands of digits"
