"""Checks of sessions against their models, and of a store's consistency."""

from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

import sqlalchemy as sa
from support.factories import seqs
from support.prompt_rules import faults
from support.session_model import ModelSession

from lango_store import Conversation, Message, Store, create_engine
from lango_store._dialect import detect_dialect, dialect_of
from lango_store._operations.binds import CHANGE, MESSAGE, SESSION, of_session
from lango_store.window.repair import INSTRUCTIONS


def assert_alike(found: Conversation, session: ModelSession) -> None:
    """Compare everything that a conversation returns with its model."""
    log_and_window(found, session)
    counters(found, session)
    turns_and_summaries(found, session)
    what_a_model_sees(found, session)
    assert found.values.get() == session.values


def log_and_window(found: Conversation, session: ModelSession) -> None:
    log = found.all_messages()
    assert log == session.log == list(found.iter_messages(page_size=2))
    assert [m.seq for m in log] == sorted({m.seq for m in log})
    window = session.window
    assert found.messages() == window
    for last in ends_of(window):
        assert found.messages(last=last) == window[max(len(window) - last, 0) :]
    for m in [m for m in log if m.id is not None][-2:]:
        assert found.find_message(str(m.id)) == m


def counters(found: Conversation, session: ModelSession) -> None:
    loaded = found.get()
    assert loaded.messages == session.window
    for info in (loaded, found.info()):
        assert (info.last_seq, info.message_count) == (session.last_seq, len(session.messages))
        assert info.record_count == len(session.log) - len(session.messages)
        assert info.token_count == sum(m.tokens or 0 for m in session.messages)
        assert (info.turn_count, info.last_consolidated) == (len(session.turns), session.last_consolidated)
        assert info.summary_turn == (session.summary_turn.turn_no if session.summary_turn else None)
        assert (info.summarized_upto, info.forked_from) == (session.summarized_upto, session.forked_from)
        assert info.created_at == session.created_at
        assert info.expires_at == session.expires_at
    assert loaded.last_seq >= max([m.seq for m in session.log], default=0)
    assert 0 <= loaded.last_consolidated <= loaded.message_count


def turns_and_summaries(found: Conversation, session: ModelSession) -> None:
    assert found.turns.list() == session.turns
    assert found.info().turn_count == len(session.turns)
    assert found.total_usage() == session.usage
    assert found.turns.list_compactions() == session.compactions


def what_a_model_sees(found: Conversation, session: ModelSession) -> None:
    window = session.window
    leading = 0 if session.summary else len(list(takewhile(lambda message: message.role in INSTRUCTIONS, window)))
    for last in (None, *ends_of(window)):
        prompt = found.history(last=last, unanswered="keep")
        if last == 0 or (last is not None and last >= count_to_send(window)):
            assert len(prompt) <= leading + last
        assert faults(found.history(last=last), "openai") == []
    if all(m.tokens is not None for m in window):
        assert len(found.history(max_tokens=10**6)) == len(found.history())


def count_to_send(messages: list[Message]) -> int:
    """Count the messages from the last one of the user or the model, to which a limited prompt always reaches back."""
    for number, each in enumerate(reversed(messages), 1):
        if each.role.canonical in ("user", "assistant") and (each.content or each.sent or each.tool_calls):
            return number
    return len(messages)


def ends_of(window: list[Message]) -> set[int]:
    """Choose numbers of last messages to read from a window."""
    return {0, 1, len(window) // 2, max(len(window) - 1, 0), len(window) + 1}


def unexplained(connection: sa.Connection, key: str) -> set[int]:
    """Return the used seqs that neither a message nor a change row explains."""
    last_seq = connection.execute(sa.select(SESSION.c.last_seq).where(of_session(SESSION, key))).scalar_one()
    explained = set(connection.execute(sa.select(MESSAGE.c.seq).where(of_session(MESSAGE, key))).scalars())
    columns = (CHANGE.c.seq, CHANGE.c.kind, CHANGE.c.after_seq, CHANGE.c.added_upto)
    added: dict[int, int] = {}
    for seq, kind, after, added_upto in connection.execute(
        sa.select(*columns).where(of_session(CHANGE, key)).order_by(CHANGE.c.seq)
    ):
        explained.add(seq)
        added[seq] = added_upto or seq
        if kind in ("truncate", "clear"):
            explained |= set(range(after + 1, seq))
        elif kind == "fork":
            explained |= set(range(1, seq))
        elif kind == "discard":
            explained |= set(range(1, after + 1))
        elif kind in ("undo", "redo"):  # it used up a seq for each restored message, and its own
            explained |= set(range(max(explained & set(range(seq)) - {seq}, default=0) + 1, seq))
            explained |= set(range(after, added[after] + 1))  # the removed messages
        elif kind != "compact":
            explained.add(after)
    return set(range(1, last_seq + 1)) - explained


def assert_sound(store: Store) -> None:
    """Check a store's rows as `examine` does, without the schema, which no method changes."""
    assert [finding for finding in findings(store) if finding.name != "settings"] == []


def findings(store: Store) -> list[Any]:
    """Return the findings of `examine`; an empty list in a copy of the project without this room."""
    if find_spec("lango_store._rooms.examination") is None:
        return []
    checks = import_module("lango_store._rooms.examination.checks")
    with sa.Connection(_engine_like(store.engine), store.engine.raw_connection()) as connection:
        return [
            finding
            for check in (*checks.CHECKS, *store.maintenance._checks)
            for finding in checks.find(connection, check)
        ]


_engines: dict[tuple[Any, ...], sa.Engine] = {}


def _engine_like(engine: sa.Engine) -> sa.Engine:
    """Return the same engine for all stores on such a database, because an engine compiles 80 statements of checks."""
    dialect = engine.dialect
    variant = type(dialect), dialect.driver, dialect.paramstyle, dialect_of(engine)
    if variant not in _engines:
        _engines[variant] = create_engine(engine.url)
        with _engines[variant].connect() as connection:
            detect_dialect(connection)
        _engines[variant].dispose()
    return _engines[variant]


def seen_before(window: list[Message], seq: int) -> list[int]:
    """Return the seqs that a cut at `seq` must keep: those up to `seq`, and those shown before the message `seq`.

    A cut at 0 removes everything.
    """
    found = seqs(window)
    shown = found[: found.index(seq)] if seq in found else []
    return [each for each in found if each <= seq or each in shown] if seq else []
