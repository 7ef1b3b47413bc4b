"""Queries of an application on the tables give the same results on both databases."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import sqlmodel
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import operators
from sqlmodel import col, select
from support.factories import message

from lango_store import MessageRole, Store, ToolCall, create_engine
from lango_store.tables import MessageRow, SessionRow

settings: Any = col(SessionRow.settings)
text: Any = col(MessageRow.text)
content: Any = col(MessageRow.content)
expires_at: Any = col(SessionRow.expires_at)


@pytest.fixture
def host_session(url: str) -> Iterator[sqlmodel.Session]:
    engine = create_engine(url)
    with sqlmodel.Session(engine) as session:
        yield session
    engine.dispose()


def keys(host_session: sqlmodel.Session, *conditions: Any) -> list[str]:
    return sorted(row.key for row in host_session.exec(select(SessionRow).where(*conditions)))


def seqs(host_session: sqlmodel.Session, *conditions: Any) -> list[int]:
    return sorted(row.seq for row in host_session.exec(select(MessageRow).where(*conditions)))


def test_live_condition_of_session_row_excludes_expired_sessions(url: str, host_session: sqlmodel.Session) -> None:
    with Store(url) as store:
        store.create("never")
        store.create("today", ttl=timedelta(hours=1))
    now = datetime.now(UTC)
    assert keys(host_session, SessionRow.live(now)) == ["never", "today"]
    assert keys(host_session, SessionRow.live(now + timedelta(hours=2))) == ["never"]
    with pytest.raises(ValueError, match="time zone"):
        SessionRow.live(now.replace(tzinfo=None))


@pytest.mark.parametrize("moment", [sa.func.now(), sa.func.current_timestamp()])
def test_time_column_refuses_comparison_with_now_of_the_database(moment: Any) -> None:
    with pytest.raises(TypeError, match="another form"):
        _ = expires_at > moment


def test_json_column_can_be_queried_with_json_functions_of_the_database(
    url: str, host_session: sqlmodel.Session
) -> None:
    with Store(url) as store:
        store.create("it", settings={"mode": "high"})
        store.create("none")
    is_sqlite = url.startswith("sqlite")
    mode = sa.func.json_extract(settings, "$.mode") if is_sqlite else sa.cast(settings, postgresql.JSON)["mode"].astext
    assert keys(host_session, mode == "high") == ["it"]
    assert keys(host_session, settings.is_(None)) == keys(host_session, settings == None) == ["none"]  # noqa: E711


def test_text_column_holds_the_plain_text(url: str, host_session: sqlmodel.Session) -> None:
    texts = ['He said "wörld"\nand left', "wörld", "", "100 %", "100 km", "[1]"]
    with Store(url) as store:
        store.create("k", messages=[*map(message, texts), message(["wörld"]), message(None), message("wörld\0")])
    assert seqs(host_session, text.contains('"wörld"\nand')) == [1]
    assert seqs(host_session, text.like("w%d")) == [2]
    assert seqs(host_session, text.in_(["", "wörld"])) == [2, 3]
    assert seqs(host_session, text.startswith("100 %", autoescape=True)) == [4]
    assert seqs(host_session, text == "[1]", content.is_(None)) == [6]
    assert seqs(host_session, text.is_(None)) == [7, 8, 9]
    assert host_session.exec(select(text).where(text.is_not(None)).order_by(col(MessageRow.seq))).all() == texts
    plain = sa.text("SELECT seq FROM lango_message WHERE text LIKE '%wörld%' ORDER BY seq")
    assert host_session.connection().execute(plain).scalars().all() == [1, 2]


@pytest.mark.parametrize("operator", [operators.eq, operators.contains_op, operators.lt, operators.getitem])
def test_json_column_refuses_comparison_with_value(operator: Any) -> None:
    with pytest.raises(TypeError, match="JSON functions"):
        content.operate(operator, "x")


def test_rows_convert_to_the_models_of_the_store(store: Store, host_session: sqlmodel.Session) -> None:
    call = ToolCall(id="c", name="n", output={"a": 1.0})
    store.create("k", title="t", settings={"a": 1}, metadata={"b": [2]}, tools=[{"c": 3}], ttl=timedelta(days=1))
    store.append_message("k", message({"x": [1]}, role=MessageRole.TOOL, tool_calls=[call], tokens=3, id="m"))
    store.conversation("k").append_messages([message(None), message("héllo"), message(""), message("a\0b")])
    row = host_session.exec(select(SessionRow)).one()
    assert row.to_info() == store.conversation("k").info()
    assert [
        row.to_message() for row in host_session.exec(select(MessageRow).order_by(col(MessageRow.seq)))
    ] == store.conversation("k").messages()
