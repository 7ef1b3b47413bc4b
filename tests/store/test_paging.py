"""Reading the rows of a session in pages of limited rows and bytes."""

from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import AS_ROWS_LIE
from support.factories import message

from lango_store import Store, create_engine
from lango_store._dialect.statement import size_of
from lango_store._operations import paging
from lango_store._operations.binds import MESSAGE
from lango_store._operations.paging import Pages
from lango_store._rows.columns import as_stored

TEXTS = {
    "short": "x",
    "long": "x" * 300,
    "larger than a page": "x" * 2_000,
    "Chinese": "\u4e2d" * 70,
    "not text": ["x" * 300],
}
each_text = pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS.keys())
log = Pages(MESSAGE, [MESSAGE.c.seq, MESSAGE.c.text, as_stored(MESSAGE.c.content)])


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "ROWS", 10)
    monkeypatch.setattr(paging, "BYTES", 1_000)


def filled(engine: sa.Engine, content: Any) -> Store:
    store = Store(engine)
    for key in ("a", "k", "z"):
        store.create(key, messages=[message(content)] * 25)
    return store


@each_text
def test_pages_contain_each_message_once_and_are_limited_in_size(url: str, content: Any) -> None:
    engine = create_engine(url)
    with filled(engine, content)._context.snapshot() as connection:
        pages = list(log.read(connection, "k"))
    engine.dispose()
    assert [row[0] for page in pages for row in page] == list(range(1, 26))
    for page in pages:
        assert len(page) <= 10
        assert sum(map(size_of, page[:-1])) < 1_000


@pytest.mark.slow
def test_rows_are_read_in_order_of_seq_without_an_index(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args=AS_ROWS_LIE)
    store = filled(engine, "x" * 300)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET tokens = 1 WHERE mod(seq, 3) = 1")
    with store._context.snapshot() as connection:
        assert [row[0] for page in log.read(connection, "k") for row in page] == list(range(1, 26))
    engine.dispose()


def test_reading_continues_after_a_page_shortened_by_the_byte_limit(url: str) -> None:
    engine = create_engine(url)
    store = Store(engine)
    store.create("k", messages=[message("\U0001f600" * 250), message("x")])
    with store._context.snapshot() as connection:
        assert [row[0] for page in log.read(connection, "k") for row in page] == [1, 2]
    engine.dispose()
