"""Faults of lango_store, planted into a worker process: the checker has to find each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from lango_store import Conversation, LangoStoreError, Message
from lango_store._dialect.sqlite import SQLite
from lango_store._features.tool_calls import calls, suspensions
from lango_store._features.turns_in_progress import claims, running, working
from lango_store._operations.binds import IS_STORED_TURN, LIVE
from lango_store._operations.log import append_statements, leases, owed

MUTANTS: dict[str, Callable[[], None]] = {}
ON_POSTGRESQL = ("resend-without-id",)
"""The mutants that only a cut connection shows. The others run on SQLite."""

_append, _read, _tail = Conversation.append_messages, Conversation.all_messages, Conversation.tail


def _mutant(plant: Callable[[], None]) -> None:
    MUTANTS[plant.__name__.strip("_").replace("_", "-")] = plant


def _appending(append: Callable[[Conversation, list[Message]], Any]) -> None:
    def mutated(self: Conversation, messages: list[Message], **_: Any) -> Any:
        return append(self, messages)

    Conversation.append_messages = mutated  # type: ignore[assignment,method-assign]


def _without_ids(messages: list[Message]) -> list[Message]:
    return [message.model_copy(update={"id": None}) for message in messages]


@_mutant
def _lost_append() -> None:
    numbers = itertools.count()
    _appending(lambda self, new: new if next(numbers) % 5 == 4 else _append(self, new))


@_mutant
def _last_writer_wins() -> None:
    def append(self: Conversation, new: list[Message]) -> None:
        last = self.info().last_seq
        _append(self, new, replace_after=last)

    _appending(append)


@_mutant
def _seq_before_lock() -> None:
    insert = append_statements.insert_messages

    class Insert:
        def __init__(self, *names: str) -> None:
            self._statement = insert(*names)

        def run_many(self, connection: Any, rows: Any) -> None:
            for text in ("COMMIT", "BEGIN IMMEDIATE"):
                connection.connection.cursor().execute(text)
            self._statement.run_many(connection, rows)

    append_statements.insert_messages = Insert  # type: ignore[assignment]


@_mutant
def _commit_with_the_next_write() -> None:
    def start(self: SQLite, driver: Any, *, writes: bool) -> bool:
        if writes:
            driver.commit()
            driver.execute("BEGIN IMMEDIATE")
        return writes

    SQLite.start = start  # type: ignore[method-assign]
    SQLite.finish = lambda self, driver, started, *, failed: driver.rollback() if failed else None  # type: ignore[method-assign]


@_mutant
def _errors_ignored() -> None:
    def append(self: Conversation, new: list[Message]) -> None:
        with suppress(LangoStoreError):
            _append(self, new)

    _appending(append)


@_mutant
def _id_not_unique() -> None:
    _appending(lambda self, new: _append(self, _without_ids(new)))


@_mutant
def _resend_without_id() -> None:
    def append(self: Conversation, new: list[Message]) -> None:
        try:
            _append(self, new)
        except LangoStoreError:
            _append(self, _without_ids(new))

    _appending(append)


@_mutant
def _batch_in_two_transactions() -> None:
    _appending(lambda self, new: [_append(self, [each]) for each in new])


@_mutant
def _batch_reversed() -> None:
    _appending(lambda self, new: _append(self, new[::-1]))


@_mutant
def _text_altered() -> None:
    _appending(
        lambda self, new: _append(self, [each.model_copy(update={"content": f"{each.content} "}) for each in new])
    )


@_mutant
def _order_by_clock() -> None:
    def read(self: Conversation) -> list[Message]:
        return sorted(_read(self), key=lambda message: message.created_at or datetime.min)

    Conversation.all_messages = read  # type: ignore[assignment,method-assign]


@_mutant
def _stale_read() -> None:
    known: dict[str, list[Message]] = {}

    def read(self: Conversation) -> list[Message]:
        before = known.pop(self.key, None)
        return known.setdefault(self.key, _read(self)) if before is None else before

    Conversation.all_messages = read  # type: ignore[assignment,method-assign]


@_mutant
def _tail_skips() -> None:
    def tail(self: Conversation, **options: Any) -> Iterator[Any]:
        for event in _tail(self, **options):
            yield event.model_copy(update={"messages": event.messages[-1:]}) if event.event == "appended" else event

    Conversation.tail = tail  # type: ignore[assignment,method-assign]


def _take(*conditions: Any) -> None:
    def values(dialect: Any) -> dict[str, Any]:
        end = append_statements.lease_end(dialect)
        return {"lease_token": leases._TOKEN, "lease_turn": leases._TURN, "lease_until": end} | owed.BEGUN

    leases._take = leases._update(values, LIVE, *conditions)  # type: ignore[misc]


@_mutant
def _no_lease() -> None:
    _take(~IS_STORED_TURN)


@_mutant
def _lease_without_token() -> None:
    append_statements._HAS_LEASE = ()  # type: ignore[misc,assignment]
    leases._extend = leases._update(lambda dialect: {"lease_until": append_statements.lease_end(dialect)}, LIVE)  # type: ignore[misc]


@_mutant
def _stored_turn_runs_again() -> None:
    _take(leases._IS_FREE)
    running._find = lambda *_: None


@_mutant
def _interrupted_turn_forgotten() -> None:
    claims.is_any_due = lambda *_: False


@_mutant
def _interrupted_turn_dropped() -> None:
    def begin(self: working.Worker, turn: Any) -> bool:
        self._context.transact(leases.settle, turn.key, turn.lease.token)
        return False

    working.Worker.begin = begin  # type: ignore[method-assign]


@_mutant
def _earlier_attempt_forgotten() -> None:
    running._appended_before = lambda *_: []


@_mutant
def _call_result_forgotten() -> None:
    calls._result = lambda *_: None


@_mutant
def _answer_overwritten() -> None:
    suspensions._IS_OPEN = sa.true()  # type: ignore[misc]
