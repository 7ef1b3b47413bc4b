"""Store a message of the inbox in one JSON column."""

import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0109"
down_revision = "0108"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")
ID_IS_SET = sa.text("id IS NOT NULL")
IS_CONTENT = "(text IS NULL) <> (content IS NULL)"
SURROGATE = re.compile("[\ud800-\udfff]")
TEXTS = ("role", "author", "name", "tool_call_id")
OTHERS = ("sent", "tool_calls", "tokens", "extra")


def _table(name: str, *columns: sa.Column[Any] | sa.CheckConstraint) -> None:
    op.create_table(
        name,
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text()),
        *columns,
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "n", name="pk_lango_inbox"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_inbox_session", ondelete="CASCADE"
        ),
    )


def _replace_table(columns: str, values: str) -> None:
    """Put the table `lango_inbox_new` in the place of `lango_inbox`."""
    op.execute(f"INSERT INTO lango_inbox_new ({columns}) SELECT {values} FROM lango_inbox")
    op.drop_table("lango_inbox")
    op.rename_table("lango_inbox_new", "lango_inbox")
    op.create_index("uq_lango_inbox_id", "lango_inbox", ["session_key", "id"], unique=True, sqlite_where=ID_IS_SET)


def _quoted(column: str) -> str:
    """Return SQL for a text as JSON."""
    if op.get_context().dialect.name == "sqlite":
        return f"nullif(json_quote({column}), 'null')"
    # A Citus cluster refuses to_json in an UPDATE, because it is not immutable.
    sql = rf"""replace(replace({column}, '\', '\\'), '"', '\"')"""
    for code in range(1, 32):
        sql = rf"replace({sql}, chr({code}), '\u{code:04x}')"
    return f"""'"' || {sql} || '"'"""


def _message() -> str:
    members = {name: _quoted(name) for name in TEXTS}
    members["content"] = f"coalesce({_quoted('text')}, CAST(content AS TEXT))"
    members |= {name: f"CAST({name} AS TEXT)" for name in OTHERS}
    parts = [f"""coalesce(',"{name}":' || {value}, '')""" for name, value in members.items()]
    return f"'{{' || substr({' || '.join(parts)}, 2) || '}}'"


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        _table("lango_inbox_new", sa.Column("message", JSON, nullable=False))
        _replace_table("session_key, n, id, message, created_at", f"session_key, n, id, {_message()}, created_at")
        return
    op.add_column("lango_inbox", sa.Column("message", JSON))
    op.execute(f"UPDATE lango_inbox SET message = CAST({_message()} AS JSON)")
    op.alter_column("lango_inbox", "message", nullable=False)
    op.drop_constraint("ck_lango_inbox_content", "lango_inbox")
    for name in (*TEXTS, "text", "content", *OTHERS):
        op.drop_column("lango_inbox", name)


def downgrade() -> None:
    bind, on_sqlite = op.get_bind(), op.get_context().dialect.name == "sqlite"
    waiting = bind.execute(sa.text("SELECT session_key, n, CAST(message AS TEXT) FROM lango_inbox")).all()
    columns: list[sa.Column[Any]] = [sa.Column(name, sa.Text()) for name in (*TEXTS, "text")]
    columns += [_json_column(name) for name in ("content", *OTHERS)]
    if on_sqlite:
        columns[0].nullable = False
        is_content = sa.CheckConstraint(IS_CONTENT, name="ck_lango_inbox_content")
        _table("lango_inbox_new", *columns, is_content)
        names = "session_key, n, id, created_at"
        _replace_table(f"{names}, role, content", f"{names}, 'user', 'null'")
    else:
        for each in columns:
            op.add_column("lango_inbox", each)
    values = {each.name: _bound(each.name) for each in columns}
    inbox = sa.table("lango_inbox", *(sa.column(name) for name in ("session_key", "n", *values)))
    for key, n, message in waiting:
        update = sa.update(inbox).where(inbox.c.session_key == key, inbox.c.n == n).values(values)
        bind.execute(update, {f"new_{name}": value for name, value in _columns(json.loads(message)).items()})
    if not on_sqlite:
        op.alter_column("lango_inbox", "role", nullable=False)
        op.create_check_constraint("ck_lango_inbox_content", "lango_inbox", sa.text(IS_CONTENT))
        op.drop_column("lango_inbox", "message")


def _json_column(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger()) if name == "tokens" else sa.Column(name, JSON)


def _bound(name: str) -> sa.ColumnElement[Any]:
    if name == "tokens":
        return sa.bindparam(f"new_{name}", type_=sa.BigInteger())
    value = sa.bindparam(f"new_{name}", type_=sa.Text())
    is_json = name not in (*TEXTS, "text")
    return sa.cast(value, JSON) if is_json else value


def _columns(message: dict[str, Any]) -> dict[str, Any]:
    content = message.pop("content", None)
    is_text = isinstance(content, str) and "\0" not in content and not SURROGATE.search(content)
    row = {name: message.get(name) for name in TEXTS} | {"tokens": message.get("tokens")}
    row |= {"text": content if is_text else None, "content": None if is_text else json.dumps(content)}
    return row | {
        name: json.dumps(message[name]) if name in message else None for name in ("sent", "tool_calls", "extra")
    }
