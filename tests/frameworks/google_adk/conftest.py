from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from lango_store import Store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what ADK and Google's client say of Python and of each other when they load
    import google.adk.runners  # noqa: F401

    from lango_store.integrations.google_adk import LangoSessionService


def pytest_report_header() -> str:
    return f"google-adk {version('google-adk')}"


@pytest.fixture
def opened(url: str) -> Iterator[Store]:
    with Store(url) as store:
        yield store


@pytest.fixture
def service(opened: Store) -> LangoSessionService:
    return LangoSessionService(opened)
