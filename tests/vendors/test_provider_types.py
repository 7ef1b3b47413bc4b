"""Prompts of what each form wrote, in the types that the newest packages of the providers publish.

`make vendors` runs this file in an environment of its own, since adapters of frameworks need older packages.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from anthropic.types.beta import BetaMessageParam  # with the blocks of compaction and of MCP
from google.genai.types import Content
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter
from support.content_cases import CASES, case_log, stored

from lango_store import window
from lango_store.content import FORMS, Form, ignore

Check = Callable[[window.Prompt], Any]


def adapted(item: Any) -> Check:
    """Return a check that each message of a prompt has a type."""
    adapter: TypeAdapter[Any] = TypeAdapter(list[item])
    return lambda prompt: exhaust(adapter.validate_python(list(prompt)))


def exhaust(value: Any) -> None:
    """Read all items of iterators: some fields of the types are iterables, which pydantic validates when it yields."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, str) or not isinstance(value, Iterable):
        return
    for each in value:
        exhaust(each)


CHECKS: Final[dict[str, Check]] = {
    "openai": adapted(ChatCompletionMessageParam),
    "openai-responses": adapted(ResponseInputItemParam),
    "anthropic": adapted(BetaMessageParam),
    "gemini": lambda prompt: [Content.model_validate_json(json.dumps(content)) for content in prompt],
}


@pytest.mark.parametrize("format", CHECKS)
@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS)
def test_prompt_of_each_case_has_the_types_of_the_provider(source: Form, format: Any) -> None:
    for case in CASES:
        log = case_log(case, source.name)
        if log is not None:
            CHECKS[format](window.prompt(stored(source, log, ignore), format))


@pytest.mark.parametrize("format", CHECKS)
def test_block_of_an_unknown_type_is_refused(format: str) -> None:
    fields = {"parts": [{"type": "unknown"}]} if format == "gemini" else {"content": [{"type": "unknown"}]}
    with pytest.raises(ValueError):
        CHECKS[format]([{"role": "user", **fields}])  # type: ignore[arg-type]
