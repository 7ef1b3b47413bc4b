"""Statement observers: functions called with the text and duration of each statement."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from lango_store._dialect.statement import OBSERVER, Observer


def observer_of(engine: sa.Engine, on_statement: Observer | None) -> Observer | None:
    """Return the function to call after each statement: the store's observer, the engine's log, or both."""
    if not engine.logger.isEnabledFor(logging.INFO):
        return on_statement

    def log(text: str, seconds: float) -> None:
        engine.logger.info("%s [%.6f s]", text, seconds)
        if on_statement is not None:
            on_statement(text, seconds)

    return log


@contextmanager
def observed(connection: sa.Connection, on_statement: Observer | None) -> Iterator[None]:
    """Report each statement on a connection to the observer, whether run by SQLAlchemy or on our own cursors."""
    observer = observer_of(connection.engine, on_statement)
    if observer is None:
        yield
        return
    started: list[float] = []

    def before(*_: Any) -> None:
        started.append(perf_counter())

    def after(_: Any, __: Any, text: str, *___: Any) -> None:
        assert on_statement is not None
        on_statement(text, perf_counter() - started.pop())

    listeners = {} if on_statement is None else {"before_cursor_execute": before, "after_cursor_execute": after}
    connection.execution_options(**{OBSERVER: observer})
    for name, listener in listeners.items():
        event.listen(connection, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            event.remove(connection, name, listener)
        connection.execution_options(**{OBSERVER: None})
