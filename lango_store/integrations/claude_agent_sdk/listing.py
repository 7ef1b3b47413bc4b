"""The transcripts of a project or of a session, and the summaries of sessions: folded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import sqlalchemy as sa
from claude_agent_sdk import fold_session_summary

from lango_store.columns import as_stored
from lango_store.dialect import Dialect, dialect_of
from lango_store.errors import SessionNotFound
from lango_store.integrations.claude_agent_sdk.entries import NAME
from lango_store.integrations.claude_agent_sdk.transcripts import Transcript
from lango_store.operations.binds import LIVE, SESSION, VALUE, number, of_session, session_key
from lango_store.operations.lists import MAX_PAGE, end_of_prefix
from lango_store.operations.rows import next_place, stored_json, stored_time
from lango_store.statement import Statement
from lango_store.store import Store

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionSummaryEntry

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDED: Final = f"{NAME}.summary"
"""The value of a session that is its summary, and what of the session it was folded from."""


def _below(_: Dialect, *, folded: bool) -> sa.Executable:
    # Keys are joined with ":", so that what is deeper below has one more of them.
    rest = sa.func.substr(SESSION.c.key, sa.cast(number("start"), sa.Integer))
    columns: list[sa.ColumnElement[Any]] = [SESSION.c.key, as_stored(SESSION.c.updated_at)]
    found: Any = SESSION
    if folded:
        removed = SESSION.c.last_seq - SESSION.c.message_count - SESSION.c.record_count
        columns += [SESSION.c.incarnation, removed, SESSION.c.last_seq, as_stored(VALUE.c.value)]
        its = sa.and_(of_session(VALUE, SESSION.c.key), VALUE.c.name == _FOLDED)
        found = SESSION.join(VALUE, its, isouter=True)
    return (
        sa.select(*columns)
        .select_from(found)
        .where(
            SESSION.c.key >= session_key("begin"),
            SESSION.c.key < session_key("end"),
            SESSION.c.key > session_key("after"),
            LIVE,
            rest.not_like("%:%"),
        )
        .order_by(SESSION.c.key)
        .limit(number("limit"))
    )


_listed = Statement(lambda dialect: _below(dialect, folded=False))
_listed_with_summaries = Statement(lambda dialect: _below(dialect, folded=True))


def below(store: Store, key: str) -> Iterator[tuple[str, int]]:
    """Yield the live sessions right below a key or project, each with the time of its last write in milliseconds."""
    for key_of_one, updated_at in _pages(store, _listed, key):
        yield key_of_one, _milliseconds(stored_time(key_of_one, "updated_at", updated_at))


def _pages(store: Store, statement: Statement, above: str) -> Iterator[Sequence[Any]]:
    above, access = f"{above}:", store.access
    values: dict[str, Any] = {"begin": above, "end": end_of_prefix(above), "start": len(above) + 1}
    values |= {"after": "", "limit": MAX_PAGE}
    while True:
        with access.single_read() as connection:
            moment = dialect_of(connection).time(access.moment(connection))
            found = statement.run(connection, values | {"now": moment})
        yield from found
        if len(found) < MAX_PAGE:
            return
        values["after"] = next_place(values["after"], found[-1][0])


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def summaries(store: Store, project: str, named: Callable[[str], SessionKey]) -> Iterator[SessionSummaryEntry]:
    """Yield the summary of each session of a project, after folding into it what came since that was done last."""
    for key, updated_at, *state in _pages(store, _listed_with_summaries, project):
        try:
            data = _folded(store, key, named(key), *state)
        except SessionNotFound:  # deleted since it was listed
            continue
        mtime = _milliseconds(stored_time(key, "updated_at", updated_at))
        yield {"session_id": named(key)["session_id"], "mtime": mtime, "data": data}


def _folded(
    store: Store, key: str, names: SessionKey, incarnation: int, removed: int, last_seq: int, stored: str | None
) -> dict[str, Any]:
    # A session made anew under its key, or that lost messages, has another life: its summary begins again.
    found: Any = None if stored is None else stored_json(key, 0, _FOLDED, stored)
    life = [incarnation, removed]
    is_its = isinstance(found, dict) and found.get("life") == life
    data, folded = (found["data"], found["seq"]) if is_its else ({}, 0)
    if folded >= last_seq:
        return cast("dict[str, Any]", data)
    transcript = Transcript(key, names["session_id"])
    summary: SessionSummaryEntry = {"session_id": names["session_id"], "mtime": 0, "data": data}
    upto = last_seq
    with store.access.single_read() as connection:
        for seq, entries in transcript.later(connection, store.access.moment(connection), folded):
            summary = fold_session_summary(summary, names, cast("Any", entries))
            upto = max(upto, seq)
    store.conversation(key).set_values({_FOLDED: {"life": life, "seq": upto, "data": summary["data"]}})
    return summary["data"]
