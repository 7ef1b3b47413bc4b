"""A relay that simulates network failures, for all tests of connections."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.relay import Relay


@pytest.fixture
def relay(server_url: sa.URL) -> Iterator[Relay]:
    made = Relay(server_url)
    yield made
    made.close()
