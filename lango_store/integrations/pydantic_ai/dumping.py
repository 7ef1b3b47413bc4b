"""What pydantic-ai's values are as JSON, and back: by its own adapters, except that a key keeps its lone surrogates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from lango_store.errors import DamagedMessage
from lango_store.integrations.pydantic_ai.items import NAME

T = TypeVar("T")

USAGE: Final = TypeAdapter(RunUsage)
DEFERRED: Final = TypeAdapter(DeferredToolRequests)

_REPLACED: Final = "\ufffd"


def dumped_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages as the JSON that the framework writes."""
    found: list[dict[str, Any]] = dumped(ModelMessagesTypeAdapter, list(messages))
    return found


def dumped(adapter: TypeAdapter[T], value: T) -> Any:
    """Return a value as JSON."""
    plain = adapter.dump_python(value, mode="json")
    if _REPLACED not in json.dumps(plain, ensure_ascii=False):
        return plain
    return _with_keys(plain, adapter.dump_python(value))


def _with_keys(plain: Any, original: Any) -> Any:
    """Put back the keys whose lone surrogates were replaced, in what was dumped with them."""
    if isinstance(plain, list) and isinstance(original, list | tuple) and len(plain) == len(original):
        return [_with_keys(one, other) for one, other in zip(plain, original, strict=True)]
    if not isinstance(plain, dict) or not isinstance(original, dict):
        return plain
    if plain.keys() == original.keys():
        return {name: _with_keys(value, original[name]) for name, value in plain.items()}
    return _unquoted(to_jsonable_python(_quoted(original), bytes_mode="base64", inf_nan_mode="null"))


def _quoted(value: Any) -> Any:
    """Write the keys of a value as JSON strings, which hold no surrogate."""
    if isinstance(value, dict):
        return {json.dumps(n) if isinstance(n, str) else n: _quoted(each) for n, each in value.items()}
    return [_quoted(each) for each in value] if isinstance(value, list | tuple) else value


def _unquoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {json.loads(n) if n.startswith('"') else n: _unquoted(each) for n, each in value.items()}
    return [_unquoted(each) for each in value] if isinstance(value, list) else value


def loaded_messages(key: str, seqs: Sequence[int], items: list[dict[str, Any]]) -> list[ModelMessage]:
    """Return messages of their JSON; `DamagedMessage` names the first that the framework does not read."""
    try:
        return ModelMessagesTypeAdapter.validate_python(items)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place, *field = fault["loc"]
        seq = seqs[place] if isinstance(place, int) else 0
        raise DamagedMessage(key, seq, f"extra.{NAME}", f"{'.'.join(map(str, field))}: {fault['msg']}") from None


def loaded(key: str, field: str, adapter: TypeAdapter[T], value: Any) -> T:
    """Return a value of its JSON; `DamagedMessage` if the framework does not read it."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise DamagedMessage(key, 0, f"values.{NAME}.{field}", reason) from None
