"""The values that callers hold: validated when made, detached from any database, theirs to change."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, Literal, Self, TypedDict, Unpack

from pydantic import AwareDatetime, BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from lango_store._values.content_blocks import text_of
from lango_store._values.value import Json, JsonList, JsonObject, Value, absent, copied


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""The default of arguments for which `None` has a meaning."""


class MessageRole(StrEnum):
    """The speaker of a message. Text such as "user" at the database boundary and in JSON, this type everywhere else.

    `RECORD` marks an entry of the log that models do not see: it has a `seq`, and is in no window.
    """

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    FUNCTION = "function"
    MODEL = "model"
    RECORD = "record"

    @property
    def canonical(self) -> MessageRole:
        """The role's common name: `model` is an assistant, `function` is a tool."""
        return _CANONICAL.get(self, self)


_CANONICAL: Final = {MessageRole.MODEL: MessageRole.ASSISTANT, MessageRole.FUNCTION: MessageRole.TOOL}


class ToolCall(Value):
    """A tool that a model asked for, and, once it ran, what it answered.

    `arguments` and `output` are any JSON and are kept as handed in: a string stays that string. An `output` of None
    counts as an answer when it was given, see `answered`. `extra` holds what a provider adds (a thought signature).
    """

    id: str
    name: str
    arguments: Json = None
    output: Json = None
    extra: JsonObject = Field(default_factory=dict, exclude_if=absent)

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def] # keeps the JSON schema
        # An output of null is an answer: an output that was not given must stay unset.
        dumped: dict[str, Any] = handler(self)
        for name in ("arguments", "output"):
            if name not in self.model_fields_set:
                dumped.pop(name, None)
        return dumped

    @property
    def answered(self) -> bool:
        """True if an output was given, None included."""
        return "output" in self.model_fields_set

    def copied(self) -> Self:
        """Return a copy that shares no list and no dict with this call."""
        call = self.model_copy()
        call.__dict__.update((name, copied(value)) for name, value in self.__dict__.items())
        return call

    def to_openai(self) -> dict[str, Any]:
        """Write the call in OpenAI's nested form, arguments as text, with whatever `extra` kept of it.

        A call of type `custom` has them as its `input`.
        """
        extra = dict(self.extra)
        kind = "custom" if extra.get("type") == "custom" else "function"
        given = {} if self.arguments is None and kind == "function" else self.arguments
        arguments = given if isinstance(given, str) else "" if given is None else json.dumps(given)
        body = {"name": self.name, _ARGUMENTS[kind]: arguments} | extra.pop(kind, {})
        return {"id": self.id, "type": kind, kind: body} | extra


class MessageFields(TypedDict, total=False):
    """The arguments of the constructors of `Message` besides role and content."""

    author: str | None
    name: str | None
    tool_call_id: str | None
    tool_calls: list[ToolCall]
    tokens: int | None
    id: str | None
    extra: dict[str, Any]
    created_at: datetime | None


_STORED_FIELDS: Final = frozenset({"seq", "created_at"})
_SLOTS: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_set_values, _set_fields_set, _set_extra, _set_private = (vars(BaseModel)[slot].__set__ for slot in _SLOTS)


class Message(Value):
    """One message of a session.

    `author` is the agent that speaks, `name` the tool that answers. `content` is any JSON. `id` is the caller's own
    (a request id): the database keeps one message of an id. `seq` and `created_at` are given when it is stored
    (`created_at` is kept when set). `replayed` says that an append found the id there already and wrote nothing.
    `Message.user("…")`, `.assistant`, `.tool` and `.system` make one of that role.
    """

    role: MessageRole
    content: Json = None
    author: str | None = Field(default=None, exclude_if=absent)
    name: str | None = Field(default=None, exclude_if=absent)
    tool_call_id: str | None = Field(default=None, exclude_if=absent)
    tool_calls: list[ToolCall] = Field(default_factory=list, exclude_if=absent)
    tokens: Annotated[int, Field(ge=0, lt=2**53)] | None = Field(default=None, exclude_if=lambda value: value is None)
    id: Annotated[str, Field(min_length=1)] | None = Field(default=None, exclude_if=absent)
    extra: JsonObject = Field(default_factory=dict, exclude_if=absent)
    created_at: AwareDatetime | None = Field(default=None, exclude_if=absent)
    seq: int = Field(default=0, ge=0, exclude_if=absent)
    turn_no: int | None = Field(default=None, exclude_if=absent)
    replayed: bool = Field(default=False, exclude=True, repr=False)

    @classmethod
    def user(cls, content: Any = None, **fields: Unpack[MessageFields]) -> Self:
        """Create a message of a user."""
        return cls(role=MessageRole.USER, content=content, **fields)

    @classmethod
    def assistant(cls, content: Any = None, **fields: Unpack[MessageFields]) -> Self:
        """Create a message of a model, with the `tool_calls` it asks for if there are any."""
        return cls(role=MessageRole.ASSISTANT, content=content, **fields)

    @classmethod
    def tool(cls, content: Any = None, **fields: Unpack[MessageFields]) -> Self:
        """Create a tool's answer to the call `tool_call_id`, or to `tool_calls` that carry their `output`."""
        return cls(role=MessageRole.TOOL, content=content, **fields)

    @classmethod
    def system(cls, content: Any = None, **fields: Unpack[MessageFields]) -> Self:
        """Create a message that instructs a model."""
        return cls(role=MessageRole.SYSTEM, content=content, **fields)

    def stored_as(self, seq: int, created_at: datetime, turn_no: int | None) -> Self:
        """Return the message as a store has written it; it shares no list and no dict with this one."""
        # The same as model_copy(update=…), in a third of its time.
        stored = object.__new__(type(self))
        values = self.__dict__.copy()
        fields = self.__pydantic_fields_set__ | _STORED_FIELDS
        values["seq"], values["turn_no"], values["replayed"] = seq, turn_no, False
        if type(values["content"]) is not str:
            values["content"] = copied(values["content"])
        if values["extra"]:
            values["extra"] = copied(values["extra"])
        if values["tool_calls"]:
            values["tool_calls"] = [call.copied() for call in values["tool_calls"]]
        if turn_no is not None:
            fields.add("turn_no")
        if values["created_at"] is None:
            values["created_at"] = created_at
        _set_values(stored, values)
        _set_fields_set(stored, fields)
        _set_extra(stored, None)
        _set_private(stored, None)
        return stored

    @classmethod
    def from_openai(cls, message: dict[str, Any], **fields: Any) -> Self:
        """Read a message in OpenAI's form; a key we have no field for goes to `extra`.

        `arguments` of a tool call stay the string they are. `fields` are ours to add, such as `author` or `id`.
        """
        known = {name: value for name, value in message.items() if name in _OPENAI_FIELDS}
        extra = {name: value for name, value in message.items() if name not in _OPENAI_FIELDS and name != "tool_calls"}
        calls = message.get("tool_calls")
        if calls:
            known["tool_calls"] = [_call_from_openai(call) for call in calls]
        elif "tool_calls" in message:  # null or an empty list: no calls, but there when it is written again
            extra["tool_calls"] = calls
        return cls(**known, extra=extra, **fields)

    def to_openai(self) -> dict[str, Any]:
        """Write the message in OpenAI's nested form, with whatever `extra` kept of it.

        The `output` of a tool's one call is the content, as text. ValueError where OpenAI has several messages for this
        one, calls with their outputs or several outputs: `window.as_prompt([message])` writes them all; and for a
        record, which no model sees.
        """
        if self.role is MessageRole.RECORD:
            raise ValueError("a record is in no prompt: leave messages of role record out")
        answered = [call for call in self.tool_calls if call.answered]
        if not answered:
            return as_asked(self)
        call = answered[0]
        is_answer = self.role.canonical is MessageRole.TOOL and (self.tool_call_id or call.id) == call.id
        if len(self.tool_calls) > 1 or not is_answer:
            raise ValueError(
                f"a message of role {self.role.value} with outputs in its tool calls is several messages for OpenAI: "
                "window.as_prompt([message]) writes them"
            )
        answer = {"role": self.role.value, "content": as_text(call.output), "tool_call_id": call.id, "name": call.name}
        return {name: value for name, value in answer.items() if value or name == "content"} | self.extra


def as_asked(message: Message) -> dict[str, Any]:
    """Write a message in OpenAI's form with its calls, without their outputs."""
    asked: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.name is not None:
        asked["name"] = message.name
    if message.tool_call_id is not None:
        asked["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        asked["tool_calls"] = [call.to_openai() for call in message.tool_calls]
    return asked | message.extra


def as_text(output: Any) -> str:
    """Write what a tool answered as the text that a model takes: blocks of text as their text, else JSON."""
    text = text_of(output)
    return json.dumps(output, ensure_ascii=False) if text is None else text


_ARGUMENTS: Final = {"function": "arguments", "custom": "input"}
_OPENAI_FIELDS: Final = frozenset({"role", "content", "name", "tool_call_id"})


def _call_from_openai(call: dict[str, Any]) -> ToolCall:
    kind = "custom" if call.get("type") == "custom" else "function"
    body = dict(call.get(kind) or {})
    known = {"name": body.pop("name", "")}
    if _ARGUMENTS[kind] in body:
        known["arguments"] = body.pop(_ARGUMENTS[kind])
    extra = {name: value for name, value in call.items() if name not in ("id", "type", kind)}
    if call.get("type", "function") != "function":
        extra["type"] = call["type"]
    if body:
        extra[kind] = body
    return ToolCall(id=call.get("id") or "", **known, extra=extra)


class OwnFields(TypedDict, total=False):
    """The fields of a new session, except `metadata`."""

    agent_id: str | None
    user_id: str | None
    title: str | None
    model: str | None
    settings: dict[str, Any] | None
    tools: list[Any] | None


class SessionFields(OwnFields, total=False):
    """The fields of a new session; None is the same as leaving a field out."""

    metadata: dict[str, Any] | None


class SessionChanges(SessionFields, total=False):
    """The fields of a session that can be changed: None clears a field."""

    last_consolidated: int


class SessionInfo(Value):
    """A session without its messages: what lists show.

    Times are aware UTC. `ttl_seconds` and `expires_at` are None for a session that never expires. `last_seq` is the
    highest `seq` given out, `message_count` how many messages there are, `token_count` the sum of their `tokens`;
    records are in neither, `record_count` is how many there are. `turn_count` counts turns and compactions. After a
    compaction its turn is `summary_turn`, and what came up to `summarized_upto` is out of the window. `revision` counts
    every write to the session; a new one begins at a random number, so that a session that replaces
    another under the same key repeats none of its revisions.
    """

    key: str
    agent_id: str | None = None
    user_id: str | None = None
    title: str | None = None
    model: str | None = None
    settings: JsonObject = Field(default_factory=dict)
    metadata: JsonObject = Field(default_factory=dict)
    tools: JsonList = Field(default_factory=list)
    created_at: AwareDatetime
    updated_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    ttl_seconds: float | None = None
    last_seq: int = 0
    message_count: int = 0
    record_count: int = 0
    token_count: int = 0
    turn_count: int = 0
    summary_turn: int | None = None
    summarized_upto: int = 0
    last_consolidated: int = 0
    forked_from: str | None = None
    revision: int = 0


class Turn(Value):
    """Messages saved together, with a `seq` from `first_seq` to `last_seq`, and their usage.

    In a turn without messages, `last_seq` is less than `first_seq`. A compaction is a turn too: it replaces the window
    up to `replaced_upto`. `messages` holds the stored messages in the result of `save_turn`, and is empty in lists of
    turns. `replayed` is True if the turn was already stored.
    """

    turn_no: int
    kind: Literal["turn", "compaction"] = "turn"
    id: str | None = None
    first_seq: int
    last_seq: int
    replaced_upto: int | None = Field(default=None, exclude_if=absent)
    usage: JsonObject = Field(default_factory=dict)
    metadata: JsonObject = Field(default_factory=dict)
    created_at: AwareDatetime
    messages: list[Message] = Field(default_factory=list, exclude_if=absent)
    replayed: bool = Field(default=False, exclude=True, repr=False)


class Compaction(Value):
    """A summary that replaces messages in the window: those with `replaced_after < seq <= replaced_upto`.

    They were `replaced_messages` in number, and are still in the log unless they were `discarded`.
    """

    turn_no: int
    summary: list[Message]
    replaced_after: int
    replaced_upto: int
    replaced_messages: int
    discarded: bool = False
    created_at: AwareDatetime


def new_key(now: datetime) -> str:
    """Create a session key: a UUIDv7 (RFC 9562), so that keys made later sort later."""
    milliseconds = int((now - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) & (2**48 - 1)
    number = milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
