"""Messages, sessions and turns as callers use them.

The values are validated when they are created, and when an attribute is set. Changing a value does not change stored
data.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, Literal, Self, TypedDict, Unpack

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer

from lango_store._values.value import Json, JsonList, JsonObject, Value, absent, built, copied
from lango_store.content.openai_chat import written_call
from lango_store.content.parts import FAILED, has_failed
from lango_store.content.text import as_text


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""The default of arguments for which `None` has a meaning, such as `ttl=None`: never expire."""


class MessageRole(StrEnum):
    """The role of a message: who or what the message comes from.

    A member is also a text: `MessageRole.USER == "user"`. JSON and the database contain the text.

    Attributes:
        SYSTEM: Instructions to the model.
        DEVELOPER: Instructions to the model, as newer OpenAI models name them.
        USER: A message of the user.
        ASSISTANT: A message of the model, with or without tool calls.
        TOOL: The result of a tool call.
        FUNCTION: The result of a tool call, as OpenAI's older function calls name it.
        MODEL: A message of the model, as Gemini names it.
        RECORD: An entry of the log that models do not see. It has a `seq`, but is never part of the window.
    """

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    FUNCTION = "function"
    MODEL = "model"
    RECORD = "record"

    canonical: MessageRole
    """The common name: ASSISTANT for MODEL, TOOL for FUNCTION, otherwise the role itself."""


# An attribute, because prompts read it several times for each message, and a property costs a call.
_ALIASES: Final = {MessageRole.MODEL: MessageRole.ASSISTANT, MessageRole.FUNCTION: MessageRole.TOOL}
for _role in MessageRole:
    _role.canonical = _ALIASES.get(_role, _role)


class ToolCall(Value):
    """A call of a tool that a model asked for, optionally with the output of the tool.

    Attributes:
        id: The id that the provider gave the call; "" if it gave none.
        name: The name of the tool.
        arguments: The arguments, any JSON. They are stored unchanged: JSON text stays text.
        output: The output of the tool, any JSON. An output of None is an output too: see `answered`.
        extra: Further fields of the provider, such as a thought signature.
    """

    id: str
    name: str
    arguments: Json = None
    output: Json = None
    extra: JsonObject = Field(default_factory=dict, exclude_if=absent)

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def] # keeps the JSON schema
        # null is an output too, so the dump must omit an output that was never set.
        dumped: dict[str, Any] = handler(self)
        for name in ("arguments", "output"):
            if name not in self.model_fields_set:
                dumped.pop(name, None)
        return dumped

    @property
    def answered(self) -> bool:
        """True if the call has an output, including an output of None."""
        return "output" in self.__pydantic_fields_set__

    @property
    def failed(self) -> bool:
        """True if the output is the error of a tool that failed.

        Then `extra` has `"failed": true`, or the output is an object of MCP with `"isError": true`.
        """
        return has_failed(self.extra, self.output)

    def _copied(self) -> Self:
        """Return a copy that shares no list and no dict with this call."""
        values = {name: value if type(value) is str else copied(value) for name, value in self.__dict__.items()}
        return built(type(self), values, self.__pydantic_fields_set__.copy())

    def to_openai(self) -> dict[str, Any]:
        """Return the call as a dict of OpenAI's chat completions format.

        Returns:
            `{"id": …, "type": "function", "function": {"name": …, "arguments": …}}` and the fields of `extra`.
            Arguments that are not text become JSON text, and None becomes `{}`. If `extra` has the type `custom`:
            `{"id": …, "type": "custom", "custom": {"name": …, "input": …}}`.
        """
        return written_call(self)


class Payload(Value):
    """A reference to a large string of a message, in the place of the string.

    `Conversation.payload` loads the string.

    Attributes:
        digest: The digest of the string. Equal strings of a session have the same digest.
        size: The number of bytes of the string in UTF-8.
        media_type: The media type of a data URI, such as `image/png`; None for any other string.
    """

    digest: str
    size: int
    media_type: str | None = Field(default=None, exclude_if=absent)


_Removal = Literal["truncate", "clear", "pop", "delete", "compact", "discard", "switch"]
ChangeKind = Literal[_Removal, "update", "redact", "drop_sent", "undo", "redo", "fork"]


class MessageFields(TypedDict, total=False):
    """The keyword arguments of `Message.user`, `assistant`, `tool` and `system`."""

    author: str | None
    name: str | None
    tool_call_id: str | None
    tool_calls: list[ToolCall]
    tokens: int | None
    id: str | None
    extra: dict[str, Any]
    created_at: datetime | None
    sent: Any
    model: str | None
    provider: str | None
    request: str | None


_STORED_FIELDS: Final = frozenset({"seq", "created_at"})


class Message(Value):
    """One message of a session.

    `Message.user(...)`, `Message.assistant(...)`, `Message.tool(...)` and `Message.system(...)` create a message with
    that role. A dump leaves out empty fields, except `role` and `content`.

    Attributes:
        role: The role: a `MessageRole`, or its text.
        content: Any JSON: text, a list of content blocks, a dict, or None (the default).
        author: The agent that wrote the message. Default: None.
        name: The name of the tool whose result this is, or of the participant. Default: None.
        tool_call_id: The id of the call whose result this is. Default: None.
        tool_calls: The tool calls that the message asks for, or tool calls with their outputs. Default: none.
        tokens: The size of the message in tokens, 0 to 2**53 - 1. Default: None, not counted.
        id: Your id of the message, such as a request id; 1 to 512 bytes in UTF-8. A session stores only one message
            with an id, so an append with the same id can be repeated safely. Default: None.
        extra: Further fields of a provider or of yours, as a dict of JSON. Default: empty.
        created_at: The time of the message, with a time zone. Default: None; then the store sets the time at which it
            stores the message.
        sent: Any JSON: the content as the model received it, if that differs from `content`, for example by context
            that your program added. `history` and `window.as_prompt` use it in place of `content`; search, HTML pages
            and exports to other systems do not. Default: None, the model receives `content`.
        model: The name of the model that wrote the message, as the provider returned it. Default: None, unknown.
        provider: The provider that ran the model, such as `anthropic`, `vertex` or `deepseek`. Only this provider can
            read the signatures in the message. Default: None; then it is the vendor whose form the content has.
        request: The fingerprint of the request that the message answers, see `Prompt.fingerprint`. Default: None.
        seq: The position in the session's log, which the store assigns; 0 before the message is in a log.
        turn_no: The number of the turn that the message belongs to, which the store assigns; None without a turn.
        replayed: True if the append did not store the message again, because the session has a message with this id.
            The flag is not stored.

    Example:
        ```python
        from lango_store import Message

        question = Message.user("How are you?", id="request-17", tokens=5)
        assert question.role == "user"
        ```
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
    sent: Json = Field(default=None, exclude_if=absent)
    model: str | None = Field(default=None, exclude_if=absent)
    provider: str | None = Field(default=None, exclude_if=absent)
    request: str | None = Field(default=None, exclude_if=absent)
    seq: int = Field(default=0, ge=0, exclude_if=absent)
    turn_no: int | None = Field(default=None, exclude_if=absent)
    replayed: bool = Field(default=False, exclude=True, repr=False)

    @classmethod
    def user(cls, content: Any = None, **fields: Unpack[MessageFields]) -> Self:
        """Create a message with the role `user`.

        Args:
            content: Any JSON, usually text.
            **fields: Any other field of `Message`.
        """
        return cls(role=MessageRole.USER, content=content, **fields)

    @classmethod
    def assistant(cls, content: Any = None, **fields: Unpack[MessageFields]) -> Self:
        """Create a message with the role `assistant`: an answer of the model, or its tool calls.

        Args:
            content: Any JSON, usually text.
            **fields: Any other field of `Message`, such as `tool_calls` or `author`.
        """
        return cls(role=MessageRole.ASSISTANT, content=content, **fields)

    @property
    def failed(self) -> bool:
        """True for the result of a tool that failed.

        Then `extra` has `"failed": true`, or the content is an object of MCP with `"isError": true`.
        """
        return has_failed(self.extra, self.content)

    @classmethod
    def tool(cls, content: Any = None, *, failed: bool = False, **fields: Unpack[MessageFields]) -> Self:
        """Create a message with the role `tool`: the result of one or more tool calls.

        Args:
            content: The result of the call with the id `tool_call_id`: any JSON, usually text.
            failed: If the tool failed, and the content is the error for the model. It is stored in `extra`, as
                `"failed": true`. If `tool_calls` have outputs, an `extra` of a call can say the same of this call.
            **fields: Any other field of `Message`, among them `tool_call_id`, or `tool_calls` with an `output` each.
        """
        if failed:
            fields["extra"] = fields.get("extra", {}) | FAILED
        return cls(role=MessageRole.TOOL, content=content, **fields)

    @classmethod
    def system(cls, content: Any = None, **fields: Unpack[MessageFields]) -> Self:
        """Create a message with the role `system`: instructions to the model.

        Args:
            content: Any JSON, usually text.
            **fields: Any other field of `Message`.
        """
        return cls(role=MessageRole.SYSTEM, content=content, **fields)

    @property
    def _taken_by(self) -> str | None:
        """The id of the turn in progress that wrote the message or took it from the inbox, as the store has read it.

        It is not a field, so messages are equal and are dumped without it.
        """
        return self.__dict__.get("_taken_by")

    @property
    def due_at(self) -> datetime | None:
        """The time for which `inbox.put` has scheduled a message that waits in the inbox; otherwise None."""
        return self.__dict__.get("_due_at")

    def _stored_as(self, seq: int, created_at: datetime, turn_no: int | None, taken_by: str | None = None) -> Self:
        """Return the message as a store has written it: a copy that shares no list and no dict with this message."""
        values = self.__dict__.copy()
        fields = self.__pydantic_fields_set__ | _STORED_FIELDS
        values["seq"], values["turn_no"], values["replayed"] = seq, turn_no, False
        for name in CONTAINERS:
            value = values[name]
            if value and value.__class__ is not str:
                values[name] = [each._copied() for each in value] if name == "tool_calls" else copied(value)
        if turn_no is not None:
            fields.add("turn_no")
        if taken_by is not None:
            values["_taken_by"] = taken_by
        if values["created_at"] is None:
            values["created_at"] = created_at
        return built(type(self), values, fields)

    def _with_id(self, id: str) -> Self:
        """Return a copy with an id."""
        return built(type(self), self.__dict__ | {"id": id}, self.__pydantic_fields_set__ | {"id"})

    @classmethod
    def from_openai(cls, message: dict[str, Any], **fields: Any) -> Self:
        """Create a message from a dict of OpenAI's chat completions format.

        Args:
            message: The dict. Keys for which `Message` has no field are stored in `extra`. The `arguments` of a tool
                call stay JSON text.
            **fields: Further fields of `Message`, such as `author` or `id`.

        Raises:
            pydantic.ValidationError: The dict is not a message, for example because its role is unknown.
        """
        known = {name: value for name, value in message.items() if name in _OPENAI_FIELDS}
        extra = {name: value for name, value in message.items() if name not in _OPENAI_FIELDS and name != "tool_calls"}
        calls = message.get("tool_calls")
        if calls:
            known["tool_calls"] = [_call_from_openai(call) for call in calls]
        elif "tool_calls" in message:  # null or an empty list: stored, so that to_openai returns it again
            extra["tool_calls"] = calls
        return cls(**known, extra=extra, **fields)

    def to_openai(self) -> dict[str, Any]:
        """Return the message as a dict of OpenAI's chat completions format.

        Returns:
            Role, content, name, tool calls, `tool_call_id` and the fields of `extra`. If the message is the result of a
            tool call that has an `output`, the content is the output as text.

        Raises:
            ValueError: The message is a record, or OpenAI's format needs several messages for it, because it has calls
                together with outputs, or several outputs: use `window.as_prompt([message])`.
        """
        if self.role is MessageRole.RECORD:
            raise ValueError("a record is never part of a prompt: leave out messages with the role record")
        answered = [call for call in self.tool_calls if call.answered]
        if not answered:
            return as_asked(self)
        call = answered[0]
        is_answer = self.role.canonical is MessageRole.TOOL and (self.tool_call_id or call.id) == call.id
        if len(self.tool_calls) > 1 or not is_answer:
            raise ValueError(
                f"a message of role {self.role.value} with outputs in its tool calls is several messages for OpenAI: "
                "use window.as_prompt([message])"
            )
        answer = {"role": self.role.value, "content": as_text(call.output), "tool_call_id": call.id, "name": call.name}
        return {name: value for name, value in answer.items() if value or name == "content"} | self.extra


_SCALARS: Final = (
    "role", "author", "name", "tool_call_id", "tokens", "id", "created_at", "seq", "turn_no", "replayed", "model",
    "provider", "request",
)  # fmt: skip
CONTAINERS: Final = tuple(name for name in Message.model_fields if name not in _SCALARS)
"""The fields that may hold lists and dicts."""


def as_asked(message: Message) -> dict[str, Any]:
    """Return a message in OpenAI's format with its tool calls, but without their outputs."""
    asked: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.name is not None:
        asked["name"] = message.name
    if message.tool_call_id is not None:
        asked["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        asked["tool_calls"] = [call.to_openai() for call in message.tool_calls]
    return asked | message.extra


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
    """The fields of a session that `save_turn` creates: `SessionFields` without `metadata`."""

    agent_id: str | None
    user_id: str | None
    title: str | None
    model: str | None
    settings: dict[str, Any] | None
    tools: list[Any] | None


class SessionFields(OwnFields, total=False):
    """The fields of a new session, as keyword arguments of `create`, `open` and others.

    None is the same as leaving a field out.

    Attributes:
        agent_id: The id of the agent that the session belongs to.
        user_id: The id of the user that the session belongs to.
        title: A title for lists.
        model: The name of the model.
        settings: Settings of the session, such as the temperature: a dict of JSON.
        tools: The definitions of the tools: a list of JSON.
        metadata: Your own additional fields: a dict of JSON.
    """

    metadata: dict[str, Any] | None


class SessionChanges(SessionFields, total=False):
    """The fields of a session that `update` changes, as keyword arguments.

    None clears a field, except `last_consolidated`.

    Attributes:
        last_consolidated: The number of messages, from the beginning of the session, that a memory outside of the store
            has processed; 0 to `message_count`. The other fields are those of `SessionFields`.
        hold: The reason why the session must not be deleted; None releases it.
    """

    last_consolidated: int
    hold: str | None


class SessionInfo(Value):
    """A session without its messages, as `info` and `list_sessions` return it.

    All times are in UTC and have a time zone.

    Attributes:
        key: The key of the session: 1 to 512 characters.
        agent_id: The id of the agent that the session belongs to, or None.
        user_id: The id of the user that the session belongs to, or None.
        title: The title, or None.
        model: The name of the model, or None.
        settings: Settings of the session, a dict of JSON.
        metadata: Your own additional fields, a dict of JSON.
        tools: The definitions of the tools, a list of JSON.
        created_at: The time at which the session was created.
        updated_at: The time of the last activity: an append, an edit, a cut, a compaction, an undo or redo,
            `inbox.put`, or `update(activity=True)`. By default, lists are sorted by this time.
        expires_at: The time at which the session expires; None for a session that never expires.
        ttl_seconds: The TTL in seconds; None for a session that never expires. An append sets `expires_at` to the time
            when this TTL has passed, but never moves it to an earlier time.
        last_seq: The highest `seq` used so far, by messages or by changes. It never decreases.
        message_count: The number of messages in the log, without records.
        record_count: The number of records in the log.
        token_count: The sum of the messages' `tokens`, without records.
        turn_count: The number of turns, including compactions.
        summary_turn: The number of the turn that contains the current summary; None without a compaction.
        summarized_upto: The `seq` up to which the summary replaces messages in the window; 0 without a compaction.
        last_consolidated: The number of messages, from the beginning of the session, that a memory outside of the store
            has processed.
        forked_from: The key of the session that this one was copied from, or None.
        revision: A number that increases with every change of messages, turns, fields, values and expiry, but not with
            the inbox, drafts, leases, begun calls and suspensions. It starts at a random number, so that a new session
            with the same key does not repeat the revisions of the old one.
        hold: The reason why the session must not be deleted, or None.
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
    hold: str | None = None


class Turn(Value):
    """Messages that were saved together, and their usage.

    Attributes:
        turn_no: The number of the turn in its session: 1 for the first turn.
        kind: `turn`, or `compaction` for the messages of a summary.
        id: Your id for the turn, or None. A session stores only one turn with an id.
        first_seq: The `seq` of the first message.
        last_seq: The `seq` of the last message; less than `first_seq` in a turn without messages.
        replaced_upto: The `seq` up to which a compaction replaces messages in the window; None for other turns.
        usage: The usage that the model provider reported: any JSON object, as a dict.
        metadata: Your own data about the turn: a JSON object, as a dict.
        created_at: The time at which the turn was stored, in UTC.
        messages: The stored messages in the results of `save_turn` and `RunningTurn.save`; empty in lists of turns.
        replayed: True if the call did not store the turn, because it was already stored. The flag is not stored.
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
    """A summary, and the range of messages that it replaces in the window.

    Attributes:
        turn_no: The number of the turn that contains the summary.
        summary: The messages of the summary.
        replaced_after: The replaced messages have a `seq` greater than this number.
        replaced_upto: The replaced messages have a `seq` up to this number.
        replaced_messages: The number of replaced messages.
        discarded: True if the replaced messages were deleted; False if they are still in the log.
        created_at: The time of the compaction, in UTC.
    """

    turn_no: int
    summary: list[Message]
    replaced_after: int
    replaced_upto: int
    replaced_messages: int
    discarded: bool = False
    created_at: AwareDatetime


def new_key(now: datetime) -> str:
    """Create a session key: a UUIDv7 (RFC 9562), so that keys of a later millisecond sort after earlier keys."""
    milliseconds = int((now - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) & (2**48 - 1)
    number = milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
