"""Stores to export from and to import into, and files to import."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.databases import KINDS, MakeDatabase
from support.drafts import given_format

from lango_store import Store
from lango_store.interchange import FORMATS
from lango_store.interchange.draft import SessionDraft
from lango_store.interchange.nanobot_lines import file_name
from lango_store.testing import Clock


@pytest.fixture
def opened(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as store:
        yield store


@pytest.fixture
def source(make_database: MakeDatabase) -> Iterator[Store]:
    with Store(make_database()) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest) -> Iterator[Store]:
    make: MakeDatabase = request.getfixturevalue(
        {"sqlite": "make_sqlite", "postgresql": "make_postgres"}[request.param]
    )
    with Store(make()) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of these lines: objects as nanobot writes them, text unchanged."""

    def make(*lines: Any, name: str = file_name("telegram:1", "g2"), end: str = "\n") -> Path:
        path = tmp_path / name
        texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
        path.write_bytes(("\n".join(texts) + end).encode(errors="surrogateescape"))
        return path

    return make


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Make a file that a test format reads as these drafts."""

    def make(*drafts: SessionDraft) -> Path:
        monkeypatch.setitem(FORMATS, "given", given_format(*drafts))
        path = tmp_path / "one.given"
        path.touch()
        return path

    return make
