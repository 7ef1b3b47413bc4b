"""Time limits of searches, raised for busy machines."""

import pytest


@pytest.fixture(autouse=True)
def _time_to_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lango_store._rooms.search.hits._RANKING", 60.0)
    monkeypatch.setattr("lango_store._rooms.search.hits._COMPARING", 60.0)
