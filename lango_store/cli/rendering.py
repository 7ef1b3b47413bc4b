"""Sessions and messages as rich panels."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from lango_store import content as contents
from lango_store._rooms.turns_in_progress.values import Draft, OpenTurn
from lango_store._values.model import Message, MessageRole, SessionInfo
from lango_store._values.usage import describe, numbers_of
from lango_store.cli.output import one_line, printable, quantity
from lango_store.content import Call, Media, Native, Part, Refusal, Result, Source, Thinking, read, shown, text_of
from lango_store.errors import DamagedMessage

_MAX_LINES, _MAX_LINE = 12, 1_000
"""The number of lines of a content, and of characters in a line, that are shown unless `full` is True."""

_STYLES: Final = {MessageRole.USER: "cyan", MessageRole.ASSISTANT: "green", MessageRole.TOOL: "yellow"}


def render_session(
    info: SessionInfo, usage: Mapping[str, Any], turn_state: Sequence[str] = (), *, omitted: int = 0
) -> Panel:
    """Return a panel that describes a session; `omitted` is the number of messages that are not shown."""
    records = f"{quantity(info.record_count, 'record')}, " if info.record_count else ""
    tokens = f"{quantity(info.token_count, 'message token')}, " if info.token_count else ""
    turns = f"{quantity(info.turn_count, 'turn')}, " if info.turn_count else ""
    lines = [
        f"agent {info.agent_id or '–'}   user {info.user_id or '–'}   model {info.model or '–'}",
        f"{quantity(info.message_count, 'message')}, {records}{tokens}{turns}last seq {info.last_seq:,}",
        f"created {info.created_at:%Y-%m-%d %H:%M:%S}   updated {info.updated_at:%Y-%m-%d %H:%M:%S} UTC",
    ]
    if totals := ", ".join(describe(numbers_of(usage))):
        lines.append(f"usage of turns: {totals}")
    lines += map(one_line, turn_state)
    if info.expires_at is not None:
        lines.append(f"expires {info.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    if info.hold is not None:
        lines.append(f"on hold: {one_line(info.hold)}")
    lines += [f"{name} {_json(value)}" for name in ("settings", "metadata") if (value := getattr(info, name))]
    if omitted:
        earlier = f"{omitted:,} earlier messages and records" if records else quantity(omitted, "earlier message")
        lines.append(f"… {earlier} not shown: use --all")
    return _panel(Text(printable("\n".join(lines))), f"{info.key} · {info.title}" if info.title else info.key)


def describe_turn_state(turn: OpenTurn | None, drafts: Sequence[Draft], inbox: Sequence[Message]) -> list[str]:
    """Return a line for each of these that the session has: a turn in progress, drafts, and messages in the inbox."""
    lines = []
    if turn is not None:
        ends = "ends" if turn.held else "ended"
        lines.append(f"turn {turn.id} in progress, lease {ends} {turn.until:%Y-%m-%d %H:%M:%S} UTC")
    if drafts:
        characters = sum(len(draft.text) for draft in drafts)
        lines.append(f"{quantity(len(drafts), 'draft')} with {quantity(characters, 'character')}")
    if inbox:
        lines.append(f"{quantity(len(inbox), 'message')} in the inbox")
    return lines


def render_message(message: Message | DamagedMessage, *, full: bool = False) -> RenderableType:
    """Return a panel with a message, or one line for a record. Long contents are cut unless `full` is True."""
    if isinstance(message, DamagedMessage):
        title = f"{message.seq} damaged: {message.field}"
        return _panel(Text(printable(str(message))), title, border_style="red")
    title = (
        f"{message.seq} {' · '.join(filter(None, (message.role.value, message.author, message.name, message.model)))}"
    )
    if message.role is MessageRole.RECORD:
        calls = [f"{call.name} {_plain(call.output)}" for call in message.tool_calls]
        content = [] if message.content is None else [_plain(message.content)]
        line = one_line("  ".join([title, *content, *calls]))
        return Group(Text(line, style="dim", no_wrap=not full, overflow="ellipsis"))  # a bare Text would be wrapped
    if message.failed:
        title += " · failed"
    grouped = groupby(shown(message), lambda part: isinstance(part, Call | Result))
    texts = ["\n".join(map(_part, parts)) for _, parts in grouped]
    facts = [f"{message.created_at:%H:%M:%S}"] if message.created_at else []
    if message.tokens is not None:
        facts.append(quantity(message.tokens, "token"))
    return _panel(
        Group(*(Text(printable(text)) if full else _cut(printable(text)) for text in texts)),
        title,
        subtitle=" · ".join(facts),
        subtitle_align="right",
        border_style=_STYLES.get(message.role.canonical, "magenta"),
    )


def _panel(body: RenderableType, title: str, **options: Any) -> Panel:
    return Panel(body, title=Text(one_line(title), style="bold"), title_align="left", **options)


def _part(part: Part, indent: int | None = 2) -> str:
    if isinstance(part, Native):
        part = part.shown
    match part:
        case contents.Text() | Refusal():
            return part.text
        case Thinking():
            return f"(thinking) {part.text}"
        case Media():
            return f"[{part.label}]{f' {part.url}' if part.url else ''}"
        case Call():
            return f"→ {part.name}({'' if part.arguments is None else _plain(part.arguments)})"
        case Result():
            output = "\n".join(_part(each, None) for each in read(part.content, is_data=True))
            return f"← {part.name or part.id or ''}{' failed' if part.failed else ''}: {output}"
        case Source():
            return f"[{part.title or 'source'}] {part.url or ''}"
    return _json(part.block, indent)


def _plain(value: Any) -> str:
    text = text_of(value)
    return _json(value) if text is None else text


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _cut(text: str) -> Text:
    lines = text.removesuffix("\n").split("\n")
    shown = Text()
    for line in lines[:_MAX_LINES]:
        more = f"… (+{quantity(len(line) - _MAX_LINE, 'character')})" if len(line) > _MAX_LINE else ""
        shown.append(f"{line[:_MAX_LINE]}{more}\n")
    if len(lines) > _MAX_LINES:
        shown.append(f"… {quantity(len(lines) - _MAX_LINES, 'more line')}: use --full", style="dim")
    shown.rstrip()
    return shown
