"""A store that keeps the messages that changes remove."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from lango_store import Store
from lango_store.testing import Clock


@pytest.fixture
def keeping(url: str, clock: Clock) -> Iterator[Store]:
    """Yield a store on an empty database that keeps removed messages for 30 days."""
    with Store(url, clock=clock, keep_removed=timedelta(days=30)) as yielded:
        yield yielded
