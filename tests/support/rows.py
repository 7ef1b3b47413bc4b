"""Table rows with default values."""

import json
from collections.abc import Iterable
from typing import Any

import factory
import sqlalchemy as sa

from lango_store import DamagedMessage, Store
from lango_store._operations.binds import MESSAGE, SESSION, TURN
from lango_store._operations.session_tables import SHARED, TABLES
from lango_store._rows.encoding import NO_CONTENT, decode_json, decode_time, encode_content
from lango_store.rows import transfer
from lango_store.rows.portable import Fields, decode_row
from lango_store.rows.transfer import Row
from lango_store.tables import Base

_PLACES = {
    "amount": "budget",
    "seq": "message",
    "turn_no": "turn",
    "scope": "shared_value",
    "value": "value",
    "piece": "draft",
    "n": "inbox",
}
"""By column: the table of a row that has the column, and none of the earlier ones."""
_TIMES = ("created_at", "updated_at", "expires_at", "owed_at", "written_at", "due_at", "ends_at")

TIME = "2026-11-21T12:00:00.123456+00:00"

ODD_TEXTS = [
    '{"b":1,"a":2}',
    '{"a":1,"a":2}',
    "[1.0, 1e5,1E40, -0.0, 100000000000000000000000000000000001]",
    '"\\ud83d"',
    '"\\u0000"',
    '"\u2028\x7f"',
    " [] ",
    "[1,\n 2]",
    '{"\\u0061":"\\/"}',
    "null",
    "[" * 199 + "]" * 199,
    "9" * 4_300,
]
"""JSON that `json.dumps(json.loads(text))` would change; PostgreSQL keeps all of it too."""


def _columns(table: str) -> Iterable[sa.Column[Any]]:
    """Return the columns of a table by its name, so that the tests of the core do not need its room."""
    return next((stored.columns for each, stored in TABLES.items() if each.name == table), ())


def _row_factory(columns: Iterable[sa.Column[Any]], **fields: Any) -> Any:
    """Return a factory of rows. A column without a value in `fields` is NULL."""
    row: Row = dict.fromkeys(column.name for column in columns)
    return factory.make_factory(dict, FACTORY_CLASS=factory.DictFactory, **row | fields)


SessionRowFactory = _row_factory(
    SESSION.c,
    **{column.name: 0 for column in SESSION.c if not column.nullable}
    | {"key": factory.Sequence(lambda n: f"session {n}"), "created_at": TIME, "updated_at": TIME},
)
TurnRowFactory = _row_factory(
    TURN.c,
    session_key="k",
    turn_no=factory.Sequence(lambda n: n + 1),
    kind="turn",
    first_seq=1,
    last_seq=1,
    created_at=TIME,
)
MessageRowFactory = _row_factory(
    TABLES[MESSAGE].columns,
    session_key="k",
    seq=factory.Sequence(lambda n: n + 1),
    role="user",
    created_at=TIME,
)
InboxRowFactory = _row_factory(
    _columns("lango_inbox"),
    session_key="k",
    n=factory.Sequence(lambda n: n + 1),
    message='{"role":"user"}',
    created_at=TIME,
)
DraftRowFactory = _row_factory(
    (), session_key="k", n=factory.Sequence(lambda n: n + 1), token=1, turn_id="t", piece='"x"', written_at=TIME
)
ValueRowFactory = _row_factory(
    (), session_key="k", name=factory.Sequence(lambda n: f"value {n}"), value="1", updated_at=TIME
)
SharedValueRowFactory = _row_factory(
    (), scope="user:ann", name=factory.Sequence(lambda n: f"value {n}"), value="1", updated_at=TIME
)
BudgetRowFactory = _row_factory(
    _columns("lango_budget"),
    scope="user:ann",
    name=factory.Sequence(lambda n: f"tokens_{n}"),
    amount=0,
    updated_at=TIME,
)


def put(store: Store, *rows: Row) -> None:
    """Write rows without validation, as another program may."""
    with store.engine.begin() as connection:
        for row in rows:
            place = next((each for name, each in _PLACES.items() if name in row), "session")
            table = Base.metadata.tables[f"lango_{place}"]
            times = {name: decode_time(row[name]) for name in _TIMES if row.get(name)}
            columns = _content_columns(row["content"]) if table is MESSAGE else {}
            transfer.insert(connection, table, [row | columns | times])


def _content_columns(content: str | None) -> dict[str, str | None]:
    """Return the columns in which the store would store this JSON content."""
    if content is None:
        return {"text": None, "content": NO_CONTENT}
    try:
        text, _ = encode_content(decode_json(content))
    except ValueError:
        text = None
    return {"text": text, "content": None if text is not None else content}


def all_rows(store: Store) -> dict[str, list[Row]]:
    """Read all rows of a store, by session key, in order of position."""
    with store.engine.connect() as connection:
        return {
            key: [row for _, page in transfer.whole_session(connection, key) for row in page]
            for key, _ in transfer.heads(connection, "", 1_000_000)
        }


def all_fields(store: Store) -> dict[str, list[Fields]]:
    """Read all rows of a store with their JSON decoded."""
    with store.engine.connect() as connection:
        return {
            key: [decode_row(table, row) for table, page in transfer.whole_session(connection, key) for row in page]
            for key, _ in transfer.heads(connection, "", 1_000_000)
        }


def shared_rows(store: Store) -> list[Row]:
    """Read all shared values and budgets."""
    with store.engine.connect() as connection:
        rows = [row for table in SHARED for row in transfer.shared_rows(connection, table)]
    return [row for row in rows if not isinstance(row, DamagedMessage)]


def shared_fields(store: Store) -> list[Fields]:
    """Read all shared values and budgets with their JSON decoded."""
    return [decode_row(next(table for table in SHARED if table.c.keys() == [*row]), row) for row in shared_rows(store)]


def fill(store: Store) -> None:
    """Write sessions that use every column: live, expired, empty, compacted, with odd JSON and odd texts."""
    texts = "'\"\\ \t\n\r\u2028😀é"
    full = "full" + texts
    put(
        store,
        SessionRowFactory(
            key=full,
            **dict.fromkeys(("agent_id", "user_id", "title", "model", "forked_from"), texts),
            **dict(zip(("settings", "metadata", "tools", "extra"), ODD_TEXTS, strict=False)),
            expires_at="2020-01-01T00:00:00.000001+00:00",
            ttl_seconds=0.1 + 0.2,
            last_seq=2**53,
            message_count=len(ODD_TEXTS) + 1,
            token_count=sum(range(len(ODD_TEXTS))) + 2**52,
            turn_count=2,
            last_turn_no=7,
            summary_turn=7,
            summarized_upto=3,
            last_consolidated=2,
            owed_at="9999-12-31T23:59:59.999999+00:00",  # given up
            waiting=9,
            attempts=5,
            last_error=texts,
            hold=texts,
        ),
        TurnRowFactory(
            session_key=full,
            turn_no=1,
            id=texts,
            usage=' {"input_tokens" : 1}',
            metadata='{"a":"\\ud800"}',
            extra="[]",
        ),
        TurnRowFactory(session_key=full, turn_no=7, kind="compaction", first_seq=4, last_seq=2**53, replaced_upto=3),
        *(
            MessageRowFactory(
                session_key=full,
                seq=2 * place + 1,
                content=text,
                tool_calls=f'[{{"id":"c","name":"n", "arguments":{text}}}]',
                extra=f'{{"odd" :{text}}}',
                tokens=place,
            )
            for place, text in enumerate(ODD_TEXTS)
        ),
        MessageRowFactory(
            session_key=full,
            seq=2**53,
            id=texts,
            turn_no=7,
            role="tool",
            author=texts,
            name="",
            tool_call_id="c",
            tokens=2**52,
            model=texts,
            provider="",
            request=texts,
        ),
        *(
            ValueRowFactory(session_key=full, name=f"{place} {texts}", value=text)
            for place, text in enumerate(ODD_TEXTS)
        ),
        *(
            DraftRowFactory(session_key=full, n=2 * place + 1, token=2**62 - 1 - place % 2, turn_id=texts, piece=text)
            for place, text in enumerate(each for each in ODD_TEXTS if each[0] == '"')
        ),
        *(
            InboxRowFactory(
                session_key=full,
                n=2 * place + 1,
                message=f'{{"role":"user","content":{text},"sent" :[1],"tokens":{place},"extra":{{"odd" :{text}}}}}',
            )
            for place, text in enumerate(ODD_TEXTS)
        ),
        InboxRowFactory(
            session_key=full,
            n=2**53,
            id=texts,
            message=json.dumps({"role": "tool", "author": texts, "name": "", "tool_call_id": "c", "content": None}),
            due_at="9999-12-31T23:59:59.999999+00:00",
        ),
        *(
            SharedValueRowFactory(scope="shared" + texts, name=f"{place} {texts}", value=text)
            for place, text in enumerate(ODD_TEXTS)
        ),
        BudgetRowFactory(scope=texts, name=f"1 {texts}", amount=2**61, cap=0, ends_at=TIME),
        BudgetRowFactory(scope=texts, name=f"2 {texts}", holder=texts, token=2**62 - 1, after_turn=7),
        SessionRowFactory(key="empty"),
        SessionRowFactory(
            key="expired", expires_at="2020-01-01T00:00:00.000000+00:00", ttl_seconds=60.0, last_seq=3, message_count=1
        ),
        MessageRowFactory(session_key="expired", seq=3, content='"gone?"'),
    )


def value_names(store: Store) -> list[Any]:
    """Read the session and the name of each value of a session, in their order."""
    with store.engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT session_key, name FROM lango_value ORDER BY 1, 2").all())
