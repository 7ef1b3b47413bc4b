"""What pydantic-ai's values are as JSON, and back: by its own adapters, except that a key keeps its lone surrogates."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError

from lango_store.errors import DamagedMessage
from lango_store.integrations.pydantic_ai.items import NAME

T = TypeVar("T")

USAGE: Final = TypeAdapter(RunUsage)
DEFERRED: Final = TypeAdapter(DeferredToolRequests)

_REPLACED: Final = "\ufffd"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def dumped_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages as the JSON that the framework writes."""
    found: list[dict[str, Any]] = dumped(ModelMessagesTypeAdapter, list(messages))
    return found


def dumped(adapter: TypeAdapter[T], value: T) -> Any:
    """Return a value as JSON."""
    try:
        plain = adapter.dump_python(value, mode="json")
        if _REPLACED not in json.dumps(plain, ensure_ascii=False):
            return plain
    except (UnicodeEncodeError, PydanticSerializationError):
        pass  # a key of which the serializer makes nothing; what else is wrong is wrong below, too
    return _with_keys(adapter.dump_python(_with_keys(value, _quoted), mode="json"), _unquoted)


def _with_keys(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with the keys of all its dicts changed, wherever in it they are."""
    if isinstance(value, dict):
        return {change(n) if isinstance(n, str) else n: _with_keys(each, change) for n, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_keys(each, change) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for name, each in vars(value).items():
            object.__setattr__(copied, name, _with_keys(each, change))
        return copied
    return value


def _quoted(key: str) -> str:
    """Return a key as text without lone surrogates."""
    return f"\0{json.dumps(key)}" if _SURROGATE.search(key) or key.startswith('\0"') else key


def _unquoted(key: str) -> str:
    return str(json.loads(key[1:])) if key.startswith('\0"') else key


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
