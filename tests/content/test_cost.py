"""The number of functions of the package that prompts and pages of undamaged messages run."""

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pytest
from support.call_counts import count_calls

from lango_store import Message, Session, ToolCall, window
from lango_store.ui import agui_messages, aisdk_messages

TEXTS: Final = [
    Message(role=("user", "assistant")[seq % 2], content=f"message {seq}", seq=seq + 1, id=f"m{seq}")
    for seq in range(20)
]
CALLS: Final = [
    message.model_copy(update={"seq": seq + 1, "id": f"m{seq}"})
    for seq, message in enumerate(
        message
        for number in range(5)
        for message in (
            Message.user("what are the tides?"),
            Message.assistant("I look.", tool_calls=[ToolCall(id=f"call_{number}", name="search", arguments={"q": 1})]),
            Message.tool("two a day", tool_call_id=f"call_{number}", name="search"),
            Message.assistant("Two tides a day."),
        )
    )
]
PROMPTS: Final = {
    "openai": (2, 211),
    "openai-responses": (151, 241),
    "anthropic": (157, 277),
    "gemini": (212, 292),
}
"""The numbers for 20 texts, and for 20 messages with five calls of tools."""


@pytest.mark.parametrize("format", PROMPTS)
def test_prompt_runs_as_many_functions_as_before(format: Any) -> None:
    counts = [count_calls(partial(window.prompt, log, format))[0] for log in (TEXTS, CALLS)]
    assert tuple(counts) == PROMPTS[format]


@pytest.mark.parametrize(("page", "expected"), [(aisdk_messages, (83, 133)), (agui_messages, (58, 123))])
def test_page_runs_as_many_functions_as_before(page: Any, expected: tuple[int, int]) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    sessions = [Session(key="k", created_at=now, updated_at=now, messages=log) for log in (TEXTS, CALLS)]
    assert tuple(count_calls(partial(page, session))[0] for session in sessions) == expected
