"""`lango_store.web.conversations`: OpenAI's Conversations API, called by the official client and by raw requests."""

import http.client
import json
import os
import random
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from support.conversations_api import Server, named, said
from support.http_server import serving

from lango_store import AsyncStore, Message, MessageRole, Store, ToolCall
from lango_store.interchange.openai_items import messages_of
from lango_store.web import conversation_id, conversations

OPERATIONS: Final = int(os.environ.get("LANGO_STORE_API_OPERATIONS", "1000"))


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    with Store(url) as store:
        app = Starlette(routes=[Mount("/v1", conversations(AsyncStore(store), user=named))])
        with serving(app) as port:
            server = Server(store, port)
            with server.client:
                yield server


def texts(items: list[Any]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


KINDS_OF_ITEMS: Final = [
    said("Hello", id="msg_1", status="completed"),
    {"role": "developer", "content": "Be brief.", "id": "msg_2"},
    said("a picture") | {"content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "file_id": "f"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA=="},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a":  1}', "status": "x"},
    {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "not JSON"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "\ud800"}]},
    {"type": "custom_tool_call", "call_id": "c3", "name": "sql", "input": "SELECT 1"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "mcp_call", "id": "mcp_1", "name": "n", "arguments": "{}", "server_label": "s", "output": None},
    {"type": "a_kind_of_tomorrow", "deep": {"list": [1, 2.5, None, True, 12345678901234567890]}},
]  # fmt: skip


def test_client_creates_changes_and_deletes_a_conversation(server: Server) -> None:
    client = server.client
    created = client.conversations.create(items=[{"role": "user", "content": "Hi"}], metadata={"topic": "demo"})
    assert client.conversations.retrieve(created.id) == created
    assert created.id.startswith("conv_")
    assert client.conversations.update(created.id, metadata={"topic": "other"}).metadata == {"topic": "other"}
    info = server.store.conversation(created.id).info()
    assert (info.user_id, info.metadata, info.message_count) == ("ann", {"topic": "other"}, 1)
    deleted = client.conversations.delete(created.id)
    assert (deleted.id, deleted.deleted) == (created.id, True)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.conversations.retrieve(created.id)
    assert not server.store.exists(created.id)


def test_items_keep_their_fields(server: Server) -> None:
    id = server.create(*KINDS_OF_ITEMS)
    served = server.items(id)
    assert len(served) == len(KINDS_OF_ITEMS)
    for sent, item in zip(KINDS_OF_ITEMS, served, strict=True):
        whole = sent | {"content": [{"type": "input_text", "text": "Be brief."}]} if item["id"] == "msg_2" else sent
        assert {name: item[name] for name in sent} == whole
        assert set(item) - set(sent) <= {"id", "type", "status"}
        assert server.request("GET", f"/conversations/{id}/items/{item['id']}") == (200, item)
    assert len({item["id"] for item in served}) == len(served)


def test_items_are_messages_of_the_session(server: Server) -> None:
    id = server.create(*KINDS_OF_ITEMS)
    conversation = server.store.conversation(id)
    assert [each.role for each in conversation.messages()][:2] == [MessageRole.USER, MessageRole.DEVELOPER]
    assert KINDS_OF_ITEMS[-3] in conversation.history(format="openai-responses")
    prompt = conversation.history(format="anthropic")
    calls = [block for entry in prompt for block in entry["content"] if isinstance(block, dict)]
    assert [block["id"] for block in calls if block["type"] == "tool_use"] == ["c1", "c2", "c3"]
    assert conversation.find_message("fc_1") is not None


def test_text_of_a_message_is_served_as_a_part(server: Server) -> None:
    id = server.create({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    first, second = server.items(id)
    assert first["content"] == [{"type": "input_text", "text": "Hi"}]
    assert second["content"] == [{"type": "output_text", "annotations": [], "text": "Hello"}]
    assert [each.content for each in server.store.get(id).messages] == ["Hi", "Hello"]


def test_sessions_of_other_programs_are_conversations(server: Server) -> None:
    conversation = server.store.open("telegram:42/a", user_id="ann", metadata={"state": {"n": 1}, "topic": "x"})
    conversation.append_message(Message.user("Weather?", id="question"))
    conversation.append_message(Message(role=MessageRole.RECORD, content={"cost": 1}))
    call = ToolCall(id="call-1", name="weather", arguments={"city": "Oslo"})
    conversation.append_message(Message.assistant("I look.", tool_calls=[call]))
    conversation.append_message(Message.tool("rain", tool_call_id="call-1"))
    blocks = [{"type": "thinking", "thinking": "so", "signature": "s"}, {"type": "text", "text": "It rains."}]
    conversation.append_message(Message.assistant(blocks))
    conversation.append_messages(messages_of(KINDS_OF_ITEMS))
    id = conversation_id("telegram:42/a")
    assert server.request("GET", f"/conversations/{id}")[1]["metadata"] == {"topic": "x"}
    items = server.items(id)
    kinds = ["message", "message", "function_call", "function_call_output", "message"]
    assert [item["type"] for item in items[:5]] == kinds
    assert (items[0]["id"], items[2]["arguments"], items[3]["output"]) == ("question", '{"city": "Oslo"}', "rain")
    assert texts([items[0], items[1], items[4]]) == ["Weather?", "I look.", "It rains."]
    assert len(items) == 5 + len(KINDS_OF_ITEMS)
    for item in items:
        assert server.request("GET", f"/conversations/{id}/items/{item['id']}") == (200, item)
    part = f"/conversations/{id}/items/{items[2]['id']}"
    assert server.request("DELETE", part)[0] == 400
    assert server.request("DELETE", f"/conversations/{id}/items/{items[4]['id']}")[0] == 200
    assert [item["id"] for item in server.items(id)] == [item["id"] for item in items if item is not items[4]]


@pytest.mark.parametrize("limit", [1, 2, 3, 20])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_have_each_item_once(server: Server, order: Any, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[conversations.__module__], "_NEWEST", 5)
    conversation = server.store.open("conv_mixed", user_id="ann")
    ids = ("rs_1", "__fake_id__", "rs_2", "__fake_id__", "FAKE_ID", "FAKE_ID", "rs_3")
    conversation.append_messages(messages_of([{"type": "reasoning", "id": id} for id in ids]))
    for number in range(6):
        conversation.append_messages([Message(role=MessageRole.RECORD, content=number)] * number)
        calls = [ToolCall(id=f"c{number}{each}", name="n", arguments={}) for each in range(number % 3)]
        conversation.append_message(Message.assistant(f"text {number}", tool_calls=calls, id=f"m{number}"))
    whole = [item["id"] for item in server.items("conv_mixed", f"order={order}&limit=100")]
    pages = server.client.conversations.items.list("conv_mixed", order=order, limit=limit)
    assert [item.id for item in pages] == whole
    assert len(whole) == len(set(whole)) == len(ids) + 12


def test_page_of_a_long_conversation_takes_the_statements_of_a_short_one(url: str) -> None:
    statements: list[str] = []
    with Store(url, on_statement=lambda text, _: statements.append(text)) as store:
        short, long = store.open("conv_short", user_id="ann"), store.open("conv_long", user_id="ann")
        short.append_messages([Message.user("x", id=f"m{number}") for number in range(50)])
        for first in range(0, 3_000, 1_000):
            long.append_messages([Message.user("x", id=f"m{number}") for number in range(first, first + 1_000)])
        app = Starlette(routes=[Mount("/v1", conversations(AsyncStore(store), user=named))])
        with serving(app) as port:
            server = Server(store, port)
            server.client.close()
            counts = []
            for id in ("conv_short", "conv_long"):
                for query in ("", "after=m30", "order=asc", "order=asc&after=m20"):
                    statements.clear()
                    assert len(server.items(id, query)) == 20
                    counts.append(len(statements))
    assert counts[:4] == counts[4:]
    assert counts[:4] == [2, 4, 2, 4]  # half of them check whose the session is


@pytest.mark.parametrize(("order", "damaged"), [("asc", 290), ("desc", 10)])
def test_page_with_records_reads_no_messages_that_are_far_away(server: Server, order: str, damaged: int) -> None:
    conversation = server.store.open("conv_records", user_id="ann")
    record = Message(role=MessageRole.RECORD, content=1)
    conversation.append_messages([record if number % 10 == 0 else Message.user("x") for number in range(300)])
    with server.store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE lango_message SET tool_calls = '{{\"a\": 1}}' WHERE seq = {damaged}")
    assert len(server.items("conv_records", f"order={order}")) == 20


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_page_ends_before_its_items_are_too_large(server: Server, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, large = server.store.open("conv_large", user_id="ann"), "x" * 70_000
    calls = [ToolCall(id="c1", name="n", arguments={"x": large}), ToolCall(id="c2", name="n", arguments=large)]
    conversation.append_message(Message(role=MessageRole.RECORD, content=large))
    conversation.append_message(Message.assistant(large, tool_calls=calls))
    conversation.append_messages([Message.user(text) for text in (large, "a", large, large * 3, large, "b", large)])
    items = [said(large), {"type": "function_call_output", "call_id": "c", "output": [{"type": "x", "text": large}]}]
    conversation.append_messages(messages_of([*items, {"type": "reasoning", "encrypted_content": large}]))
    path = "/conversations/conv_large/items"
    whole = server.items("conv_large", f"order={order}&limit=100")
    monkeypatch.setattr(sys.modules[conversations.__module__], "_MOST_BYTES", 250_000)
    pages, after = [], ""
    while True:
        page = server.request("GET", f"{path}?order={order}&limit=100&after={after}")[1]
        pages.append(page["data"])
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert [item for page in pages for item in page] == whole
    assert json.dumps(whole).count(large) == 13
    assert all(len(json.dumps(page)) < 300_000 for page in pages)
    assert len(pages) < len(whole)
    for item in whole:
        assert server.request("GET", f"{path}/{item['id']}") == (200, item)
    with server.store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM lango_payload")  # fails all reads of large strings
    assert server.request("GET", f"{path}/missing")[0] == 404
    assert server.request("GET", f"{path}/msg_at_4_0")[1]["content"][0]["text"] == "a"


def test_items_that_are_sent_again_are_stored_once(server: Server) -> None:
    id = server.create()
    path = f"/conversations/{id}/items"
    with_ids = {"items": [said("a", id="msg_a"), said("b", id="msg_b")]}
    first = server.request("POST", path, with_ids)
    assert server.request("POST", path, with_ids) == first
    without = {"items": [said("c"), {"type": "function_call", "call_id": "c1", "name": "n", "arguments": "{}"}]}
    second = server.request("POST", path, without, idempotency_key="request-1")
    assert server.request("POST", path, without, idempotency_key="request-1") == second
    assert server.request("POST", path, without, idempotency_key="request-2") != second
    assert len(server.items(id)) == 6
    placeholders = {"items": [said("d", id="__fake_id__"), said("e", id="__fake_id__")]}
    assert texts(server.request("POST", path, placeholders)[1]["data"]) == ["d", "e"]
    whole = server.request("POST", "/conversations", without, idempotency_key="request-1")
    assert server.request("POST", "/conversations", without, idempotency_key="request-1") == whole
    of_bob = server.request("POST", "/conversations", without, user="bob", idempotency_key="request-1")
    assert (of_bob[0], of_bob[1]["id"] == whole[1]["id"]) == (200, False)
    assert len(server.items(whole[1]["id"])) == 2


def test_update_of_metadata_keeps_values_of_other_programs(server: Server) -> None:
    server.store.create("conv_a", user_id="ann", metadata={"state": {"n": 1}, "topic": "x"})
    assert server.client.conversations.update("conv_a", metadata={"b": "y"}).metadata == {"b": "y"}
    assert server.store.conversation("conv_a").info().metadata == {"state": {"n": 1}, "b": "y"}


@given(key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=100))
def test_id_of_a_conversation_is_unique_and_safe_in_a_path(key: str) -> None:
    id = conversation_id(key)
    assert id.startswith("conv_")
    assert id.replace("_", "").replace("-", "").isalnum()
    assert id.isascii()
    assert conversation_id(id) == (id if id == key else conversation_id(id))
    assert (conversation_id(id) == id) == (id == key)


@pytest.mark.parametrize("key", ["telegram:42", "a/b", "..", "conv_key_YQ", "conv_", "käse & 100%", "conv_x"])
def test_conversation_is_found_by_its_id(server: Server, key: str) -> None:
    server.store.create(key, user_id="ann", messages=[Message.user("Hi")])
    client = server.client
    assert client.conversations.retrieve(conversation_id(key)).id == conversation_id(key)
    assert [item.id for item in client.conversations.items.list(conversation_id(key))] == ["msg_at_1_0"]
    if key in ("telegram:42", "käse & 100%"):
        assert client.conversations.retrieve(key).id == conversation_id(key)


REQUESTS: Final[list[tuple[str, str, Any]]] = [
    ("GET", "", None),
    ("POST", "", {"metadata": {}}),
    ("DELETE", "", None),
    ("GET", "/items", None),
    ("GET", "/items?after=msg_1", None),
    ("POST", "/items", {"items": [said("Hi")]}),
    ("GET", "/items/msg_1", None),
    ("DELETE", "/items/msg_1", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_conversation_of_another_user_is_not_found(server: Server, method: str, path: str, body: Any) -> None:
    id = server.create(said("Hi", id="msg_1"))
    before = server.store.get(id)
    of_another = server.request(method, f"/conversations/{id}{path}", body, user="bob")
    missing = server.request(method, f"/conversations/conv_missing{path}", body, user="bob")
    assert of_another[0] == missing[0] == 404
    assert json.dumps(of_another[1]).replace(id, "conv_missing") == json.dumps(missing[1])
    assert server.request(method, f"/conversations/{id}{path}", body, Authorization="None")[0] == 401
    assert server.store.get(id) == before


DEEP: Final = b'{"items": [' + b"[" * 100_000
TOO_DEEP: Final = {"type": "x", "a": json.loads("[" * 250 + "]" * 250)}
HOSTILE: Final[list[tuple[str, str, Any, int, str | None]]] = [
    ("POST", "/items", b"", 400, None),
    ("POST", "/items", b"{", 400, None),
    ("POST", "/items", b"\xff\xfe", 400, None),
    ("POST", "/items", b'{"items": NaN}', 400, None),
    ("POST", "/items", DEEP, 400, None),
    ("POST", "/items", b'{"items": [{"type": "x", "n": ' + b"9" * 5_000 + b"}]}", 400, None),
    ("POST", "/items", b'{"items": [{"type": "x", "n": 1e999}]}', 400, "invalid_value"),
    ("POST", "/items", b'{"items": [{"type": "x", "n": "\\ud83d\\ude00\\u0000"}]}', 200, None),
    ("POST", "/items", [], 400, None),
    ("POST", "/items", "text", 400, None),
    ("POST", "/items", {}, 400, "missing_required_parameter"),
    ("POST", "/items", {"items": None}, 400, "missing_required_parameter"),
    ("POST", "/items", {"items": {}}, 400, "invalid_type"),
    ("POST", "/items", {"items": "x"}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x")] * 21}, 400, "array_above_max_length"),
    ("POST", "/items", {"items": [said("x"), None]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), 1]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), {}]}, 400, "missing_required_parameter"),
    ("POST", "/items", {"items": [said("x"), {"type": 1}]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), {"type": None, "role": "user"}]}, 400, "missing_required_parameter"),
    ("POST", "/items", {"items": [said("x"), {"role": "user"}]}, 400, "missing_required_parameter"),
    ("POST", "/items", {"items": [said("x"), {"role": 1, "content": "x"}]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), {"role": "user", "content": 1}]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), {"role": "user", "content": [None]}]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), {"role": "user", "content": [{}, "y"]}]}, 400, "invalid_type"),
    ("POST", "/items", b'{"items": [], "items": [{"type": "x"}, 1]}', 400, "invalid_type"),
    ("POST", "/items", b'{"items": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001, 400, None),
    ("POST", "/items", {"items": [said("x"), {"type": "message", "content": "x"}]}, 400, "missing_required_parameter"),
    ("POST", "/items", {"items": [said("x"), said("y", id=1)]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), said("y", id="")]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), said("y", id="a\0b")]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), said("y", id="\ud800")]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), said("y", id="x" * 513)]}, 400, "invalid_type"),
    ("POST", "/items", {"items": [said("x"), TOO_DEEP]}, 400, "invalid_value"),
    ("POST", "/items", {"items": [said("x")], "store": True}, 400, "unknown_parameter"),
    ("POST", "/items", {"items": [said("x")], "\ud800" * 5_000: True}, 400, "unknown_parameter"),
    ("POST", "/items/msg_1", {"items": [said("x")]}, 405, "unknown_url"),
    ("PUT", "/items", {"items": [said("x")]}, 405, "unknown_url"),
    ("PATCH", "", {"metadata": {}}, 405, "unknown_url"),
    ("POST", "/others", {}, 404, "unknown_url"),
    ("POST", "/", {"metadata": {}}, 404, "unknown_url"),
    ("DELETE", "/", None, 404, "unknown_url"),
    ("OPTIONS", "", None, 405, "unknown_url"),
    ("TRACE", "/items/msg_1", None, 405, "unknown_url"),
    ("POST", "", {}, 400, "missing_required_parameter"),
    ("POST", "", {"metadata": []}, 400, "invalid_type"),
    ("POST", "", {"metadata": {"a": 1}}, 400, "invalid_type"),
    ("POST", "", {"metadata": {"a": None}}, 400, "invalid_type"),
    ("POST", "", {"metadata": {str(number): "" for number in range(17)}}, 400, "object_above_max_properties"),
    ("POST", "", {"metadata": {"x" * 65: ""}}, 400, "string_above_max_length"),
    ("POST", "", {"metadata": {"a": "x" * 513}}, 400, "string_above_max_length"),
    ("POST", "", {"metadata": {"a": "b"}, "items": []}, 400, "unknown_parameter"),
    ("GET", "/items?limit=0", None, 400, "integer_below_min_value"),
    ("GET", "/items?limit=101", None, 400, "integer_above_max_value"),
    ("GET", "/items?limit=-1", None, 400, "integer_below_min_value"),
    ("GET", "/items?limit=x", None, 400, "invalid_type"),
    ("GET", "/items?limit=", None, 400, "invalid_type"),
    ("GET", "/items?limit=1.5", None, 400, "invalid_type"),
    ("GET", f"/items?limit={'9' * 5_000}", None, 400, "invalid_type"),
    ("GET", "/items?limit=20&limit=101", None, 400, "integer_above_max_value"),
    ("GET", "/items?limit=%D9%A3", None, 400, "invalid_type"),
    ("GET", "/items?order=up", None, 400, "invalid_value"),
    ("GET", "/items?order=", None, 400, "invalid_value"),
    ("GET", "/items?include=a&include=b", None, 200, None),
    ("GET", "/items?after=missing", None, 404, None),
    ("GET", "/items?after=a%00b", None, 404, None),
    ("GET", "/items?after=%ff%fe", None, 404, None),
    ("GET", "/items?after=msg_at_99_0", None, 404, None),
    ("GET", "/items?after=msg_at_1_99", None, 404, None),
    ("GET", f"/items?after=msg_at_{'9' * 18}_0", None, 404, None),
    ("GET", f"/items?after=msg_at_{'9' * 30}_0", None, 404, None),
    ("GET", "/items?after=msg_at_1_0%0A", None, 404, None),
    ("GET", "/items?after=msg_at_1_0", None, 404, None),
    ("GET", "/items/missing", None, 404, None),
    ("GET", "/items/", None, 404, None),
    ("GET", "/items/msg_1/", None, 404, None),
    ("GET", "/items/a%2Fb", None, 404, None),
    ("GET", f"/items/{'x' * 5_000}", None, 404, None),
    ("DELETE", "/items/missing", None, 404, None),
    ("DELETE", "/items/%00", None, 404, None),
    ("DELETE", "/items", None, 405, "unknown_url"),
    ("GET", "//items", None, 404, "unknown_url"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), HOSTILE)
def test_hostile_request_gets_the_error_body_and_writes_nothing(
    server: Server, method: str, path: str, body: Any, status: int, code: str | None
) -> None:
    id = server.create(said("Hi", id="msg_1"))
    before = server.store.get(id)
    answer = server.request(method, f"/conversations/{id}{path}", body)
    assert answer[0] == status, answer
    if status == 200:
        return
    error = answer[1]["error"]
    assert set(answer[1]) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert error["message"]
    assert server.store.get(id) == before
    assert server.store.count() == 1


@pytest.mark.parametrize(
    "id", ["%00", "conv_key_", "conv_key_*", "conv_key_YR", "conv_key_/w", "conv_%ff", "x" * 600, "conv_" + "x" * 600]
)
def test_id_without_a_session_is_not_found(server: Server, id: str) -> None:
    for method, path, body in REQUESTS:
        status, answer = server.request(method, f"/conversations/{id}{path}", body)
        assert (status, answer["error"]["type"]) == (404, "invalid_request_error")
    assert server.store.count() == 0


def test_item_of_another_conversation_is_not_found(server: Server) -> None:
    id, other = server.create(said("Hi", id="msg_1")), server.create(said("Bye", id="msg_2"))
    for method, path in (("GET", "/items/msg_2"), ("DELETE", "/items/msg_2"), ("GET", "/items?after=msg_2")):
        assert server.request(method, f"/conversations/{id}{path}")[0] == 404
    assert [item["id"] for item in server.items(other)] == ["msg_2"]


def test_item_may_have_the_id_that_it_has_in_another_conversation(server: Server) -> None:
    conversation = server.store.open("conv_source", user_id="ann")
    conversation.append_messages([Message.user(f"text {number}") for number in range(5)])
    items = server.items("conv_source")
    assert [item["id"] for item in items] == [f"msg_at_{seq}_0" for seq in range(1, 6)]
    copy = server.create(said("first", id="msg_1"), *items)
    whole = [{"id": "msg_1"}, *items]
    pages = server.client.conversations.items.list(copy, order="asc", limit=2)
    assert [item.id for item in pages] == [item["id"] for item in whole]
    for item in items:
        assert server.request("GET", f"/conversations/{copy}/items/{item['id']}") == (200, item)
    assert server.request("DELETE", f"/conversations/{copy}/items/msg_at_3_0")[0] == 200
    assert len(server.items(copy)) == 5


def test_items_that_other_programs_stored_without_a_role_are_served(server: Server) -> None:
    conversation = server.store.open("conv_odd", user_id="ann")
    odd: list[Any] = [{"type": "message", "content": "x"}, {"type": ["y"]}, {"type": None}, {}, 5, None]
    conversation.append_messages(messages_of(odd))
    items = server.items("conv_odd")
    assert [item["type"] for item in items if "type" in item] == ["message", ["y"], None]
    for item in items:
        assert server.request("GET", f"/conversations/conv_odd/items/{item['id']}") == (200, item)


def test_conversation_on_hold_is_not_deleted(server: Server) -> None:
    id = server.create(said("Hi"))
    server.store.conversation(id).update(hold="case 17")
    status, answer = server.request("DELETE", f"/conversations/{id}")
    assert (status, "on hold" in answer["error"]["message"], "case 17" in json.dumps(answer)) == (409, True, False)
    server.store.conversation(id).update(hold=None)
    assert server.request("DELETE", f"/conversations/{id}")[0] == 200


def test_body_that_stops_is_not_stored(server: Server) -> None:
    id = server.create()
    request = f"POST /v1/conversations/{id}/items HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\n"
    part = b'{"items": [{"type": "x"}]}'
    for framing in ("Transfer-Encoding: chunked\r\n\r\n1a\r\n", "Content-Length: 100\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"{request}Content-Type: application/json\r\n{framing}".encode() + part)
            assert server.items(id) == []  # the server answers others while this client is silent
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
    assert server.items(id) == []


def test_other_spelling_of_an_id_is_not_found(server: Server) -> None:
    server.store.create("a", user_id="ann")
    assert server.request("GET", "/conversations/conv_key_YQ")[0] == 200
    assert server.request("GET", "/conversations/conv_key_YR")[0] == 404
    assert server.request("GET", "/conversations/conv_key_YQ==")[0] == 404


def test_item_that_several_clients_delete_is_deleted_once(server: Server) -> None:
    id = server.create(*[said("x", id=f"msg_{number}") for number in range(20)])
    for number in range(20):
        path = f"/conversations/{id}/items/msg_{number}"
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda path: server.request("DELETE", path), [path] * 4))
        refused = [answer for answer in answers if answer[0] != 200]
        assert refused == [server.request("GET", path)] * 3
    assert server.items(id) == []


def test_body_of_another_type_or_size_is_refused(server: Server) -> None:
    body = {"items": [said("x")]}
    status, answer = server.request("POST", "/conversations", body, Content_Type="text/plain")
    assert (status, answer["error"]["code"]) == (415, "unsupported_content_type")
    large = {"items": [said("x" * 2**25)]}
    assert server.request("POST", "/conversations", large)[0] == 413
    assert server.store.count() == 0
    assert server.request("POST", "/conversations", b"", Content_Type="")[0] == 200
    assert server.request("POST", "/conversations", b"", Content_Type="", Sec_Fetch_Site="cross-site")[0] == 415
    assert server.store.count() == 1


def test_user_may_be_found_by_a_coroutine_function(url: str) -> None:
    async def found(request: Request) -> str | None:
        return named(request)

    with Store(url) as store, serving(conversations(AsyncStore(store), user=found)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        headers = {"Authorization": "Bearer ann", "Content-Type": "application/json"}
        connection.request("POST", "/conversations", b"{}", headers)
        key = json.loads(connection.getresponse().read())["id"]
        connection.request("POST", "/conversations", b"{}", {"Content-Type": "application/json"})
        assert connection.getresponse().status == 401
        connection.close()
        assert store.conversation(key).info().user_id == "ann"
        assert store.count() == 1


def test_store_and_user_are_checked(url: str) -> None:
    with Store(url) as store:
        with pytest.raises(TypeError, match="AsyncStore"):
            conversations(store, user=named)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="function"):
            conversations(AsyncStore(store), user="ann")  # type: ignore[arg-type]


class Model:
    """The expected responses of the API: the items and the metadata of each conversation."""

    def __init__(self) -> None:
        self.items: dict[str, list[dict[str, Any]]] = {}
        self.metadata: dict[str, dict[str, str]] = {}


def random_item(choose: random.Random) -> dict[str, Any]:
    item = dict(choose.choice(KINDS_OF_ITEMS))
    if item.get("output"):
        item["output"] = "a text that the client can send"
    item.pop("id", None)
    if choose.random() < 0.5:
        item["id"] = f"item_{choose.randrange(200)}"
    return item


def check_items(sent: list[dict[str, Any]], served: list[Any], model: list[dict[str, Any]]) -> None:
    """Compare served items with sent ones, and add new ones to the model."""
    assert len(served) == len(sent)
    known = {item["id"]: item for item in model}
    for item, answer in zip(sent, served, strict=True):
        if item.get("id") in known:
            assert answer == known[item["id"]]
            continue
        assert {name: answer[name] for name in item if name != "content"} == {
            name: value for name, value in item.items() if name != "content"
        }
        assert answer["id"] not in known
        known[answer["id"]] = answer
        model.append(answer)


def operate(server: Server, client: openai.OpenAI, model: Model, choose: random.Random) -> None:
    """Run one random operation, and compare its result with the model."""
    api = client.conversations
    id = choose.choice([*model.items, "conv_missing"])
    exists = id in model.items
    with_raw = api.items.with_raw_response
    operation = choose.choice(["create", "update", "retrieve", "delete", *["add"] * 4, *["list"] * 4, "get", "remove"])
    item_ids = [item["id"] for item in model.items.get(id, [])]
    item_id = choose.choice([*item_ids, "item_missing"])
    try:
        match operation:
            case "create" if len(model.items) < 6:
                new = [random_item(choose) for _ in range(choose.randrange(3))]
                created = api.create(items=new, metadata={"n": str(choose.random())})  # type: ignore[arg-type]
                model.items[created.id], model.metadata[created.id] = [], created.metadata  # type: ignore[assignment]
                served = server.items(created.id)
                distinct = {item.get("id", number): item for number, item in reversed(list(enumerate(new)))}
                check_items(list(reversed(distinct.values())), served, model.items[created.id])
            case "update":
                metadata = {str(choose.randrange(4)): str(choose.random()) for _ in range(choose.randrange(4))}
                assert api.update(id, metadata=metadata).metadata == metadata
                model.metadata[id] = metadata
            case "retrieve":
                assert api.retrieve(id).metadata == model.metadata[id]
            case "delete" if len(model.items) > 2 or not exists:
                assert api.delete(id).deleted
                del model.items[id], model.metadata[id]
            case "add":
                new = [random_item(choose) for _ in range(choose.choice([0, 1, 2, 5, 20, 21]))]
                added = with_raw.create(id, items=new).http_response.json()["data"]  # type: ignore[arg-type]
                assert len(new) <= 20
                check_items(new, added, model.items[id])
            case "list":
                order = choose.choice(["asc", "desc"])
                limit = choose.choice([1, 2, 7, 20, 100])
                after = choose.choice([None, item_id])
                expected = model.items.get(id, [])[:: 1 if order == "asc" else -1]
                places = [item["id"] for item in expected]
                start = places.index(after) + 1 if after in places else 0
                query: Any = {"after": after} if after else {}
                page = with_raw.list(id, order=order, limit=limit, **query).http_response.json()  # type: ignore[arg-type]
                assert after is None or after in places
                assert page["data"] == expected[start : start + limit]
                assert page["has_more"] == (len(expected) > start + limit)
            case "get":
                answer = with_raw.retrieve(item_id, conversation_id=id).http_response.json()
                assert answer == next(item for item in model.items[id] if item["id"] == item_id)
            case "remove":
                assert api.items.delete(item_id, conversation_id=id).id == id
                model.items[id] = [item for item in model.items[id] if item["id"] != item_id]
    except openai.NotFoundError:
        assert not exists or (operation in ("get", "remove", "list") and item_id == "item_missing")
    except openai.BadRequestError as error:
        if error.code != "array_above_max_length":
            raise


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_random_operations_equal_a_model(server: Server) -> None:
    choose, model = random.Random(73), Model()
    client = server.client
    for _ in range(OPERATIONS):
        operate(server, client, model, choose)
    for id, items in model.items.items():
        served = [json.loads(item.to_json()) for item in client.conversations.items.list(id, order="asc", limit=9)]
        assert [item["id"] for item in served] == [item["id"] for item in items]
    assert server.store.count(user_id="ann") == len(model.items)


FIELDS: Final = [
    "type",
    "role",
    "content",
    "id",
    "call_id",
    "name",
    "arguments",
    "output",
    "status",
    "input",
    "text",
    "x",
]
WORDS: Final = [
    *("message", "function_call", "function_call_output", "custom_tool_call", "reasoning", "item_reference"),
    *("user", "assistant", "system", "tool", "input_text", "output_text", "input_image", "msg_at_1_0", "{}", "[]"),
    *("", "a", "\ud800", "\0", "é", "x" * 700),
]


def random_json(choose: random.Random, depth: int = 0) -> Any:
    match choose.randrange(6 if depth < 4 else 4):
        case 0 | 1 | 2:
            return choose.choice(WORDS)
        case 3:
            return choose.choice([None, True, 0, -1, 1.5, 10**30, 1e300])
        case 4:
            return [random_json(choose, depth + 1) for _ in range(choose.randrange(3))]
    return {choose.choice(FIELDS): random_json(choose, depth + 1) for _ in range(choose.randrange(4))}


def odd_item(choose: random.Random) -> dict[str, Any]:
    item: dict[str, Any] = {**choose.choice(KINDS_OF_ITEMS)}
    for _ in range(choose.randrange(4)):
        item[choose.choice(FIELDS)] = random_json(choose)
    return item


def is_served(sent: dict[str, Any], item: dict[str, Any]) -> bool:
    """Return True if an item has the fields that were sent; an id may be new, and a text may be served as a part."""
    changed = {name for name, value in sent.items() if name not in item or item[name] != value}
    allowed = {"id"} if sent.get("id") is None else set()
    return changed <= allowed | ({"content"} if isinstance(sent.get("content"), str) else set())


@pytest.mark.timeout(600)
def test_random_items_are_refused_or_served_with_their_fields(server: Server) -> None:
    choose, accepted = random.Random(74), 0
    for _ in range(OPERATIONS // 8):
        item = odd_item(choose)
        status, answer = server.request("POST", "/conversations", {"items": [item]})
        if status == 400:
            assert answer["error"]["type"] == "invalid_request_error"
            continue
        assert status == 200, (item, answer)
        accepted += 1
        (served,) = server.items(answer["id"])
        assert is_served(item, served), (item, served)
        path = f"/conversations/{answer['id']}/items/{quote(served['id'], safe='')}"
        assert server.request("GET", path) == (200, served)
        for form in ("openai", "openai-responses", "anthropic", "gemini"):
            server.store.conversation(answer["id"]).history(format=form)
    assert server.store.count() == accepted > OPERATIONS // 16
