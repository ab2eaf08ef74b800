"""Models that tests of the runtime use too."""

from tests.runtime.conftest import jagged_inputs as jagged_inputs
from tests.runtime.conftest import repository as repository
