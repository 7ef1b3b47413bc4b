"""The read-only web pages of `lango-store serve`: contents, token and safety."""

import asyncio
import html
import re
import signal
import socket
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
from starlette.testclient import TestClient
from support.commands import run
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.processes import Program

from lango_store import LangoStoreError, Message, MessageRole, Store, ToolCall, schema
from lango_store._engine.engine import read_only_engine
from lango_store.web import application, new_token, overview

TOKEN = "a token of some length"
NASTY = "<script>alert(1)</script>\"'&\u202e"


@pytest.fixture
def filled(url: str) -> Store:
    with Store(url) as store:
        store.create("telegram:1", agent_id="support", user_id="ann", title="Router on fire", messages=messages(3))
        store.create("telegram:2", agent_id="sales", user_id="bob", messages=messages(1))
        return store


@pytest.fixture
def browser(filled: Store, url: str) -> Iterator[TestClient]:
    engine = read_only_engine(url)
    with Store(engine) as store:
        yield TestClient(application(store, TOKEN), base_url="http://localhost", raise_server_exceptions=True)
    engine.dispose()


def get(browser: TestClient, to: str, **parameters: str) -> str:
    answer = browser.get(f"/{TOKEN}/{to}", params=parameters or None)
    assert answer.status_code == 200, answer.text
    return answer.text


def links(page: str) -> dict[str, str]:
    found = {text: html.unescape(to) for to, text in re.findall(r'<a href="([^"]*)">([^<]*)</a>', page)}
    found.pop("totals", None)
    return found


def seqs(page: str) -> list[int]:
    return [int(seq) for seq in re.findall(r'<article class="\w+" id="m(\d+)">', page)]


def test_list_page_links_to_live_sessions(browser: TestClient) -> None:
    page = get(browser, "")
    assert links(page) == {"Router on fire": "session?key=telegram%3A1", "telegram:2": "session?key=telegram%3A2"}
    assert seqs(get(browser, links(page)["Router on fire"])) == [1, 2, 3]
    assert re.findall(r'data-name="(?:agent|user|turns)">(\w*)<', page) == ["sales", "bob", "0", "support", "ann", "0"]
    assert re.search(r">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC</time>", page)


def test_totals_page_shows_usage_per_day_as_bars_and_in_a_table(browser: TestClient, url: str) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    clock = [now]
    with Store(url, clock=lambda: clock[0]) as store:
        for days, tokens, cost in ((0, 300, 1.5), (2, 600, 2.25), (2, 60, 0.0), (40, 5_000, 9.0)):
            clock[0] = now - timedelta(days=days)
            turn = [Message.user("a"), Message.assistant("b")]
            usage = {"input_tokens": tokens, "output_tokens": 1, **({"cost_usd": cost} if cost else {})}
            store.open("telegram:1").save_turn(turn, usage=usage, metadata={"model": NASTY})
    with Store(url, clock=lambda: now) as store:
        store.open("telegram:2").inbox.put(Message.user("waits"))
        page = overview.render(store, now, lambda key, text: f"link to {key}")
    assert re.findall(r"<title>([^<]*)</title>", page)[29::-2][:2] == ["2026-03-01: 301", "2026-02-27: 662"]
    assert page.count("<rect") == 90
    assert page.count("<span>2026-01-31</span><span>2026-03-01</span>") == 3
    cells = re.findall(r"<tr><td dir=.auto.>([^<]*)</td>((?:<td[^>]*>[^<]*</td>)*)", page)
    rows = {name: re.findall(r">([^<]*)<", rest) for name, rest in cells}
    assert [each for each in rows["2026-02-27"] if each] == ["1", "2", "660", "2", "2.25"]
    assert [each for each in rows["2026-03-01"] if each] == ["1", "1", "300", "1", "1.50"]
    assert "2026-01-20" not in rows
    assert NASTY not in page
    assert "link to telegram:2" in page.split("Turns that are owed")[1]
    assert "totals" in get(browser, "")
    assert "<h1>Totals</h1>" in get(browser, "totals")


def test_totals_page_shows_fewer_days_of_a_store_with_many_turns(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_TURNS", 4)
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    clock = [now]
    with Store(url, clock=lambda: clock[0]) as store:
        for days, turns in ((29, 1), (3, 1), (2, 1), (1, 2), (0, 1)):
            clock[0] = now - timedelta(days=days)
            for _ in range(turns):
                store.open(f"chat:{days}").save_turn([Message.user("a")], usage={"input_tokens": 10})
        clock[0] = now
        page = overview.render(store, now, lambda key, text: key)
        assert "Tokens per day, 3 days; most: 20" in page
        assert "<span>2026-02-27</span><span>2026-03-01</span>" in page
        assert "Usage of 3 days: 30 days have more than" in page
        monkeypatch.setattr(overview, "_TURNS", 0)
        assert "Tokens per day, 1 day; most: 10" in overview.render(store, now, lambda key, text: key)
        monkeypatch.setattr(overview, "_TURNS", 6)
        page = overview.render(store, now, lambda key, text: key)
        assert "Tokens per day, 30 days; most: 20" in page
        assert "Usage of" not in page


def test_totals_page_of_an_empty_store(url: str) -> None:
    with Store(url) as store:
        page = overview.render(store, store._context.clock_time(), lambda key, text: key)
    assert page.count("None.") == 5
    assert "<svg" not in page


LARGE = "x" * 300_000


@pytest.mark.parametrize(
    ("calling", "result", "failed"),
    [
        (Message.assistant(tool_calls=[ToolCall(id="c", name=NASTY)]), Message.tool(LARGE, tool_call_id="c"), 0),
        (
            Message.assistant(tool_calls=[ToolCall(id="c", name=NASTY, arguments=LARGE)]),
            Message.tool(LARGE, tool_call_id="c", failed=True),
            1,
        ),
        (
            Message.assistant(tool_calls=[ToolCall(id="c", name=NASTY)]),
            Message.tool({"content": [{"type": "text", "text": LARGE}], "isError": True}, tool_call_id="c"),
            1,
        ),
        (
            Message.assistant([{"type": "tool_use", "id": "c", "name": NASTY, "input": {"text": LARGE}}]),
            Message.user([{"type": "tool_result", "tool_use_id": "c", "content": LARGE, "is_error": True}]),
            1,
        ),
        (
            Message.assistant("none"),
            Message.tool(tool_calls=[ToolCall(id="c", name=NASTY, output=LARGE, extra={"failed": True})]),
            1,
        ),
    ],
)
def test_totals_page_counts_failed_results_of_each_tool(
    url: str, calling: Message, result: Message, failed: int
) -> None:
    with Store(url) as store:
        store.create("chat:1", messages=[Message(role=MessageRole.RECORD, content=LARGE), calling, result])
        store.create("chat:2", messages=[Message.tool("noon", name="clock")])
        page = overview.render(store, store._context.clock_time(), lambda key, text: key)
    assert "in 4 messages of the sessions used last" in page
    assert NASTY not in page
    rows = [re.findall(r">([^<>]+)</td>", row) for row in page.split("sessions used last")[1].split("<tr>")[2:4]]
    shown = html.escape(NASTY[:-1]) + "\\u202e"
    expected = [["clock", "1", "0", "0.0%"], [shown, "1", *(["1", "100.0%"] if failed else ["0", "0.0%"])]]
    assert sorted(rows) == sorted(expected)
    assert rows[0][0] == shown


def test_totals_page_reads_a_limited_number_of_messages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_MESSAGES", 5)
    monkeypatch.setattr(overview, "_MESSAGES_OF_A_SESSION", 3)
    with Store(url) as store:
        for key in ("a", "b", "c"):
            store.create(key, messages=[Message.tool("no", name=key, failed=True) for _ in range(4)])
        page = overview.render(store, store._context.clock_time(), lambda key, text: key)
    assert "in 5 messages of the sessions used last" in page
    assert re.findall(r"<td dir=.auto.>(\w)</td><td data-name=.results.>(\d)<", page) == [("c", "3"), ("b", "2")]


def test_totals_page_does_not_list_an_expired_session(url: str) -> None:
    with Store(url) as store:
        for key in ("seen", "hidden"):
            store.open(key).append_message(Message.user("Hello"))
        store.hide("hidden")
        page = overview.render(store, store._context.clock_time(), lambda key, text: f"link to {key}")
    assert "link to seen" in page
    assert "link to hidden" not in page


def test_session_page_renders_markdown_without_styles(browser: TestClient, url: str) -> None:
    with Store(url) as store:
        store.append_message("telegram:1", Message.assistant("| a |\n|-:|\n| **b** |\n\n```python\nreturn 1\n```"))
    page = get(browser, "session", key="telegram:1")
    assert "<td><strong>b</strong></td>" in page
    assert '<span class="k">return</span>' in page
    assert "style=" not in page


@pytest.mark.parametrize(
    "parameters",
    [{"agent_id": "sales"}, {"user_id": "bob"}, {"key_prefix": "telegram:2"}, {"user_id": "bob", "order": "created"}],
)
def test_list_page_applies_filters(browser: TestClient, parameters: dict[str, str]) -> None:
    assert list(links(get(browser, "", **parameters))) == ["telegram:2"]


def test_list_page_shows_the_applied_filters_in_the_form(browser: TestClient) -> None:
    page = get(browser, "", title=NASTY, order="created")
    assert f'name="title" value="{html.escape(NASTY[:-1])}\\u202e"' in page
    assert "<option selected>created</option>" in page
    assert "No session." in page


def test_list_page_links_to_next_page(browser: TestClient, url: str) -> None:
    with Store(url) as store:
        for number in range(60):
            store.create(f"more:{number:02}")
    seen: list[str] = []
    page = get(browser, "", key_prefix="more:")
    for _ in range(3):
        seen += [name for name in links(page) if name.startswith("more:")]
        older = links(page).get("older")
        if older is None:
            break
        page = get(browser, older.removeprefix("."))
    assert sorted(seen) == [f"more:{number:02}" for number in range(60)]
    assert "newest" in links(page)


def test_page_of_a_long_session_shows_the_last_messages_and_links_to_earlier_ones(
    browser: TestClient, url: str
) -> None:
    with Store(url) as store:
        store.conversation("long").append_messages(messages(250), create=True)
    page = get(browser, "session", key="long")
    assert seqs(page) == list(range(151, 251))
    assert set(links(page)) >= {"first", "earlier", "all sessions"}
    assert not {"later", "last"} & set(links(page))
    page = get(browser, links(page)["earlier"])
    assert seqs(page) == list(range(51, 151))
    page = get(browser, links(page)["earlier"])
    assert seqs(page) == list(range(1, 51))
    assert not {"first", "earlier"} & set(links(page))
    page = get(browser, links(page)["later"])
    assert seqs(page) == list(range(51, 151))
    assert seqs(get(browser, links(page)["last"])) == list(range(151, 251))
    assert seqs(get(browser, links(page)["first"])) == list(range(1, 101))


def test_session_page_shows_the_turns_of_the_messages_on_the_page(browser: TestClient, url: str) -> None:
    with Store(url) as store:
        for number in range(120):
            store.open("turns").save_turn([message(), message()], {"tokens": 1_000 + number})
    page = get(browser, "session", key="turns")
    assert re.findall(r"</strong> tokens ([\d,]+)<", page) == [f"{number:,}" for number in range(1_070, 1_120)]
    assert "<dt>usage of turns</dt><dd>tokens 127,140</dd>" in page
    assert "120 turns" in page


def test_session_page_shows_who_has_answered_a_question(browser: TestClient, url: str) -> None:
    with Store(url) as store:
        conversation = store.conversation("telegram:1")
        seq = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="c", name="pay")])).seq
        suspension = conversation.suspensions.create([(seq, 0)], reason="Pay?")
        conversation.suspensions.answer(suspension.id, True, by="ann", why="cheap")
    page = get(browser, "session", key="telegram:1")
    assert "UTC by ann: true · cheap" in page


def test_session_page_shows_records(browser: TestClient, url: str) -> None:
    with Store(url) as store:
        store.append_message("records", Message(role=MessageRole.RECORD, content={"usd": 1}), create=True)
    assert '<article class="record" id="m1">' in get(browser, "session", key="records")


@not_on_a_cluster("a search index is refused on distributed tables")
def test_search_page_links_to_matching_messages(url: str, filled: Store) -> None:
    engine = read_only_engine(url)
    with Store(engine) as store, Store(url) as searching:
        browser = TestClient(application(store, TOKEN, searching=searching), base_url="http://localhost")
        without = browser.get(f"/{TOKEN}/search", params={"words": "refund"})
        assert (without.status_code, "search enable" in without.text) == (503, True)

        schema.enable_search(searching.engine)
        for number in range(25):
            searching.append_message("telegram:1", message(f"a <b>refund</b> in Oslo {number}"))
        page = get(browser, "search", words="oslo refund")
        assert page.count("<mark>") == 40
        assert "<b>" not in page
        more = get(browser, links(page)["more"])
        assert more.count('<article class="hit">') == 5
        assert "user · key telegram:1 · agent support · user ann · " in more
        found = next(to for text, to in links(page).items() if text.startswith("Router on fire, "))
        assert "refund" in get(browser, found)
        assert "No message has" in get(browser, "search", words="bergen")
        assert "<article" not in get(browser, "search")
    engine.dispose()


@pytest.mark.parametrize("path", ["/", "/session?key=telegram:1", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "//", "/%00/"])
def test_request_without_token_is_refused(browser: TestClient, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "telegram" not in answer.text
    assert "Router" not in answer.text


def test_request_with_another_host_header_is_refused(browser: TestClient) -> None:
    answer = browser.get(f"/{TOKEN}/", headers={"Host": "rebound.example"})
    assert (answer.status_code, answer.headers["x-frame-options"]) == (400, "DENY")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_write_requests_are_refused(browser: TestClient, method: str) -> None:
    assert browser.request(method, f"/{TOKEN}/session", params={"key": "telegram:1"}).status_code >= 400


def test_engine_of_the_web_pages_refuses_writes(url: str, filled: Store) -> None:
    engine = read_only_engine(url)
    with Store(engine) as store:
        with pytest.raises(LangoStoreError):
            store.append_message("telegram:1", message())
        with pytest.raises(LangoStoreError):
            store.delete("telegram:1")
        assert store.conversation("telegram:1").info().message_count == 3
    engine.dispose()


@pytest.mark.parametrize(
    ("to", "parameters", "status"),
    [
        ("session", {"key": "nobody"}, 404),
        ("session", {"key": ""}, 400),
        ("session", {"key": "telegram:1", "after": "x"}, 400),
        ("session", {"key": "telegram:1", "before": "-1"}, 400),
        ("session", {"key": "a\0b"}, 400),
        ("", {"cursor": "bogus"}, 400),
        ("elsewhere", {}, 404),
    ],
)
def test_failed_request_returns_error_page(
    browser: TestClient, to: str, parameters: dict[str, str], status: int
) -> None:
    answer = browser.get(f"/{TOKEN}/{to}", params=parameters)
    assert answer.status_code == status
    assert "Traceback" not in answer.text
    assert answer.headers["content-security-policy"]


@pytest.mark.parametrize("to", ["", "/", "/session?key=telegram:1", "/session?key=nobody", "/elsewhere", "x/"])
def test_every_response_forbids_scripts_frames_and_caches(browser: TestClient, to: str) -> None:
    answer = browser.get(f"/{TOKEN}{to}", follow_redirects=False)
    assert answer.is_redirect == (to == "")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "script" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "<script" not in answer.text


def test_stored_markup_is_escaped_on_list_and_session_page(browser: TestClient, url: str) -> None:
    with Store(url) as store:
        store.create(NASTY, title=NASTY, agent_id=NASTY, user_id=NASTY, messages=[Message.user(NASTY)])
    page = get(browser, "")
    (to,) = (to for to in links(page).values() if "script" in to)
    assert parse_qs(urlsplit(to).query)["key"] == [NASTY]
    for each in (page, get(browser, to)):
        assert "<script" not in each
        assert "\u202e" not in each


def test_read_only_engine_uses_the_schema_that_the_url_names(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = read_only_engine(
        f"{url}&options=-csearch_path%3Dtenant" if "?" in url else f"{url}?options=-csearch_path%3Dtenant"
    )
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW search_path").scalar() == "tenant"
        assert connection.exec_driver_sql("SHOW default_transaction_read_only").scalar() == "on"
    engine.dispose()


@pytest.mark.parametrize("url", ["postgresql://app:se@cret@db/agents", "bogus se@cret", "mysql://app:se%40cret@db/x"])
def test_error_of_read_only_engine_shows_no_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|supported") as refused:
        read_only_engine(url)
    assert "cret" not in "".join(traceback.format_exception(refused.value))


def test_short_token_is_refused(filled: Store) -> None:
    with pytest.raises(ValueError, match="16"):
        application(filled, "short")
    assert len({new_token() for _ in range(10)}) == 10
    assert len(new_token()) >= 32


@pytest.mark.slow
def test_serve_command_serves_at_the_address_that_it_printed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with Store(url, migrate=True) as store:
        store.create("k", messages=[message("hello")])
    with Program("from lango_store.cli import main; main()", "serve", "--url", url, "--port", "0") as program:
        try:
            address = program.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/", address), program.stderr.read()
            with urlopen(f"{address}session?key=k", timeout=20) as answer:
                assert b"hello" in answer.read()
        finally:
            program.send_signal(signal.SIGINT)
            program.wait()


def test_serve_command_names_the_option_to_change_if_port_or_host_is_unusable(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--url", url, "--port", str(taken.getsockname()[1]))
    assert (done.returncode, "--port" in done.stderr, "in use" in done.stderr) == (2, True, True), done
    done = run("serve", "--url", url, "--port", "0", "--host", "192.0.2.1")
    assert (done.returncode, "--host" in done.stderr) == (2, True), done


def test_serve_command_requires_existing_database(tmp_path: Path) -> None:
    done = run("serve", "--url", f"sqlite:///{tmp_path}/none.db")
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_request_for_an_asterisk_is_answered_as_an_unknown_page(store: Store) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    headers = [(b"host", b"localhost")]
    scope = {
        "type": "http",
        "method": "OPTIONS",
        "path": "*",
        "raw_path": b"*",
        "query_string": b"",
        "headers": headers,
    }
    asyncio.run(application(store, TOKEN)(scope, receive, send))
    assert sent[0]["status"] == 404
