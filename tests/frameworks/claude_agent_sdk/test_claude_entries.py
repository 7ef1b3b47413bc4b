"""Conversion of entries: any entry is loaded equal, and stored in fields of a message where these exist."""

import asyncio
import itertools
import json
from typing import Any

from frameworks.claude_agent_sdk.transcripts import ENTRIES, KEY, written
from hypothesis import example, given
from hypothesis import strategies as st

from lango_store import Store
from lango_store.integrations.claude_agent_sdk import LangoSessionStore
from lango_store.integrations.fields import same_json

NAME = f"{KEY['project_key']}:{KEY['session_id']}"
LONG = int("9" * 60)
DEEP: Any = json.loads("[" * 195 + "]" * 195)
HALF: Any = {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "tool_use", "id": "\ud800"}]}}

_numbers = itertools.count()


def said(content: Any, uuid: str = "u", **fields: Any) -> dict[str, Any]:
    return {"type": "user", "uuid": uuid, "message": {"role": "user", "content": content}, **fields}


def there_and_back(sessions: LangoSessionStore, batch: list[Any]) -> Any:
    key: Any = {"project_key": "p", "session_id": f"s{next(_numbers)}"}

    async def main() -> Any:
        await sessions.append(key, batch)
        return await sessions.load(key)

    return asyncio.run(main())


@given(st.lists(ENTRIES, min_size=1, max_size=3, unique_by=lambda entry: json.dumps(entry.get("uuid"))))
@example([said("\0"), said("half \ud800 of a pair", "v"), HALF])
@example([said([{"type": "text", "text": "\0", "citations": None}]), said(LONG, "v"), said(str(LONG), "w")])
@example([said(True), said(1, "v"), said(1.0, "w"), said(None, "x"), said(-0.0, "y"), said([True, 1, 1.0, None], "z")])
@example([said("x", toolUseResult=DEEP)])
def test_any_entry_is_loaded_equal(sessions: LangoSessionStore, batch: list[dict[str, Any]]) -> None:
    as_json = json.loads(json.dumps(batch))  # JSON joins adjacent halves of a surrogate pair
    found = there_and_back(sessions, as_json)
    assert same_json(found, as_json)


def test_entries_are_stored_in_fields_of_messages(store: Store, sessions: LangoSessionStore) -> None:
    asyncio.run(sessions.append(KEY, written()))
    log = store.conversation(NAME).all_messages()
    roles = "record user record record assistant assistant tool assistant record"
    assert [message.role.value for message in log] == roles.split()
    question, text, call, answer, last = store.conversation(NAME).messages()
    assert question.content == "Weather in Oslo?"
    assert question.id == written()[1]["uuid"]
    assert str(question.created_at) == "2026-11-22 14:17:40.601000+00:00"
    assert text.content == "I will look."
    assert [(each.id, each.name, each.arguments) for each in call.tool_calls] == [
        ("toolu_1", "get_weather", {"city": "Oslo"})
    ]
    assert (answer.tool_call_id, answer.content) == ("toolu_1", "-3 °C")
    assert last.content == "It is -3 °C in Oslo."
    assert [message.tokens for message in (text, call, last)] == [21, None, 21]  # stored at its first block
