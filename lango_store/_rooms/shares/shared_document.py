"""The document of a share."""

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from lango_store._dialect import Moment
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import IS_COMPACTION, TURN, of_session
from lango_store._operations.log import messages
from lango_store._operations.session import sessions
from lango_store._operations.session.lists import Filter
from lango_store._rooms.documents.document import render_log
from lango_store._rooms.documents.page import PAGE_END, escape_line, render_time, start_page
from lango_store._rooms.shares import sharing
from lango_store._rooms.shares.values import Share
from lango_store._values.model import Message, MessageRole, SessionInfo
from lango_store.content import Media, Native, Part, Refusal, Source, Text, shown

_SPOKEN: Final = (MessageRole.USER, MessageRole.ASSISTANT)
_SHOWN_WITHOUT_TOOLS: Final = (Text, Refusal, Media, Source)
_summaries: Final = Statement(sa.select(TURN.c.turn_no).where(of_session(TURN), IS_COMPACTION))


def read(connection: sa.Connection, now: Moment, chosen: Filter, digest: str) -> tuple[Share, str, list[Message]]:
    """Read a share, the title of the session, and the messages that it shows, without summaries."""
    share, left_out = sharing.find(connection, now, chosen, digest)
    title = sessions.info(connection, now, share.key).title or "Conversation"
    summaries = {turn_no for (turn_no,) in _summaries.run(connection, {"key": share.key})}
    log = messages.read(connection, now, share.key, messages.Range(before=share.upto + 1))
    return share, title, [each for each in log if each.turn_no not in summaries and each.seq not in left_out]


def render(share: Share, title: str, log: list[Message]) -> Iterator[str]:
    """Yield the document in pieces. It shows no field of the session except the title, and no author."""
    yield start_page(title)
    yield f'<header class="session"><h1 dir="auto">{escape_line(title)}</h1>'
    yield f'<p class="facts">shared {render_time(share.created_at)}</p></header>\n'
    parts = {each.seq: [*_parts(each, tools=share.tools)] for each in log}
    public = [each.model_copy(update={"author": None, "tokens": None}) for each in log if parts[each.seq]]
    info = SessionInfo(key="", created_at=share.created_at, updated_at=share.created_at, message_count=len(public))
    yield from render_log(info, public, parts=lambda message: parts[message.seq])
    yield PAGE_END


def _parts(message: Message, *, tools: bool) -> Iterator[Part]:
    """Yield the parts of a message that a share shows; none of an instruction or a record."""
    role = message.role.canonical
    if role in _SPOKEN or (tools and role is MessageRole.TOOL):
        for part in shown(message):
            if tools or isinstance(part.shown if isinstance(part, Native) else part, _SHOWN_WITHOUT_TOOLS):
                yield part
