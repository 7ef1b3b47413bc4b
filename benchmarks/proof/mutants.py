"""Faults of lango_store, planted into a worker process: the checker has to find each of them."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from lango_store import Conversation, LangoStoreError, Message
from lango_store._dialect.sqlite import SQLite
from lango_store._operations.binds import IS_STORED_TURN, LIVE
from lango_store._operations.log import append_statements
from lango_store._rooms.tool_calls import calls, suspensions
from lango_store._rooms.turns_in_progress import claims, leases, owed, running, working

_append, _read, _tail = Conversation.append_messages, Conversation.all_messages, Conversation.tail
_insert = append_statements.insert_messages
_numbers = itertools.count()
_known: dict[str, list[Message]] = {}


def _plant(target: Any, **values: Any) -> None:
    for name, value in values.items():
        getattr(target, name)  # a name that the package no longer has would plant nothing
        setattr(target, name, value)


def _appending(append: Any) -> None:
    _plant(Conversation, append_messages=lambda self, messages: append(self, [*messages]))


def _changed(messages: list[Message], **values: Any) -> list[Message]:
    return [message.model_copy(update=values) for message in messages]


def _append_ignoring_errors(self: Conversation, new: list[Message]) -> None:
    with suppress(LangoStoreError):
        _append(self, new)


def _append_and_resend_without_id(self: Conversation, new: list[Message]) -> None:
    try:
        _append(self, new)
    except LangoStoreError:
        _append(self, _changed(new, id=None))


class _InsertInSecondTransaction:
    def __init__(self, *names: str) -> None:
        self._statement = _insert(*names)

    def run_many(self, connection: Any, rows: Any) -> None:
        for text in ("COMMIT", "SELECT 1", "SELECT 1", "BEGIN IMMEDIATE"):  # more steps without the lock
            connection.connection.cursor().execute(text)
        self._statement.run_many(connection, rows)


def _start_with_late_commit(_: SQLite, driver: Any, *, writes: bool) -> bool:
    if writes:
        driver.commit()
        driver.execute("BEGIN IMMEDIATE")
    return writes


def _last_of_each_event(self: Conversation, **options: Any) -> Any:
    for event in _tail(self, **options):
        yield event.model_copy(update={"messages": event.messages[-1:]}) if event.event == "appended" else event


def _read_again(self: Conversation) -> list[Message]:
    return _known.pop(self.key, None) or _known.setdefault(self.key, _read(self))


def _take(*conditions: Any) -> None:
    turn = {"lease_token": leases._TOKEN, "lease_turn": leases._TURN} | owed.BEGUN
    _plant(leases, _take=leases._update(lambda dialect: turn | leases._end(dialect), LIVE, *conditions))


def _run_stored_turns_again() -> None:
    _take(leases._IS_FREE)
    _plant(running, find=lambda *_: None)


def _begin_dropping(self: working.Worker, turn: Any) -> bool:
    self._context.transact(leases.settle, turn.key, turn.lease.token)
    return False


MUTANTS: dict[str, Callable[[], None]] = {
    "lost-append": lambda: _appending(lambda self, new: new if next(_numbers) % 5 == 4 else _append(self, new)),
    "last-writer-wins": lambda: _appending(lambda self, new: _append(self, new, replace_after=self.info().last_seq)),
    "seq-before-lock": lambda: _plant(append_statements, insert_messages=_InsertInSecondTransaction),
    "late-commit": lambda: _plant(SQLite, start=_start_with_late_commit, finish=lambda *_, failed: failed),
    "errors-ignored": lambda: _appending(_append_ignoring_errors),
    "id-not-unique": lambda: _appending(lambda self, new: _append(self, _changed(new, id=None))),
    "resend-without-id": lambda: _appending(_append_and_resend_without_id),  # found on PostgreSQL only
    "batch-in-two": lambda: _appending(lambda self, new: [_append(self, [each]) for each in new]),
    "batch-reversed": lambda: _appending(lambda self, new: _append(self, new[::-1])),
    "text-altered": lambda: _appending(lambda self, new: _append(self, _changed(new, content="m"))),
    "order-by-clock": lambda: _plant(
        Conversation, all_messages=lambda self: sorted(_read(self), key=lambda each: str(each.created_at))
    ),
    "stale-read": lambda: _plant(Conversation, all_messages=_read_again),
    "tail-skips": lambda: _plant(Conversation, tail=_last_of_each_event),
    "no-lease": lambda: _take(~IS_STORED_TURN),
    "lease-without-token": lambda: _plant(leases.Lease.sql, conditions=()),
    "stored-turn-runs-again": _run_stored_turns_again,
    "turn-forgotten": lambda: _plant(claims, is_any_due=lambda *_: False),
    "turn-dropped": lambda: _plant(working.Worker, begin=_begin_dropping),
    "attempt-forgotten": lambda: _plant(running, appended_before=lambda *_: []),
    "call-forgotten": lambda: _plant(calls, _result=lambda *_: None),
    "answer-overwritten": lambda: _plant(suspensions, _IS_OPEN=sa.true()),
}
