"""`lango_store.web.shares`: the pages of links, their headers, and requests with hostile tokens."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from support.http_server import serving

from lango_store import AsyncStore, Conversation, Message, Store
from lango_store._rooms.documents.page import POLICY
from lango_store.testing import Clock
from lango_store.web import shares

PLANTED = "planted-secret"


@pytest.fixture
def trip(store: Store) -> Conversation:
    return store.open("trip", user_id="ann", messages=[Message.user(PLANTED), Message.assistant("Hi")])


@pytest.fixture
def browser(store: Store, trip: Conversation) -> Iterator[TestClient]:
    app = Starlette(routes=[Mount("/s", shares(AsyncStore(store)))])
    with TestClient(app, raise_server_exceptions=True) as client:
        yield client


def page(browser: TestClient, token: str | None) -> tuple[int, str]:
    answer = browser.get(f"/s/{token}")
    return answer.status_code, answer.text


def test_page_of_a_share_is_its_document_with_headers_that_keep_it_private(
    browser: TestClient, store: Store, trip: Conversation
) -> None:
    token = str(trip.share().token)
    answer = browser.get(f"/s/{token}")
    assert (answer.status_code, answer.text) == (200, store.shares.document(token))
    assert PLANTED in answer.text
    missing = browser.get("/s/unknown")
    for each in (answer, missing):
        headers = each.headers
        assert headers["content-security-policy"] == f"{POLICY}; frame-ancestors 'none'"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-robots-tag"].startswith("noindex")
        assert headers["cache-control"] == "no-store"
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in headers


def test_links_that_do_not_work_have_one_answer(
    browser: TestClient, store: Store, clock: Clock, trip: Conversation
) -> None:
    removed, passed, live = trip.share(), trip.share(until=clock().replace(year=2090)), trip.share()
    trip.unshare(removed.id)
    expired = store.open("expired", ttl=clock().replace(year=2090) - clock()).share()
    deleted = store.open("deleted").share()
    store.delete("deleted")
    clock.move(days=30_000)
    unknown = page(browser, "a" * 43)
    assert unknown[0] == 404
    for share in (removed, passed, expired, deleted):
        assert page(browser, share.token) == unknown
    assert page(browser, live.token)[0] == 200


@pytest.mark.parametrize("way", ["redact", "delete", "truncate", "erase", "session"])
def test_page_has_nothing_that_was_removed(browser: TestClient, store: Store, trip: Conversation, way: str) -> None:
    token = trip.share(tools=True).token
    assert PLANTED in page(browser, token)[1]
    removals: dict[str, Callable[[], object]] = {
        "redact": lambda: trip.edits.redact(1),
        "delete": lambda: trip.edits.delete(1),
        "truncate": lambda: trip.truncate(after=0),
        "erase": lambda: store.erase("ann"),
        "session": lambda: store.delete("trip"),
    }
    removals[way]()
    assert PLANTED not in page(browser, token)[1]


HOSTILE = ["", "%00", "a" * 43 + "%00", "a" * 43 + "=", "a" * 43 + "/", "%2e%2e", "%", "%ff" * 43, "a" * 43 + "?a=b"]
HOSTILE += ["a" * 43 + "%0a", "..%2f" * 9, "é" * 43]


@pytest.mark.parametrize("token", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_token_is_answered_like_an_unknown_one(browser: TestClient, token: str) -> None:
    assert page(browser, token) == page(browser, "unknown")


def test_other_methods_are_answered_like_an_unknown_token(browser: TestClient, trip: Conversation) -> None:
    token = trip.share().token
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = browser.request(method, f"/s/{token}")
        assert (answer.status_code, answer.text) == page(browser, "unknown")
    assert browser.head(f"/s/{token}").text == ""
    assert len(trip.shares().items) == 1


def test_raw_paths_of_any_bytes_are_answered_with_404(store: Store, trip: Conversation) -> None:
    app = shares(AsyncStore(store))

    async def status(path: Any) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "root_path": ""}
        await app(scope, receive, send)
        return int(sent[0]["status"])

    for path in ("/" + "a" * 10_000_000, "/\0", "/\ud800", "/" + "\0" * 43, "/\n" + "a" * 43, "//", "", "/a/b"):
        assert asyncio.run(status(path)) == 404, path[:10]


@pytest.mark.slow
def test_server_answers_a_path_of_ten_megabytes_with_an_error_of_the_client(store: Store, trip: Conversation) -> None:
    with serving(shares(AsyncStore(store))) as port:
        for length in (1_000, 10_000_000):
            with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)) as caught:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{'a' * length}", timeout=30)
            assert not isinstance(caught.value, urllib.error.HTTPError) or 400 <= caught.value.code < 500


def test_damaged_message_is_answered_without_its_session(store: Store, trip: Conversation) -> None:
    token = trip.share().token
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET tool_calls = '{\"a\": 1}' WHERE seq = 1")
    with TestClient(shares(AsyncStore(store)), raise_server_exceptions=False) as client:
        answer = client.get(f"/{token}")
    assert answer.status_code == 500
    assert "trip" not in answer.text


def test_shares_needs_an_asynchronous_store(store: Store) -> None:
    with pytest.raises(TypeError, match="AsyncStore"):
        shares(store)  # type: ignore[arg-type]
