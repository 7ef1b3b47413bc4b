"""Set the end of the log aside, make an alternative the present one, and drop alternatives."""

import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    IN_SUMMARY,
    IS_COMPACTION,
    IS_RECORD,
    KEY,
    MESSAGE,
    NOW,
    SESSION,
    TURN,
    number,
    numbers_of_list,
    of_session,
)
from lango_store._operations.log import messages, payloads, removals
from lango_store._operations.log.changes import (
    NOT_RECORDED,
    LogChange,
    Recorder,
    Rows,
    counted,
    delete_orphans,
    recorder_of,
    recording,
)
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import Expected
from lango_store._operations.session_tables import ASIDE
from lango_store._rooms.alternatives.tables import ALTERNATIVE, ALTERNATIVE_MESSAGE, ALTERNATIVE_TURN
from lango_store._rooms.tool_calls import calls, suspensions
from lango_store._rooms.turns_in_progress import inbox, leases
from lango_store._rooms.versions.kept_copies import COPY_OF, NUMBER, copying
from lango_store._values.model import MessageRole
from lango_store.errors import MessageNotFound

_ZERO: Final = sa.literal_column("0", sa.BigInteger())
_IN_LOG: Final = ALTERNATIVE.c.within.is_(None)
_CHOSEN: Final = number("alternative")

# Set aside


@functools.cache
def _copying(rows: Rows) -> Statement:
    alternative = {"alternative": _CHOSEN}
    return Statement(lambda dialect: copying(rows.table, ASIDE[rows.table], alternative, *rows.where(dialect)))


@dataclass(frozen=True)
class _Aside:
    """Copies what a change deletes to an alternative; passes everything to the recorder of the transaction, too."""

    alternative: int
    recorder: Recorder | None

    def copy(self, change: LogChange, rows: Rows, bound: Mapping[str, Any], next_at: int | None) -> None:
        """Copy rows that a change deletes."""
        if next_at is None:
            of_alternative = {"key": change.key, "alternative": self.alternative}
            _copying(rows).run_many(change.connection, [{**bound, **of_alternative}])
        if self.recorder is not None:
            self.recorder.copy(change, rows, bound, next_at)

    def columns(self, change: LogChange) -> Mapping[str, Any]:
        """Return the columns of the change's row of the recorder of the transaction."""
        return NOT_RECORDED if self.recorder is None else self.recorder.columns(change)


_rest: Final = Statement(
    sa.select(
        sa.func.min(MESSAGE.c.seq),
        sa.func.max(MESSAGE.c.seq),
        sa.func.coalesce(sa.func.sum(sa.case((IS_RECORD, _ZERO), else_=sa.literal_column("1"))), _ZERO),
    ).where(of_session(MESSAGE), removals.IS_AFTER)
)


def _end_up_to(seq: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return the lowest seq after which a cut removes the same as after the given one: of a message or a summary."""
    last = sa.select(MESSAGE.c.seq).where(of_session(MESSAGE), MESSAGE.c.seq <= seq, ~IN_SUMMARY)
    upto = sa.select(sa.func.max(TURN.c.replaced_upto)).where(of_session(TURN), IS_COMPACTION)
    ends = last.order_by(MESSAGE.c.seq.desc()).limit(1), upto.where(TURN.c.replaced_upto <= seq)
    of_message, of_summary = (sa.func.coalesce(each.scalar_subquery(), _ZERO) for each in ends)
    return sa.case((of_summary > of_message, of_summary), else_=of_message)


_ADDED: Final[dict[str, sa.ColumnElement[Any]]] = {
    "session_key": KEY,
    "first_seq": number("first"),
    "last_seq": number("last"),
    "after_seq": _end_up_to(number("after")),
    "message_count": number("count"),
    "set_aside_at": NOW,
}
_add: Final = Statement(sa.insert(ALTERNATIVE).from_select([*_ADDED], sa.select(*_ADDED.values())))
_move: Final = Statement(
    sa.update(ALTERNATIVE)
    .where(of_session(ALTERNATIVE), _IN_LOG, ALTERNATIVE.c.after_seq > number("after"))
    .where(ALTERNATIVE.c.first_seq != number("first"))
    .values(within=number("first"))
)
_note: Final = Statement(
    sa.update(SESSION)
    .where(of_session(SESSION))
    .values(
        alternatives=sa.func.nullif(
            sa.select(sa.func.count()).select_from(ALTERNATIVE).where(of_session(ALTERNATIVE)).scalar_subquery(), _ZERO
        )
    )
)


def _begin(connection: sa.Connection, now: datetime, key: str, after: int) -> int | None:
    """Add an alternative for the log after a seq, with the alternatives that branch off from it; return its id."""
    bound = {"key": key, "after": after, "now": dialect_of(connection).time(now)}
    ((first, last, count),) = _rest.run(connection, bound)
    if first is None:
        return None
    bound |= {"first": first, "last": last, "count": int(count)}
    _add.run_many(connection, [bound])
    calls.end_waits(connection, now, key, after)
    _move.run_many(connection, [bound])
    return int(first)


def set_aside(connection: sa.Connection, now: datetime, key: str, after: int, last_seq: int) -> int:
    """Set the log after a seq of a locked session aside, as `removals.cut` deletes it; return the number of messages.

    Without messages after the seq, nothing is done: turns without messages stay in the log.
    """
    if suspensions.append_results(connection, now, key, after):
        last_seq = sessions.lock(connection, now, key).last_seq
    if (alternative := _begin(connection, now, key, after)) is None:
        return 0
    with recording(connection, _Aside(alternative, recorder_of(connection))):
        count = removals.cut(connection, now, key, after, last_seq, "switch")
    _note.run_many(connection, [{"key": key}])
    return count


# Switch

_alternatives: Final = Statement(
    sa.select(ALTERNATIVE.c.first_seq, ALTERNATIVE.c.within, ALTERNATIVE.c.after_seq).where(of_session(ALTERNATIVE))
)
_leave: Final = Statement(
    sa.update(ALTERNATIVE).where(of_session(ALTERNATIVE), ALTERNATIVE.c.within == _CHOSEN).values(within=sa.null())
)
_delete: Final = Statement(sa.delete(ALTERNATIVE).where(of_session(ALTERNATIVE), ALTERNATIVE.c.first_seq == _CHOSEN))


def all_of(connection: sa.Connection, key: str) -> dict[int, tuple[int | None, int]]:
    """Return `within` and `after_seq` of each alternative of a session, also of those inside of others."""
    return {first: (within, after) for first, within, after in _alternatives.run(connection, {"key": key})}


def path_to(connection: sa.Connection, key: str, alternative: int) -> list[tuple[int, int]]:
    """Return the alternatives that lead from the log to one, and itself, each with its `after_seq`.

    The list is empty if there is no such alternative and the log has a message with this seq.
    """
    stored = all_of(connection, key)
    path: list[tuple[int, int]] = []
    current: int | None = alternative
    while current is not None and current in stored:
        within, after = stored.pop(current)
        path.insert(0, (current, after))
        current = within
    if not path and messages.at(connection, key, alternative) is None:
        raise MessageNotFound(key, alternative)
    return path


def switch(connection: sa.Connection, now: datetime, key: str, alternative: int, expected: Expected) -> bool:
    """Make an alternative the present one, with those that lead to it; return False if it is already.

    Raises:
        MessageNotFound: The session has no such alternative.
        Conflict: The session is not as expected.
        TurnInProgress: A turn is in progress.
        InvalidCut: A compaction has discarded messages before the alternative.
    """
    messages.check_seq("id", alternative)
    session = sessions.lock(connection, now, key)
    path = path_to(connection, key, alternative)
    if not path:
        return False
    expected.check(key, session)
    leases.check_free(connection, now, key, "")
    suspensions.append_results(connection, now, key, path[0][1])
    # The other results that wait are set aside with their calls, too: those of the tools of a page.
    inbox.append(connection, now, key, None, lambda each: each.role is MessageRole.TOOL and inbox.is_own(each.id))
    for each, after in path:
        _switch(connection, now, key, each, after)
    leases.end_request(connection, key)
    _note.run_many(connection, [{"key": key}])
    return True


def _switch(connection: sa.Connection, now: datetime, key: str, alternative: int, after: int) -> None:
    """Make an alternative that branches off from the log the present one."""
    session = sessions.lock(connection, now, key)
    removals.reject_gap(connection, key, after)
    before = _begin(connection, now, key, after)
    bound = {"key": key, "alternative": alternative}
    _leave.run_many(connection, [bound])
    _delete.run_many(connection, [bound])
    stored = {rows: _RESTORED[rows].count.run(connection, bound) for rows in _RESTORED}
    # A load detects the switch because the difference between `last_seq` and the numbers of rows grows; see `undo`.
    seq = session.last_seq + len(stored[MESSAGE]) + 1
    recorder = recorder_of(connection)
    with (
        recording(connection, recorder if before is None else _Aside(before, recorder)),
        LogChange(connection, now, key, "switch", seq, after) as change,
    ):
        if before is not None:
            removals.delete_after(change, after)
        remaining = session.message_count - change.messages
        shared = _shared.run(connection, bound)
        for rows in (TURN, MESSAGE):
            change.count(rows, stored[rows], -1)
            _RESTORED[rows].restore(change, alternative, is_recorded=recorder is not None)
        for turn_no, last_seq in shared:
            if not change.replace(_EXTENDED, turn_no=turn_no, last_seq=last_seq):
                change.replace(_WITHOUT_TURN, turn_no=turn_no)
        change.consolidated = min(last_consolidated(connection, key), remaining)


class _Restored:
    """The messages or turns of the alternative bound as `alternative`, with statements to restore them."""

    def __init__(self, table: sa.Table) -> None:
        rows, removed, name = ASIDE[table], COPY_OF[table], NUMBER[table]
        chosen = (of_session(rows), rows.c.alternative == _CHOSEN)
        self.count = Statement(sa.select(*counted(rows)).where(*chosen))
        self._insert = Statement(copying(rows, table, {}, *chosen))
        self._delete = Statement(sa.delete(rows).where(*chosen))
        # The log of an earlier moment does not have the rows: copies of them show from when on they are back.
        now = number("seq")
        is_chosen = removed.c[name].in_(sa.select(rows.c[name]).where(*chosen))
        end = sa.update(removed).where(of_session(removed), is_chosen, removed.c.next_at.is_(None))
        self._end = Statement(end.values(next_at=now))
        first = rows.c.seq if table is MESSAGE else rows.c.first_seq
        is_ended = sa.exists().where(of_session(removed), removed.c[name] == rows.c[name], removed.c.next_at == now)
        values = {"removed_at": first, "next_at": now}
        mark = copying(rows, removed, values, *chosen, ~is_ended)
        self._mark = Statement(
            lambda dialect: (
                dialect.insert(removed)
                .from_select([*removed.c.keys()], mark.select)
                .on_conflict_do_update(index_elements=[*removed.primary_key], set_={"next_at": now})
            )
        )

    def restore(self, change: LogChange, alternative: int, *, is_recorded: bool) -> None:
        """Move the rows back to the log."""
        marks = (self._end, self._mark) if is_recorded else ()
        for statement in (*marks, self._insert, self._delete):
            bound = {"key": change.key, "alternative": alternative, "seq": change.seq}
            statement.run_many(change.connection, [bound])


_RESTORED: Final = {table: _Restored(table) for table in (MESSAGE, TURN)}
# Messages of turns that begin before the alternative: a cut has shortened these turns.
_shared: Final = Statement(
    sa.select(ALTERNATIVE_MESSAGE.c.turn_no, sa.func.max(ALTERNATIVE_MESSAGE.c.seq))
    .where(of_session(ALTERNATIVE_MESSAGE), ALTERNATIVE_MESSAGE.c.alternative == _CHOSEN)
    .where(
        ALTERNATIVE_MESSAGE.c.turn_no.not_in(
            sa.select(ALTERNATIVE_TURN.c.turn_no).where(
                of_session(ALTERNATIVE_TURN), ALTERNATIVE_TURN.c.alternative == _CHOSEN
            )
        )
    )
    .group_by(ALTERNATIVE_MESSAGE.c.turn_no)
)
_OF_TURN: Final = number("turn_no")
_EXTENDED: Final = Rows(TURN, TURN.c.turn_no == _OF_TURN, last_seq=number("last_seq"))
_WITHOUT_TURN: Final = Rows(MESSAGE, MESSAGE.c.turn_no == _OF_TURN, turn_no=sa.null())
_consolidated: Final = Statement(sa.select(SESSION.c.last_consolidated).where(of_session(SESSION)))


def last_consolidated(connection: sa.Connection, key: str) -> int:
    """Return the session's `last_consolidated`."""
    return int(_consolidated.run(connection, {"key": key})[0][0])


# Drop


def drop(connection: sa.Connection, now: datetime, key: str, alternative: int) -> bool:
    """Delete an alternative of a live session and those that branch off from it; return False if there is none."""
    messages.check_seq("id", alternative)
    sessions.lock(connection, now, key)
    return _drop(connection, key, [alternative])


def drop_unreachable(change: LogChange) -> None:
    """Delete the alternatives whose branching point a change has removed from the log."""
    if change.kind == "switch":
        return
    begin = change.after_seq if change.kind == "discard" else 0
    bound = {"key": change.key, "begin": begin, "end": messages.MAX_SEQ, "all": int(change.kind == "clear")}
    _drop(change.connection, change.key, [first for (first,) in _unreachable.run(change.connection, bound)])


_unreachable: Final = Statement(
    sa.select(ALTERNATIVE.c.first_seq).where(
        of_session(ALTERNATIVE),
        _IN_LOG,
        sa.or_(
            ALTERNATIVE.c.after_seq > _end_up_to(number("end")),
            ALTERNATIVE.c.after_seq < number("begin"),
            number("all") == sa.literal_column("1"),
        ),
    )
)
_drops: Final = [
    Statement(
        lambda dialect, column=column: sa.delete(column.table).where(  # type: ignore[misc]
            of_session(column.table), column.in_(numbers_of_list(dialect, "ids"))
        )
    )
    for column in (ALTERNATIVE_MESSAGE.c.alternative, ALTERNATIVE_TURN.c.alternative, ALTERNATIVE.c.first_seq)
]


def _drop(connection: sa.Connection, key: str, ids: Collection[int]) -> bool:
    children: dict[int | None, list[int]] = {}
    for first, (within, _) in all_of(connection, key).items() if ids else ():
        children.setdefault(within, []).append(first)
    stored = {first for siblings in children.values() for first in siblings}
    dropped = [each for each in ids if each in stored]
    for each in dropped:  # grows while it is read: those within an alternative follow it
        dropped += children.get(each, ())
    if dropped:
        for statement in _drops:
            statement.run_many(connection, [{"key": key, "ids": json.dumps(dropped)}])
        _note.run_many(connection, [{"key": key}])
        delete_orphans(connection, key)
        payloads.release(connection, key)
    return bool(dropped)
