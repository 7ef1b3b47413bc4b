"""Fit a conversation into the context of a model, and send it in the format of a provider.

Most functions take a list of messages in the order of the window, such as `conversation.messages()`, and return a new
list. They do not change the messages, and do not use a database.

An assistant message that calls tools, together with the results of these calls, is an exchange. `legal_suffix`,
`plan_eviction` and `fit` keep or remove an exchange as a whole, because providers refuse a result without its call.
The returned lists have no records. In a list of messages, records count as 0 tokens.
"""

from lango_store.window.entries import as_prompt
from lango_store.window.formats import Prompt, prompt
from lango_store.window.providers import Format
from lango_store.window.repair import Recorded, Repair, close_calls, recorded_calls
from lango_store.window.trimming import (
    Count,
    answers,
    completion_budget,
    evict,
    fit,
    last_within,
    legal_suffix,
    plan_eviction,
    tokens_of,
)

__all__ = [
    "Count",
    "Format",
    "Prompt",
    "Recorded",
    "Repair",
    "answers",
    "as_prompt",
    "close_calls",
    "completion_budget",
    "evict",
    "fit",
    "last_within",
    "legal_suffix",
    "plan_eviction",
    "prompt",
    "recorded_calls",
    "tokens_of",
]
