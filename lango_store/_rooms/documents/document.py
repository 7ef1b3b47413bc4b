"""Render a session as a self-contained HTML document. Markdown is rendered, except in the results of tools."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from lango_store._rooms.alternatives.values import Alternative, describe_versions
from lango_store._rooms.documents.page import PAGE_END, escape_line, escape_text, render_time, start_page, visible
from lango_store._rooms.tool_calls.values import Suspension, describe_answers
from lango_store._values.json_faults import levels_within
from lango_store._values.model import Message, MessageRole, SessionInfo, Turn
from lango_store._values.usage import describe, numbers_of, total
from lango_store.content import (
    Call,
    Media,
    Native,
    Part,
    Refusal,
    Result,
    Text,
    Thinking,
    ignore,
    plain,
    read,
    shown,
    text_of,
)
from lango_store.errors import DamagedMessage

_MAX_UNFOLDED_LENGTH: Final = 4_000
_MAX_UNFOLDED_LINES: Final = 60
_BRIEF_LENGTH: Final = 100
_MAX_PARSED_LENGTH: Final = 50_000
_MAX_INDENTED_LEVELS: Final = 20
_LONG_SESSION: Final = 50
"""From this number of messages on, the results of tools are folded, and turns have an index."""

_KINDS: Final = {"model": "assistant", "function": "tool", "developer": "system"}
_WHITESPACE: Final = re.compile(r"\s+")
_MARKUP: Final = re.compile(r"[`*_~<\[\]|\\#>]|^ *(?:[-+=]|\d+[.)])(?:[-+= ]|$)", re.MULTILINE)
_IMAGE: Final = re.compile("data:image/(gif|jpeg|png|webp);base64,[A-Za-z0-9+/]+={0,2}")


def document(
    session: SessionInfo,
    messages: Iterable[Message | DamagedMessage],
    turns: Iterable[Turn] = (),
    suspensions: Iterable[Suspension] = (),
) -> Iterator[str]:
    """Yield the document in pieces: first the session, then its messages and turns."""
    yield start_page(session.title or session.key)
    yield from render_section(session, messages, turns, suspensions)
    yield PAGE_END


def render_section(
    session: SessionInfo,
    messages: Iterable[Message | DamagedMessage],
    turns: Iterable[Turn] = (),
    suspensions: Iterable[Suspension] = (),
    alternatives: Iterable[Alternative] = (),
) -> Iterator[str]:
    """Yield the part of a document that shows one session."""
    turns = list(turns)
    yield render_header(session, total(turn.usage for turn in turns))
    yield from render_log(session, messages, turns, suspensions, alternatives=alternatives)


def render_header(session: SessionInfo, usage: Mapping[str, Any]) -> str:
    """Return the header with the fields of a session and the usage of its turns."""
    counters = {
        "message": session.message_count,
        "record": session.record_count,
        "message token": session.token_count,
        "turn": session.turn_count,
    }
    counts = [f"{number:,} {noun}{'' if number == 1 else 's'}" for noun, number in counters.items() if number]
    rows = [
        ("key", escape_line(session.key)),
        ("agent", escape_line(session.agent_id)),
        ("user", escape_line(session.user_id)),
        ("model", escape_line(session.model)),
        ("holds", ", ".join(counts)),
        ("usage of turns", escape_line(" · ".join(describe(numbers_of(usage))))),
        ("created", render_time(session.created_at)),
        ("updated", render_time(session.updated_at)),
        ("expires", render_time(session.expires_at)),
        ("on hold", escape_line(session.hold)),
    ]
    fields = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows if value)
    folded = "".join(
        _folded(name, _json(value)) for name in ("settings", "metadata") if (value := getattr(session, name))
    )
    return (
        f'<header class="session"><h1 dir="auto">{escape_line(session.title or session.key)}</h1>'
        f"<dl>{fields}</dl>{folded}</header>\n"
    )


def render_log(
    session: SessionInfo,
    messages: Iterable[Message | DamagedMessage],
    turns: Iterable[Turn] = (),
    suspensions: Iterable[Suspension] = (),
    parts: Callable[[Message], list[Part]] = shown,
    alternatives: Iterable[Alternative] = (),
) -> Iterator[str]:
    """Yield the messages, with each turn before its first message; for a long session also an index of the turns.

    Suspensions are shown after the message whose calls wait, and at the end if they have no calls. `parts` returns the
    parts of a message that are shown. The first message after a point at which the log branches names the alternatives.
    """
    answers = describe_answers(suspensions)
    versions = describe_versions(alternatives)
    is_long = session.message_count >= _LONG_SESSION
    index: list[str] = []
    remaining = {turn.turn_no: turn for turn in turns}
    has_index = is_long and bool(remaining)
    if has_index:
        yield '<p class="facts"><a href="#turns">Index of turns</a></p>\n'
    compactions = {number for number, turn in remaining.items() if turn.kind == "compaction"} | {session.summary_turn}
    for message in messages:
        if isinstance(message, DamagedMessage):
            yield _damaged(message)
            continue
        turn = None if message.turn_no is None else remaining.pop(message.turn_no, None)
        if turn is not None:
            # Turns without messages are shown before the next turn, in the order in which they were saved.
            empty = [
                each for each in remaining.values() if each.turn_no < turn.turn_no and each.last_seq < each.first_seq
            ]
            for each in empty:
                del remaining[each.turn_no]
            index.append(f'<li><a href="#t{turn.turn_no}">turn {turn.turn_no}</a> {_first_words(message)}</li>')
            yield from map(_turn, (*empty, turn))
        if message.role is MessageRole.RECORD:
            yield _record(message)
        else:
            is_summary = message.turn_no is not None and message.turn_no in compactions
            yield _message(message, parts(message), is_summary=is_summary, is_long=is_long)
        if message.seq in versions:
            yield _answer(versions[message.seq])
        yield from map(_answer, answers.get(message.seq, ()))
    yield from map(_answer, answers.get(None, ()))
    yield from map(_turn, (turn for turn in remaining.values() if turn.last_seq < turn.first_seq))
    if has_index:
        yield f'<nav id="turns" aria-label="turns"><ol>{"".join(index)}</ol></nav>\n'


# One message


def _message(message: Message, parts: list[Part], *, is_summary: bool, is_long: bool) -> str:
    kind = "summary" if is_summary else _KINDS.get(message.role, message.role)
    role = f"summary, {message.role}" if is_summary else str(message.role)
    names = "".join(
        f' <span class="by" dir="auto">{escape_line(name)}</span>' for name in (message.author, message.name) if name
    )
    if message.failed:
        names += _FAILED
    render = _output if kind == "tool" else _markdown
    content = "".join(_part(part, render) for part in parts)
    if kind == "tool" and is_long and message.content is not None and content and not content.startswith("<details"):
        content = f"<details><summary>{_brief(message.content)}</summary>{content}</details>"
    facts = [render_time(message.created_at)] if message.created_at else []
    if message.model:
        facts.append(escape_line(message.model))
    if message.tokens is not None:
        facts.append(f"{message.tokens:,} tokens")
    return (
        f'<article class="{kind}" id="m{message.seq}">'
        f'<header><h2><a href="#m{message.seq}">{message.seq}</a> <span class="role">{role}</span>{names}</h2>'
        f'<p class="facts">{" · ".join(facts)}</p></header>'
        f"{content}</article>\n"
    )


def _record(message: Message) -> str:
    parts = [] if message.content is None else [_brief(message.content)]
    parts += [f"{escape_line(call.name)} {_brief(call.output)}" for call in message.tool_calls]
    body = _folded(f"{message.seq} record", _json(message.content), brief=" ".join(parts))
    return f'<article class="record" id="m{message.seq}">{body}</article>\n'


def _damaged(error: DamagedMessage) -> str:
    return (
        f'<article class="damaged"><header><h2>{error.seq} <span class="role">damaged</span></h2></header>'
        f'<p class="text">{escape_text(str(error))}</p></article>\n'
    )


def _turn(turn: Turn) -> str:
    facts = [_brief(fact) for fact in (turn.metadata.get("model"), *describe(turn.usage)) if fact is not None]
    if turn.id:
        facts.insert(0, escape_line(turn.id))
    if turn.kind == "compaction":
        title = f"compaction {turn.turn_no}, replaces messages up to {turn.replaced_upto}"
    else:
        title = f"turn {turn.turn_no}"
    return f'<p class="turn" id="t{turn.turn_no}"><strong>{title}</strong> {" · ".join(facts)}</p>\n'


def _answer(line: str) -> str:
    return f'<p class="facts answer" dir="auto">{escape_line(line)}</p>\n'


def _first_words(message: Message) -> str:
    return "" if message.content is None else _brief(message.content)


def _plain(text: str) -> str:
    return f'<div class="text" dir="auto">{escape_text(text)}</div>'


def _output(text: str) -> str:
    """Render the text that a tool has returned: JSON is folded, unless it can be read at a glance."""
    is_folded = len(text) > _BRIEF_LENGTH and _indented(text) is not None
    return _folded_json(text) if is_folded else _plain(text)


def _markdown(text: str) -> str:
    if not _MARKUP.search(text) or len(text) > _MAX_PARSED_LENGTH:
        return _plain(text)
    from lango_store._rooms.documents import markdown

    shown = markdown.render(visible(text))
    return _plain(text) if shown is None else f'<div class="text markdown" dir="auto">{shown}</div>'


def _paragraph(text: str, render: Callable[[str], str]) -> str:
    shown = render(text)
    if shown.startswith("<details"):
        return shown
    if len(text) <= _MAX_UNFOLDED_LENGTH and text.count("\n") < _MAX_UNFOLDED_LINES:
        return shown
    return (
        f'<details class="long"><summary dir="auto">{_brief(text)} <small>{len(text):,} characters</small>'
        f"</summary>{shown}</details>"
    )


def _part(part: Part, render: Callable[[str], str]) -> str:
    if isinstance(part, Native):
        part = part.shown
    match part:
        case Text() | Refusal():
            return _paragraph(part.text, render)
        case Media() if part.is_image and (match := _IMAGE.fullmatch(part.uri or "")):
            return f'<img src="{match[0]}" alt="{match[1].upper()} image">'
        case Media():
            shown = {"type": part.label, "url": part.url, "file": part.file}
            return _block(shown | ({"data": f"{len(part.data):,} characters in base64"} if part.data else {}))
        case Thinking() if part.text:
            name = '<span class="name">thinking</span>'
            return f"<details><summary>{name}</summary>{_paragraph(part.text, render)}</details>"
        case Call():
            value = part.arguments
            body = "" if value is None else f"<h3>arguments</h3><pre>{_json(value)}</pre>"
            return _folded_call(part, "" if value is None else _brief(value), body)
        case Result():
            found = read(part.content, is_data=True)
            body = "".join(_part(each, _output) for each in found)
            return _folded_call(part, f"→ {_brief(plain(found, ignore))}", f"<h3>output</h3>{body}", failed=part.failed)
    if part.block is None:
        return ""
    blocks = part.block if isinstance(part.block, list) else [part.block]
    if all(isinstance(block, dict) and (blocks is part.block or "type" in block) for block in blocks):
        return "".join(map(_block, blocks))
    if render is _output and len(_compact(part.block)) > _BRIEF_LENGTH:
        return _folded_json(part.block)
    text = _json(part.block)
    return f"<pre>{text}</pre>" if _is_short(part.block) else _folded("content", text)


def _block(block: dict[str, Any]) -> str:
    kind = block.get("type")
    fields = {name: value for name, value in block.items() if name != "type" and value is not None}
    name = escape_line(kind) if isinstance(kind, str) and kind else "block"
    brief = " ".join(f"{escape_line(name)} {_brief(value)}" for name, value in fields.items())
    body = "".join(f"<h3>{escape_line(name)}</h3><pre>{_json(value)}</pre>" for name, value in fields.items())
    return f'<details><summary><span class="name">{name}</span> <small>{brief}</small></summary>{body}</details>'


def _folded_call(part: Call | Result, brief: str, body: str, *, failed: bool = False) -> str:
    id = f'<p class="id">{escape_line(part.id)}</p>' if part.id else ""
    title = f'<span class="name">{escape_line(part.name or "result")}</span>{_FAILED if failed else ""}'
    return f'<details class="call"><summary>{title} <small>{brief}</small></summary>{id}{body}</details>'


# Pieces

_FAILED: Final = ' <strong class="failed">failed</strong>'


def _folded(name: str, body: str, brief: str = "") -> str:
    small = f" <small>{brief}</small>" if brief else ""
    return f"<details><summary>{name}{small}</summary><pre>{body}</pre></details>"


def _folded_json(value: Any) -> str:
    return f"<details><summary><small>{_brief(value)}</small></summary><pre>{_json(value)}</pre></details>"


def _is_short(value: Any) -> bool:
    text = _readable(value)
    return len(text) <= _MAX_UNFOLDED_LENGTH and text.count("\n") < _MAX_UNFOLDED_LINES


def _brief(value: Any) -> str:
    text = _compact(value)
    return escape_line(_WHITESPACE.sub(" ", text if len(text) <= _BRIEF_LENGTH else f"{text[:_BRIEF_LENGTH]}…"))


def _compact(value: Any) -> str:
    text = text_of(value)
    return json.dumps(value, ensure_ascii=False) if text is None else text


def _json(value: Any) -> str:
    return escape_text(_readable(value))


def _readable(value: Any) -> str:
    text = text_of(value)
    return json.dumps(value, ensure_ascii=False, indent=2) if text is None else _indented(text) or text


def _indented(text: str) -> str | None:
    """Return the JSON of an object or a list indented; None for other texts, and if more than spaces would change."""
    if len(text) > _MAX_PARSED_LENGTH or not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
        written = [json.dumps(value, ensure_ascii=each) for each in (False, True)]
    except (ValueError, RecursionError):
        return None
    is_same = "".join(text.split()) in ("".join(each.split()) for each in written)
    return (
        json.dumps(value, ensure_ascii=False, indent=2)
        if is_same and levels_within(value, _MAX_INDENTED_LEVELS)
        else None
    )
