import warnings
from pathlib import Path

import pytest

from lango_store import Store

HERE = Path(__file__).parent

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ADK and Google's client warn about Python and each other when imported
    import google.adk.agents.llm_agent
    import google.adk.runners  # noqa: F401

    from lango_store.integrations.google_adk import LangoSessionService


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore ADK's warnings that some of its features are experimental."""
    told = pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(told)


@pytest.fixture
def service(store: Store) -> LangoSessionService:
    return LangoSessionService(store)
