"""Each column of messages is redacted, copied and moved to payloads, unless a list names it."""

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from lango_store import Message, Store, ToolCall
from lango_store._operations.binds import MESSAGE
from lango_store._operations.session_tables import ASIDE, MESSAGES
from lango_store._rows.columns import JsonColumn

SECRET = "my secret words"
IDENTIFYING = {"session_key", "seq", "turn_no", "id", "role", "author", "name", "tool_call_id", "tokens"}
BOOKKEEPING = {"created_at", "logged_at", "taken_by", "removed_at", "next_at"}


def a_message_with_all_fields() -> Message:
    """Return a message in which each field that a caller may set has a value, and each JSON field the secret."""
    fields: dict[str, Any] = {
        name: {"secret": [SECRET]}
        for name in Message.model_fields
        if name in MESSAGE.c and isinstance(MESSAGE.c[name].type, JsonColumn) and name not in ("content", "tool_calls")
    }
    calls = [ToolCall(id="c", name="find", arguments={"secret": [SECRET]}, output=[SECRET], extra={"secret": [SECRET]})]
    return Message.user([SECRET], author="ann", name="n", tool_call_id="t", tokens=3, tool_calls=calls, **fields)


def stored(store: Store, table: sa.Table) -> dict[str, str]:
    """Return the columns of the only row of a table, as text."""
    with store.engine.connect() as connection:
        row = connection.execute(sa.select(*(sa.cast(each, sa.Text).label(each.name) for each in table.c))).one()
    return {name: value for name, value in row._mapping.items() if value is not None}


@pytest.mark.parametrize("payloads", [None, 10])
def test_redaction_removes_each_column_that_does_not_identify_the_message(url: str, payloads: int | None) -> None:
    with Store(url, keep_removed=timedelta(days=1), payload_threshold=payloads) as store:
        store.open("k").append_message(a_message_with_all_fields())
        store.conversation("k").edits.update(1, a_message_with_all_fields())
        store.conversation("k").edits.redact(1)
        for table in [each for each in MESSAGES if each not in ASIDE.values()]:
            row = stored(store, table)
            assert row.keys() - IDENTIFYING - BOOKKEEPING == {"text"}
            assert row["text"] == "(redacted)"


@pytest.mark.parametrize("payloads", [None, 10])
def test_redaction_of_a_message_that_is_set_aside_removes_the_same_columns(url: str, payloads: int | None) -> None:
    with Store(url, payload_threshold=payloads) as store:
        store.open("k").append_message(a_message_with_all_fields())
        store.conversation("k").append_messages([Message.user("other")], replace_after=0, keep=True)
        store.conversation("k").edits.redact(1)
        row = stored(store, ASIDE[MESSAGE])
        assert row.keys() - IDENTIFYING - BOOKKEEPING - {"alternative"} == {"text"}
        assert row["text"] == "(redacted)"


def test_stored_message_shares_no_list_or_dict_with_the_appended_one(store: Store) -> None:
    message = a_message_with_all_fields()
    saved = store.open("k").append_message(message)
    for name, value in vars(message).items():
        if isinstance(value, list | dict):
            assert getattr(saved, name) is not value
            value.clear()
    assert saved.model_dump() == store.conversation("k").messages()[0].model_dump()


def test_large_strings_of_each_json_column_except_sent_become_payloads(url: str) -> None:
    with Store(url, payload_threshold=10) as store:
        saved = store.open("k").append_message(a_message_with_all_fields())
        row = stored(store, MESSAGE)
        names = {each.name for each in MESSAGE.c if isinstance(each.type, JsonColumn)}
        assert [name for name in sorted(names) if SECRET in row[name]] == ["sent"]
        assert store.conversation("k").messages()[0] == saved
