"""What a save and a load cost on PostgreSQL: statements and round trips, counted where they happen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from frameworks.pydantic_ai.talking import conversation
from pydantic_ai.conversation_store import ConversationStore
from support.statements import Counts, counted

from lango_store import Store
from lango_store.integrations.pydantic_ai import LangoConversationStore


@pytest.fixture
def conversations(one_connection: sa.Engine) -> Iterator[ConversationStore]:
    with Store(one_connection) as store:
        made = LangoConversationStore(store)
        asyncio.run(made.save(conversation("other", "1", "2")))
        yield made
        asyncio.run(made.close())


def test_a_load_is_two_reads_and_of_no_more_rows_than_asked(
    conversations: ConversationStore, one_connection: sa.Engine, tmp_path: Path
) -> None:
    asyncio.run(conversations.save(conversation("c", *map(str, range(300)))))
    for limit in (None, 1, 10):
        with counted(one_connection, tmp_path) as counts:
            loaded = asyncio.run(conversations.load("c", limit=limit))
        assert counts == Counts(2, 2)
        assert loaded is not None
        assert len(loaded.messages) == (limit or 300)
        rows = (tmp_path / "trace").read_text().count("\tDataRow\t")
        assert rows == 1 + (limit or 300)


def test_a_history_is_one_query_whatever_the_id_knows(
    conversations: ConversationStore, one_connection: sa.Engine, tmp_path: Path
) -> None:
    talk = conversation("c", *map(str, range(20)))
    stored = asyncio.run(conversations.save(talk))
    asyncio.run(conversations.branch("c", at=3, expected_revision=talk.revision))
    record = asyncio.run(conversations.read_record("c"))
    assert record is not None
    for id, expected in ((record.head_id, 3), (stored[1].id, 2), (record.branches[0], 20), (str(stored[9].id), 10)):
        with counted(one_connection, tmp_path) as counts:
            entries = asyncio.run(conversations.read_history(id))
        assert len(entries) == expected
        assert counts == Counts(1, 1)


def test_a_list_is_one_query(conversations: ConversationStore, one_connection: sa.Engine, tmp_path: Path) -> None:
    for number in range(10):
        asyncio.run(conversations.save(conversation(f"c{number}", "1"), scope="ann"))
    with counted(one_connection, tmp_path) as counts:
        records = asyncio.run(conversations.list_conversations(scope="ann"))
    assert counts == Counts(1, 1)
    assert len(records) == 10
