"""Messages that another program wrote, in a chat message history of LangChain."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from support.content_cases import CASES, case_log, stored

from lango_store import Message, Store, ToolCall
from lango_store.content import FORMS, Call, Media, Part, Refusal, Text, Thinking, ignore, parts, read
from lango_store.integrations.langchain import LangoChatMessageHistory

pytestmark = pytest.mark.one_database

PNG = "iVBORw0KGgo="


def test_message_of_another_program_has_the_blocks_of_langchain(store: Store) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    asked = [
        {"type": "thinking", "thinking": "the moon", "signature": "c2ln"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sea"}},
    ]
    answers = [ToolCall(id=id, name="look", output=output) for id, output in (("c1", [picture]), ("c2", "none"))]
    log = [
        Message(role="developer", content="Be brief."),
        Message.user([{"type": "input_text", "text": "Look"}, picture]),
        Message.assistant(asked, tool_calls=[ToolCall(id="c2", name="look", arguments='{"at": "moon"}')]),
        Message.tool(tool_calls=answers),
        Message.tool("no network", tool_call_id="c3", failed=True),
    ]
    store.create("t", messages=log)
    image: Any = {"type": "image", "base64": PNG, "mime_type": "image/png"}
    reasoning: Any = {"type": "reasoning", "reasoning": "the moon", "extras": {"signature": "c2ln"}}
    calls: list[Any] = [
        {"name": "look", "args": {"at": at}, "id": id, "type": "tool_call"}
        for id, at in (("c1", "sea"), ("c2", "moon"))
    ]
    assert LangoChatMessageHistory("t", store).messages == [
        SystemMessage("Be brief."),
        HumanMessage([{"type": "text", "text": "Look"}, image]),
        AIMessage([reasoning], tool_calls=calls),
        ToolMessage([image], tool_call_id="c1", name="look"),
        ToolMessage("none", tool_call_id="c2", name="look"),
        ToolMessage("no network", tool_call_id="c3", status="error"),
    ]


def said(part: Part) -> Any:
    match part:
        case Media():
            return part.type, part.data, part.url
        case Call():
            return part.id, part.name
        case Text() | Thinking() | Refusal():
            return part.text
    return None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_history_has_the_parts_that_each_form_wrote(store: Store, form: str, case: str) -> None:
    log = case_log(case, form)
    if log is None or case == "native block":
        return
    messages = stored(FORMS[form], log, ignore)
    store.create("t", messages=messages)
    history = LangoChatMessageHistory("t", store).messages
    found = [said(part) for each in history for part in read(each.content, is_data=True)]
    found += [(call["id"], call["name"]) for each in history for call in getattr(each, "tool_calls", ())]
    wanted = [said(part) for message in messages for part in parts(message)]
    assert [part for part in wanted if part is not None and part not in found] == []
    failed = [each.status for each in history if isinstance(each, ToolMessage)]
    assert ("error" in failed) == any(getattr(part, "failed", False) for each in messages for part in parts(each))
