"""Prompts in the types that the providers' own packages publish."""

import json
import os
from collections.abc import Callable
from typing import Any, Final

import pytest
from anthropic.types import MessageParam
from google.genai.types import Content
from hypothesis import given, settings
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter
from support.prompt_rules import damaged_logs

from lango_store import Message, window

LOGS: Final = int(os.environ.get("LANGO_STORE_DAMAGED_LOGS", "300"))


def adapted(item: Any) -> Callable[[window.Prompt], Any]:
    """Return a check that each message of a prompt has a type."""
    adapter: TypeAdapter[Any] = TypeAdapter(list[item])
    # Some fields of these types are iterables, which pydantic validates only when they are read.
    return lambda prompt: json.dumps(adapter.dump_python(adapter.validate_python(list(prompt)), mode="json"))


def contents(prompt: window.Prompt) -> list[Content]:
    return [Content.model_validate_json(json.dumps(content)) for content in prompt]


@pytest.mark.parametrize(
    ("format", "check"),
    [
        ("openai", adapted(ChatCompletionMessageParam)),
        ("openai-responses", adapted(ResponseInputItemParam)),
        ("anthropic", adapted(MessageParam)),
        ("gemini", contents),
    ],
)
@settings(max_examples=LOGS)
@given(log=damaged_logs())
def test_prompt_of_any_log_has_the_published_types(
    format: Any, check: Callable[[window.Prompt], Any], log: list[Message]
) -> None:
    check(window.prompt([message.model_copy(update={"seq": seq}) for seq, message in enumerate(log, 1)], format))
