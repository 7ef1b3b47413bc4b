"""Transcript entries: as the CLI writes them, and with any JSON."""

import uuid
from typing import Any, Final

from hypothesis import strategies as st

KEY: Final[Any] = {"project_key": "-srv-shop", "session_id": "0a4f9c2e-6c9d-4f5b-9b61-0f3f5b6a7c10"}

TEXTS: Final = st.text(st.characters() | st.sampled_from("\0\ud800\udfff\u2028é\U0001f600"), max_size=8)
NUMBERS: Final = st.integers() | st.integers(10**20, 10**40) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS: Final = st.none() | st.booleans() | NUMBERS | TEXTS
JSON: Final = st.recursive(
    SCALARS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=5,
)
FIELDS: Final = st.dictionaries(TEXTS | st.sampled_from(["cwd", "parentUuid", "isMeta"]), JSON, max_size=2)

TIMES: Final = st.sampled_from(
    [
        "2026-11-22T14:17:46.601Z",
        "2026-11-22T14:17:46.601000Z",
        "2026-11-22T14:17:46Z",
        "2026-11-22T16:17:46.601+02:00",
        "2026-11-22T14:17:46.601",
        "0001-01-01T00:00:00.000+14:00",
        "yesterday",
    ]
)
UUIDS: Final = st.uuids().map(str) | st.sampled_from(["", "sha256:", "\0", "\ud800", "a" * 513]) | TEXTS


def _block(kind: str, *, optional: dict[str, st.SearchStrategy[Any]], **required: Any) -> Any:
    given = st.fixed_dictionaries({"type": st.just(kind), **required}, optional=optional)
    return st.builds(lambda block, more: {**more, **block}, given, st.just({}) | FIELDS)


TEXT: Final = _block("text", optional={}, text=TEXTS)
CALLS: Final = _block("tool_use", optional={"input": JSON}, id=TEXTS, name=TEXTS)
RESULTS: Final = _block(
    "tool_result",
    optional={"content": st.lists(TEXT, max_size=2) | JSON, "is_error": st.booleans()},
    tool_use_id=TEXTS,
)
BLOCKS: Final = st.one_of(
    TEXT,
    CALLS,
    RESULTS,
    _block("thinking", optional={}, thinking=TEXTS, signature=TEXTS),
    _block("tool_use", optional={}, id=JSON, name=JSON),
    JSON,
)
CONTENTS: Final = TEXTS | st.lists(BLOCKS, max_size=3) | JSON
USAGES: Final = st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "speed"]), JSON, max_size=2)


def _entries(word: st.SearchStrategy[Any], message: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional: dict[str, Any] = {
        "uuid": UUIDS,
        "timestamp": TIMES | JSON,
        "isSidechain": st.booleans(),
        "agentId": TEXTS | JSON,
        "apiBlockIndex": st.integers(0, 2),
        "cwd": JSON,
    }
    given = st.fixed_dictionaries({"type": word, "message": message}, optional=optional)
    return st.builds(lambda entry, more: {**more, **entry}, given, st.just({}) | FIELDS)


def _said(word: str, contents: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional: dict[str, Any] = {"id": TEXTS | JSON, "usage": USAGES | JSON, "model": JSON}
    message = st.fixed_dictionaries({"role": st.just(word), "content": contents}, optional=optional)
    return _entries(st.just(word), message)


ENTRIES: Final = st.one_of(
    _said("user", CONTENTS),
    _said("user", st.lists(RESULTS, min_size=1, max_size=3)),
    _said("assistant", CONTENTS),
    _said("assistant", st.lists(TEXT | CALLS, min_size=1, max_size=3)),
    _entries(st.sampled_from(["user", "assistant", "system", "mode"]) | JSON, JSON),
    st.builds(lambda fields, word: {**fields, "type": word}, FIELDS, st.sampled_from(["mode", "user"]) | JSON),
)
"""Nearly what the SDK writes, with anything in any place."""


def written(session: str = KEY["session_id"]) -> list[Any]:
    """The entries of a question, a tool call and its result, with the fields that the CLI writes."""
    common = {
        "userType": "external",
        "entrypoint": "sdk-py",
        "cwd": "/srv/shop",
        "sessionId": session,
        "version": "2.1.330",
        "gitBranch": "main",
    }
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 3,
        "output_tokens": 21,
        "server_tool_use": {"web_search_requests": 0},
        "service_tier": "standard",
    }
    ids = [str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session}/{number}")) for number in range(6)]

    def chained(number: int, word: str, **fields: Any) -> dict[str, Any]:
        place = {"parentUuid": ids[number - 1] if number else None, "isSidechain": False, "type": word}
        return {**place, **fields, "uuid": ids[number], "timestamp": f"2026-11-22T14:17:4{number}.601Z", **common}

    def answered(number: int, response: str, block: dict[str, Any], place: int, stop: str) -> dict[str, Any]:
        message = {
            "id": response,
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [block],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }
        return chained(number, "assistant", message=message, apiBlockIndex=place)

    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
    result = {"tool_use_id": "toolu_1", "type": "tool_result", "content": [{"type": "text", "text": "-3 °C"}]}
    return [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": session, "content": "Weather in Oslo?"},
        chained(0, "user", message={"role": "user", "content": "Weather in Oslo?"}, permissionMode="default"),
        chained(1, "attachment", attachment={"type": "date", "date": "2026-11-22"}),
        {"type": "mode", "mode": "normal", "sessionId": session},
        answered(2, "msg_1", {"type": "text", "text": "I will look."}, 0, "tool_use"),
        answered(3, "msg_1", call, 1, "tool_use"),
        chained(
            4,
            "user",
            message={"role": "user", "content": [result]},
            toolUseResult=[{"type": "text", "text": "-3 °C"}],
            sourceToolAssistantUUID=ids[3],
        ),
        answered(5, "msg_2", {"type": "text", "text": "It is -3 °C in Oslo."}, 0, "end_turn"),
        {"type": "last-prompt", "lastPrompt": "Weather in Oslo?", "leafUuid": ids[5], "sessionId": session},
    ]
