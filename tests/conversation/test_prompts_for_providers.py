"""Prompts that providers accept, from any log, in each of their formats."""

import os
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prompt_rules import FORMATS, damaged_logs, faults

from lango_store import Message, window

LOGS: Final = int(os.environ.get("LANGO_STORE_DAMAGED_LOGS", "300"))


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=LOGS)
@given(log=damaged_logs(), cut=st.none() | st.integers(1, 8))
def test_provider_accepts_the_prompt_of_any_log(format: Any, log: list[Message], cut: int | None) -> None:
    numbered = [message.model_copy(update={"seq": seq}) for seq, message in enumerate(log, 1)]
    prompt = window.prompt(numbered[-(cut or 0) :], format)
    assert faults(prompt, format) == []
