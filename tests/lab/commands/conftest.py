"""What holds for tests of commands holds here too."""

from tests.cli.conftest import wide as wide
