"""JSON values in messages and sessions: stored without loss, or refused before anything is written."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.databases import MakeDatabase
from support.factories import message
from support.json_values import has_surrogate_pair, typed_repr

from lango_store import DamagedMessage, InvalidMessage, InvalidValue, Message, Store, ToolCall
from lango_store._operations.binds import MESSAGE, of_session
from lango_store.interchange import export
from lango_store.interchange.copying import copy

texts = st.text(alphabet=st.characters(exclude_categories=()))  # NUL, lone surrogates and every plane
numbers = (
    st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.just(10**4000)
)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12)
objects = st.dictionaries(texts, values, max_size=4)


def is_plain_text(content: Any) -> bool:
    """Return True for text that both databases can store in a text column."""
    return isinstance(content, str) and not re.search("[\0\ud800-\udfff]", content)


def stored_columns(store: Store, seq: int) -> tuple[str | None, Any]:
    """Return the columns `text` and `content` of a message, `content` decoded or Ellipsis for NULL."""
    query = sa.select(MESSAGE.c.text, sa.cast(MESSAGE.c.content, sa.Text)).where(of_session(MESSAGE, "k"))
    with store.engine.connect() as connection:
        text, content = connection.execute(query.where(MESSAGE.c.seq == seq)).one()
    return text, ... if content is None else json.loads(content)


@pytest.fixture
def shared_store(make_database: MakeDatabase) -> Iterator[Store]:
    with Store(make_database()) as store:
        store.create("k")
        yield store


@pytest.mark.slow
@given(content=values, arguments=values, output=values, extra=objects)
@example(content="a\0b", arguments="\ud800", output={"\udfff": 1}, extra={"\0": "\0"})
@example(content={"b": 1, "a": 1.0, "": [-0.0, 0, 2**64, 1e300]}, arguments=None, output=None, extra={"b": 1, "a": 2})
def test_json_of_a_message_is_returned_unchanged(
    shared_store: Store, content: Any, arguments: Any, output: Any, extra: dict[str, Any]
) -> None:
    if any(map(has_surrogate_pair, (content, arguments, output, extra))):
        return
    call = ToolCall(id="c", name="n", arguments=arguments, output=output)
    stored = shared_store.append_message("k", Message(role="user", content=content, tool_calls=[call], extra=extra))
    (stored_message,) = shared_store.conversation("k").all_messages(after=stored.seq - 1)
    assert typed_repr(stored_message.content) == typed_repr(content)
    assert stored_columns(shared_store, stored.seq) == ((content, ...) if is_plain_text(content) else (None, content))
    assert typed_repr(stored_message.tool_calls[0].arguments) == typed_repr(arguments)
    assert typed_repr(stored_message.tool_calls[0].output) == typed_repr(output)
    assert typed_repr(stored_message.extra) == typed_repr(extra)


@pytest.mark.slow
@given(settings=objects, metadata=objects, tools=st.lists(values, max_size=3))
def test_json_of_a_session_is_returned_unchanged(
    shared_store: Store, settings: dict[str, Any], metadata: dict[str, Any], tools: list[Any]
) -> None:
    if any(map(has_surrogate_pair, (settings, metadata, tools))):
        return
    key = shared_store.create(settings=settings, metadata=metadata, tools=tools).key
    for session in (
        shared_store.get(key),
        shared_store.conversation(key).update(settings=settings, metadata=metadata, tools=tools),
    ):
        assert typed_repr(session.settings) == typed_repr(settings)
        assert typed_repr(session.metadata) == typed_repr(metadata)
        assert typed_repr(session.tools) == typed_repr(tools)
    shared_store.delete(key)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": [float("inf")],
    "bytes": b"bytes",
    "tuple": (1, 2),
    "tuple inside": {"a": [(1, 2)]},
    "set": {1},
    "number as key": {1: 2},
    "None as key": {None: 1},
    "true as key": {True: 1},
    "surrogate and number as key": {"\ud800": {1: 2}},
    "surrogate and tuple": ["\ud800", (1,)],
    "surrogate and NaN": ["\ud800", float("nan")],
    "object": object(),
    "decimal": Decimal("1.5"),
    "generator": (n for n in range(3)),
    "201 levels": nested(201),
    "201 levels of surrogate": [nested(200), "\ud800"],
    "100000 levels": nested(100_000),
    "4301 digits": 10**4301,
    "cycle": cycle(),
    "surrogate pair as two characters": "\ud83d\ude00",
}


@pytest.mark.parametrize("name", REFUSED)
def test_value_that_is_not_json_is_refused_before_anything_is_written(shared_store: Store, name: str) -> None:
    bad = REFUSED[name]
    for field, invalid in {
        "content": message(bad),
        "extra": message(extra={"x": bad}),
        "tool_calls[1].arguments": message(
            tool_calls=[ToolCall(id="a", name="n"), ToolCall(id="b", name="n", arguments=bad)]
        ),
        "tool_calls[0].output": message(tool_calls=[ToolCall(id="a", name="n", arguments=1, output=bad)]),
        "tool_calls[0].extra": message(tool_calls=[ToolCall(id="a", name="n", extra={"x": bad})]),
    }.items():
        with pytest.raises(InvalidValue, match=r"JSON") as raised:
            shared_store.append_message("k", invalid)
        assert raised.value.field == field
        assert isinstance(raised.value, ValueError)
    for field in ("settings", "metadata", "tools"):
        value: Any = [bad] if field == "tools" else {"x": bad}
        with pytest.raises(InvalidValue) as raised:
            shared_store.create("other", **{field: value})
        assert raised.value.field == field
        with pytest.raises(InvalidValue):
            shared_store.conversation("k").update(**{field: value})
    assert shared_store.conversation("k").info().last_seq == 0
    assert not shared_store.exists("other")


def test_error_names_the_path_of_a_value_that_is_not_json(shared_store: Store) -> None:
    when = datetime(2026, 11, 22, tzinfo=UTC)
    errors: dict[str, dict[str, Any]] = {
        "content.items[3].when: datetime is not JSON": {"content": {"items": [1, {}, [], {"when": when}]}},
        "content[0]['a key']: Decimal is not JSON": {"content": [{"a key": Decimal(1)}, when]},
        "content: datetime is not JSON": {"content": when},
        "extra.a.b: tuple does not survive as JSON": {"extra": {"a": {"b": (1,)}}},
        "extra.a: dict has the key 1, not text": {"extra": {"a": {1: 2}}},
        "extra.a[1]: float is not JSON": {"extra": {"surrogate": "\ud800", "a": [1.5, float("nan")]}},
        "tool_calls[0].arguments.when: datetime": {
            "tool_calls": [ToolCall(id="i", name="n", arguments={"when": when})]
        },
    }
    for error, fields in errors.items():
        with pytest.raises(InvalidValue, match=f"^{re.escape(error)}") as raised:
            shared_store.append_message("k", message(**fields))
        assert "convert it first" in str(raised.value)
    with pytest.raises(InvalidValue, match=r"^settings\.limits\[1\]: set is not JSON"):
        shared_store.create("other", settings={"limits": [1, {2}]})


def test_list_that_contains_itself_is_refused(shared_store: Store) -> None:
    value: list[Any] = []
    value += [value, value]
    with pytest.raises(InvalidMessage, match="content: list has more than 200 levels"):
        shared_store.append_message("k", message(value))


def test_json_with_200_levels_and_4300_digits_is_stored(shared_store: Store) -> None:
    deep, long = nested(200), 10**4299
    call = ToolCall(id="a", name="n", arguments=deep, output=[long, "\ud800"])
    shared_store.append_message("k", message(deep, tool_calls=[call]))
    (stored,) = shared_store.conversation("k").messages()
    assert (stored.content, stored.tool_calls) == (deep, [call])


@pytest.mark.parametrize("field", ["author", "name", "tool_call_id", "id"])
@pytest.mark.parametrize("text", ["a\0b", "\udc80"])
def test_text_field_refuses_nul_and_surrogate(shared_store: Store, field: str, text: str) -> None:
    with pytest.raises((InvalidMessage, ValidationError), match=field):
        shared_store.append_message("k", message(**{field: text}))
    assert shared_store.conversation("k").info().last_seq == 0


def test_error_for_an_invalid_title_says_how_to_fix_it(shared_store: Store) -> None:
    with pytest.raises(InvalidValue, match=r"title: is int, not text; give text, or None$"):
        shared_store.conversation("k").update(title=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"title: holds a NUL; .* remove it"):
        shared_store.conversation("k").update(title="a\0b")


def test_append_refuses_an_invalid_message_that_pydantic_has_not_validated(shared_store: Store) -> None:
    changed = message({"a": 1})
    changed.content["a"] = {1}
    with pytest.raises(InvalidMessage, match="content"):
        shared_store.append_message("k", changed)
    wrong: list[tuple[str, Any]] = [("role", "bogus"), ("author", 5), ("tokens", "many"), ("created_at", "today")]
    for field, value in [*wrong, ("created_at", datetime(2026, 11, 22))]:
        with pytest.raises(InvalidMessage, match=field):
            shared_store.append_message("k", Message.model_construct(None, **{"role": "user", field: value}))
    with pytest.raises(InvalidMessage, match="not a Message"):
        shared_store.append_message("k", {"role": "user", "content": "x"})  # type: ignore[arg-type]
    assert shared_store.conversation("k").info().last_seq == 0


@pytest.mark.parametrize(
    ("column", "damage", "field"),
    [
        ("tool_calls", '[{"id": 5}]', "tool_calls.0.id"),
        ("extra", "[1]", "extra"),
        ("role", "weird", "role"),
        ("created_at", "yesterday", "created_at"),
    ],
)
def test_error_of_get_names_the_damaged_message_and_other_messages_are_readable(
    make_sqlite: MakeDatabase, column: str, damage: str, field: str
) -> None:
    with Store(make_sqlite()) as store:
        store.create("k", messages=[message("a"), message("b"), message("c")])
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE lango_message SET {column} = ? WHERE seq = 2", (damage,))
        with pytest.raises(DamagedMessage) as raised:
            store.get("k")
        assert (raised.value.key, raised.value.seq, raised.value.field) == ("k", 2, field)
        assert [m.content for m in store.conversation("k").all_messages(before=2)] == ["a"]
        assert [m.content for m in store.conversation("k").all_messages(after=2)] == ["c"]
        assert store.list_sessions().items[0].message_count == 3


BOTH, NEITHER = "text = 'x', content = '1'", "text = NULL, content = NULL"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("text = NULL, content = '{torn'", "content"),
        ("text = CAST(text AS BLOB)", "text"),
        ("text = x'ff'", "text"),
        ("text = CAST(x'ff' AS TEXT)", "text"),
        (BOTH, "content"),
        (NEITHER, "content"),
    ],
)
def test_get_and_examine_and_export_and_copy_report_the_damaged_message(
    make_sqlite: MakeDatabase, tmp_path: Path, change: str, field: str
) -> None:
    with Store(make_sqlite()) as store, Store(make_sqlite()) as target:
        store.create("k", ttl=timedelta(hours=1), messages=[message("a"), message("b"), message("c")])
        with store.engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            connection.exec_driver_sql(f"UPDATE lango_message SET {change} WHERE seq = 2")
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = OFF")
        with pytest.raises(DamagedMessage, match="message 2 of session 'k'") as raised:
            store.get("k")
        assert (raised.value.key, raised.value.seq, raised.value.field) == ("k", 2, field)
        first, damaged, last = store.conversation("k").all_messages(damaged="return")
        assert (first.seq, last.seq) == (1, 3)
        assert isinstance(damaged, DamagedMessage)
        assert (damaged.seq, damaged.field) == (2, field)
        (finding,) = (each for each in store.maintenance.examine() if each.name == "unreadable message")
        assert f"message 2 of session 'k' cannot be read, {field}" in finding.detail
        (exported,) = export(store, tmp_path, "backup", keys=["k"])
        assert field in str(exported.error)
        if change != "text = NULL, content = '{torn'":  # a copy transfers this damage unchanged
            assert field in copy(store, target).failed[0].reason


@pytest.mark.parametrize("change", [BOTH, NEITHER])
def test_constraint_requires_exactly_one_of_text_and_content(shared_store: Store, change: str) -> None:
    shared_store.create("one", messages=[message("a"), message({"a": 1}), message(None)])
    for seq in (1, 2, 3):
        update = sa.text(f"UPDATE lango_message SET {change} WHERE session_key = 'one' AND seq = {seq}")
        with (
            pytest.raises(sa.exc.IntegrityError, match="ck_lango_message_content"),
            shared_store.engine.begin() as connection,
        ):
            connection.execute(update)


SHAPES: dict[str, Callable[[Any], Any]] = {"lists": lambda value: [value], "dicts": lambda value: {"a": value}}


@pytest.mark.parametrize("outer", SHAPES)
@pytest.mark.parametrize("inner", SHAPES)
def test_json_nested_200_levels_is_stored_and_201_is_refused(shared_store: Store, outer: str, inner: str) -> None:
    def value(levels: int) -> Any:
        nested_value: Any = "x"
        for level in range(levels):
            nested_value = SHAPES[inner if level < 100 else outer](nested_value)
        return nested_value

    key = f"{outer} of {inner}"
    shared_store.create(key, metadata={"x": value(199)})
    for content in (value(199), value(200)):
        stored = shared_store.append_message(key, message(content))
        assert shared_store.conversation(key).all_messages(last=1) == [stored]
        assert stored.content == content
    shared_store.append_message(key, message(extra={"x": value(199)}))
    for refused in (message(value(201)), message(extra={"x": value(200)}), message([value(200)])):
        with pytest.raises(InvalidValue, match="200 levels"):
            shared_store.append_message(key, refused)
    with pytest.raises(InvalidValue, match="200 levels"):
        shared_store.create("other", metadata={"x": value(200)})
    session = shared_store.get(key)
    assert (session.last_seq, session.metadata) == (3, {"x": value(199)})
    shared_store.delete(key)
