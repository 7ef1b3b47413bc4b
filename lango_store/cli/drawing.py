"""How a session and its messages are drawn on a terminal."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from lango_store._values.content_blocks import parts_of, text_of
from lango_store._values.model import Message, MessageRole, SessionInfo, ToolCall
from lango_store.cli.terminal import as_json
from lango_store.cli.text import on_one_line, printable
from lango_store.errors import DamagedMessage

_FOLD: Final = 12
"""So many lines of a content are shown, unless all are asked for."""

_STYLES: Final = {MessageRole.USER: "cyan", MessageRole.ASSISTANT: "green", MessageRole.TOOL: "yellow"}


def head_of(info: SessionInfo, *, earlier: int) -> Panel:
    """Draw what a session is, above its messages; `earlier` is how many of these are left out."""
    records = f"{info.record_count:,} records, " if info.record_count else ""
    lines = [
        f"agent {info.agent_id or '–'}   user {info.user_id or '–'}   model {info.model or '–'}",
        f"{info.message_count:,} messages, {records}{info.token_count:,} tokens, last seq {info.last_seq:,}",
        f"created {info.created_at:%Y-%m-%d %H:%M:%S}   updated {info.updated_at:%Y-%m-%d %H:%M:%S} UTC",
    ]
    if info.expires_at is not None:
        lines.append(f"expires {info.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    for name in ("settings", "metadata"):
        if value := getattr(info, name):
            lines.append(f"{name} {as_json(value)}")
    if earlier:
        lines.append(f"… {earlier:,} earlier messages{' and records' if records else ''}, --all shows them")
    title = Text(on_one_line(info.key if info.title is None else f"{info.key} · {info.title}"), style="bold")
    return Panel(Text(printable("\n".join(lines))), title=title, title_align="left")


def _record(each: Message, *, full: bool) -> Group:
    said = [_plain(each.content)] if each.content is not None else []
    line = [f"{each.seq} {' · '.join(_who(each))}", *said, *map(_call, each.tool_calls)]
    return Group(Text(on_one_line("  ".join(line)), style="dim", no_wrap=not full, overflow="ellipsis"))


def _who(each: Message) -> list[str]:
    return [each.role.value, *(name for name in (each.author, each.name) if name)]


def drawn(each: Message | DamagedMessage, *, full: bool) -> Panel | Group:
    """Draw a message or a record; a long content is folded, unless `full`."""
    if isinstance(each, DamagedMessage):
        return Panel(
            Text(printable(str(each))),
            title=f"{each.seq} damaged: {each.field}",
            title_align="left",
            border_style="red",
        )
    if each.role is MessageRole.RECORD:
        return _record(each, full=full)
    parts: list[Text] = []
    if each.content is not None:
        parts.append(_folded(_said(each.content), full=full))
    for call in each.tool_calls:
        parts.append(_folded(_call(call), full=full))
    right = [f"{each.created_at:%H:%M:%S}"] if each.created_at else []
    if each.tokens is not None:
        right.append(f"{each.tokens:,} tokens")
    title = Text(on_one_line(f"{each.seq} {' · '.join(_who(each))}"))
    style = _STYLES.get(each.role.canonical, "magenta")
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=" · ".join(right),
        subtitle_align="right",
        border_style=style,
    )


def _call(call: ToolCall) -> str:
    asked = "" if call.arguments is None else _plain(call.arguments)
    if not call.answered:
        return f"→ {call.name}({asked})"
    return f"← {call.name}{asked and f'({asked})'}: {_plain(call.output)}"


def _said(content: Any) -> str:
    blocks = parts_of(content)
    if blocks is None:
        return content if isinstance(content, str) else as_json(content, indent=2)
    return "\n".join(map(_plain, blocks))


def _plain(value: Any) -> str:
    text = text_of(value)
    return as_json(value) if text is None else text


def _folded(text: str, *, full: bool) -> Text:
    lines = printable(text).removesuffix("\n").split("\n")
    cut = [
        line if full or len(line) <= 1_000 else f"{line[:1_000]}… (+{len(line) - 1_000:,} characters)" for line in lines
    ]
    if full or len(cut) <= _FOLD:
        return Text("\n".join(cut))
    folded = Text("\n".join(cut[:_FOLD]))
    return folded.append(f"\n… {len(cut) - _FOLD} more lines, --full shows them", style="dim")
