import pytest

from hebe.report.tables import format_estimate, format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.931234, "0.9312"),
        (1.0, "1"),
        (3330.4, "3,330"),
        (1234567.0, "1,234,567"),
        (1.2e-05, "1.2e-05"),
        (-41.25, "-41.25"),
        (3e17, "3e+17"),
    ],
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text
    assert format_estimate(value, estimated=False) == text
    assert format_estimate(value, estimated=True) == f"~{text}"
