"""`EventSource` of a real browser, through a proxy that cuts its connection every 300 ms."""

import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route
from support.chromium import Browser
from support.factories import message
from support.http_server import serving
from support.polling import until
from support.relay import Relay

from lango_store import AsyncStore, Message, Store
from lango_store.sse import EventStream

PAGE = """<!doctype html><script>
const seen = { messages: [], text: "", wrong: [], connections: 0, ended: null };
const source = new EventSource("/sessions/k/events");
const on = (name, show) => source.addEventListener(name, (event) => show(JSON.parse(event.data)));
source.onopen = () => seen.connections++;
on("appended", (data) => seen.messages.push(...data.messages.map((each) => each.content)));
on("piece", ({ turn_id, n, text }) => {
  if (n !== 0 && n !== [...seen.text].length) seen.wrong.push([n, text, seen.text]);
  if (turn_id !== null) seen.text = n === 0 ? text : seen.text + text;
});
on("ended", ({ reason }) => { seen.ended = reason; source.close(); });
</script>"""


def anyone(scope: Mapping[str, Any], key: str) -> bool:
    return True


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/agent.db"
    with Store(url, migrate=True) as store:
        store.create("k")
    return url


@contextmanager
def proxied(port: int, seconds: float) -> Iterator[int]:
    """Forward connections to a port, and cut all of them again and again; yield the port of the proxy."""
    relay = Relay(sa.make_url(f"http://127.0.0.1:{port}"))
    ended = threading.Event()

    def cut() -> None:
        while not ended.wait(seconds):
            relay.refuse()
            relay.admit()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield relay.port
    finally:
        ended.set()
        thread.join()
        relay.close()


def test_event_source_gets_each_event_once_despite_cut_connections(url: str, browser: Browser) -> None:
    async def page(request: Request) -> HTMLResponse:
        return HTMLResponse(PAGE)

    store = AsyncStore(url)
    stream = EventStream(store, authorize=anyone, retry=timedelta(milliseconds=20))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with store:
            yield

    app = Starlette(routes=[Route("/", page), Mount("/sessions", stream)], lifespan=lifespan)
    with (
        serving(app) as port,
        Store(url) as writer,
        proxied(port, 0.3) as proxy,
    ):
        conversation = writer.conversation("k")
        tab = browser.open_tab(f"http://127.0.0.1:{proxy}/")
        until(lambda: bool(tab.run("typeof seen === 'object' && seen.connections")))
        answer = "".join(f"word {number} \N{GRINNING FACE}" for number in range(200))
        with conversation.turn("t", flush=timedelta(0)) as turn:
            for number in range(100):
                conversation.append_message(message(number))
                turn.write(answer[number * len(answer) // 100 : (number + 1) * len(answer) // 100])
                until(lambda number=number: tab.run("seen.connections") >= number // 10)  # type: ignore[misc]
            until(lambda: tab.run("seen.text") == answer)
            turn.append(Message.assistant(answer))
        until(lambda: tab.run("seen.messages.length") >= 101)
        writer.delete("k")
        until(lambda: tab.run("seen.ended") is not None)
        seen = json.loads(tab.run("JSON.stringify(seen)"))
    assert seen["messages"] == [*range(100), answer]
    assert (seen["text"], seen["wrong"]) == (answer, [])
    assert seen["ended"] == "deleted"
