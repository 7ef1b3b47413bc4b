"""`sse.EventStream`: the events of a session as server-sent events."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from support.asgi import Request
from support.factories import message, messages
from support.following import channel_of

from lango_store import AsyncStore, LangoStoreError, Message, Store
from lango_store.sse import EventStream
from lango_store.testing import Clock


def anyone(scope: Mapping[str, Any], key: str) -> bool:
    return True


Work = Callable[..., Coroutine[Any, Any, None]]


@pytest.fixture
def served(url: str, clock: Clock) -> Callable[[Work], None]:
    """Return a function that runs a coroutine function with a store and an event stream."""

    def run(work: Work) -> None:
        async def start() -> None:
            async with AsyncStore(url, clock=clock) as store:
                await work(store, EventStream(store, authorize=anyone))

        asyncio.run(start())

    return run


async def first(request: Request) -> tuple[str, str, Any]:
    return await anext(request.events())


def test_stream_sends_stored_and_new_messages(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("k", messages=messages(2))
        request = Request(app, "/k/events")
        events = request.events()
        id, kind, data = await anext(events)
        assert (kind, [each["content"] for each in data["messages"]]) == ("appended", ["message 0", "message 1"])
        assert id.startswith("2-")
        assert (request.status, request.headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
        appended = await store.append_message("k", message("new\nline"))
        _, _, data = await anext(events)
        assert Message.model_validate(data["messages"][0]) == appended
        await store.conversation("k").truncate(after=1)
        assert (await anext(events))[1:] == ("changed", {"kind": "truncate", "seq": 4, "after_seq": 1})
        await request.disconnect()
        assert channel_of(store.store) is None

    served(work)


def test_stream_sends_pieces_of_a_draft_and_the_end_of_the_draft(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        conversation = await store.open("k")
        request = Request(app, "/k/events")
        events = request.events()
        async with conversation.turn("t", flush=timedelta(0)) as turn:
            await turn.write("It is ")
            assert (await anext(events))[1:] == ("turn_began", {"turn_id": "t"})
            assert (await anext(events))[1:] == ("piece", {"turn_id": "t", "n": 0, "text": "It is "})
            await turn.write("sunny.")
            assert (await anext(events))[2] == {"turn_id": "t", "n": 6, "text": "sunny."}
            await turn.append(Message.assistant(turn.draft_text))
            assert (await anext(events))[1] == "appended"
            assert (await anext(events))[2] == {"turn_id": None, "n": 0, "text": ""}
            turn.usage = {"output_tokens": 4}
        _, kind, data = await anext(events)
        assert (kind, data["outcome"], data["turn_id"]) == ("turn_ended", "saved", "t")
        assert data["turn"]["usage"] == {"output_tokens": 4}
        await request.disconnect()

    served(work)


def test_last_event_id_header_takes_precedence_over_the_parameter_after(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("k", messages=messages(1))
        before = Request(app, "/k/events")
        id, _, _ = await first(before)
        await before.disconnect()
        await store.append_message("k", message("second"))
        for request in (Request(app, "/k/events?after=0", last_event_id=id), Request(app, "/k/events?after=1")):
            _, _, data = await first(request)
            assert [each["content"] for each in data["messages"]] == ["second"]
            await request.disconnect()

    served(work)


def test_deletion_of_the_session_ends_the_stream(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("k", messages=messages(1))
        request = Request(app, "/k/events")
        id, _, _ = await first(request)
        await store.delete("k")
        assert [event[1:] async for event in request.events()] == [("ended", {"reason": "deleted"})]
        assert await request.finish() == 200
        await store.create("k", messages=messages(3))
        again = Request(app, "/k/events", last_event_id=id)
        assert [event[1:] async for event in again.events()] == [("ended", {"reason": "replaced"})]

    served(work)


def test_stream_sends_comments_as_heartbeat(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.create("k")
            app = EventStream(store, authorize=anyone, heartbeat=timedelta(milliseconds=20), retry=timedelta(seconds=2))
            request = Request(app, "/k/events")
            frames = request.frames()
            assert [await anext(frames) for _ in range(4)] == ["retry: 2000", ":", ":", ":"]
            await store.append_message("k", message())
            while not (await anext(frames)).startswith("id: 1-"):
                pass
            await request.disconnect()

    asyncio.run(work())


def test_event_stream_accepts_a_session_key_with_slashes(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("a", messages=messages(1))
        await store.create("a/b/events", messages=messages(2))
        request = Request(app, "/a/b/events/events")
        assert len((await first(request))[2]["messages"]) == 2
        await request.disconnect()

    served(work)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/missing/events", 404),
        ("/expired/events", 410),
        (f"/{'k' * 513}/events", 400),
        ("/k/events?after=x", 400),
        ("/k", 404),
        ("/events", 404),
        ("//events", 404),
        ("/k/events/", 404),
    ],
)
def test_refused_request_gets_an_http_error_status(
    served: Callable[[Work], None], clock: Clock, path: str, status: int
) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("k")
        await store.create("expired", ttl=timedelta(hours=1))
        clock.move(hours=2)
        assert await Request(app, path).finish() == status

    served(work)


def test_http_methods_other_than_get_are_refused(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("k")
        request = Request(app, "/k/events", method="POST")
        assert await request.finish() == 405
        assert request.headers[b"allow"] == b"GET"

    served(work)


def test_request_that_is_not_http_is_refused(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Any) -> None:
        with pytest.raises(LangoStoreError, match="websocket"):
            await app({"type": "websocket"}, None, None)

    served(work)


@pytest.mark.parametrize("awaited", [False, True])
def test_authorize_decides_for_each_session(url: str, awaited: bool) -> None:
    asked: list[tuple[str, str]] = []

    def own(scope: Mapping[str, Any], key: str) -> bool:
        asked.append((scope["type"], key))
        return key == "ann:1"

    async def own_awaited(scope: Mapping[str, Any], key: str) -> bool:
        return own(scope, key)

    async def work() -> None:
        async with AsyncStore(url) as store:
            for key in ("ann:1", "bob:1"):
                await store.create(key, messages=messages(1))
            app = EventStream(store, authorize=own_awaited if awaited else own)
            allowed = Request(app, "/ann:1/events")
            assert (await first(allowed))[1] == "appended"
            await allowed.disconnect()
            for key in ("bob:1", "missing"):  # the status does not reveal which keys exist
                assert await Request(app, f"/{key}/events").finish() == 403

    asyncio.run(work())
    assert asked == [("http", "ann:1"), ("http", "bob:1"), ("http", "missing")]


def test_request_is_refused_unless_authorize_returns_true(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.create("k")
            app = EventStream(store, authorize=lambda scope, key: "yes")  # type: ignore[arg-type, return-value]
            assert await Request(app, "/k/events").finish() == 403

    asyncio.run(work())


def test_event_stream_does_not_start_without_authorize(url: str) -> None:
    with Store(url) as store:
        following = AsyncStore(store)
        incomplete: Any = functools.partial(EventStream, following)
        with pytest.raises(TypeError, match="authorize"):
            incomplete()
        with pytest.raises(TypeError, match="authorize"):
            incomplete(authorize=None)
        with pytest.raises(TypeError, match="AsyncStore"):
            EventStream(store, authorize=anyone)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="heartbeat"):
            EventStream(following, authorize=anyone, heartbeat=timedelta(0))


def test_mounted_event_stream_reads_the_key_after_the_mount_path(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("k", messages=messages(1))
        mounted = Starlette(routes=[Mount("/chats", Mount("/v1", app))])
        for root in ("", "/api"):
            request = Request(mounted, "/chats/v1/k/events", root=root)
            assert (await first(request))[1] == "appended"
            await request.disconnect()

    served(work)


def test_closing_the_store_ends_the_stream(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        store = AsyncStore(url)
        await store.create("k", messages=messages(1))
        request = Request(EventStream(store, authorize=anyone), "/k/events")
        await first(request)
        await store.close()
        assert [frame async for frame in request.frames()] == []
        assert await request.finish() == 200

    asyncio.run(work())
    assert "closed" in caplog.text


def test_readers_of_one_session_share_the_encoded_event(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: EventStream) -> None:
        await store.create("k")
        events = [store.conversation("k").tail() for _ in range(2)]
        waiting = [asyncio.ensure_future(anext(each)) for each in events]
        while (channel := channel_of(store.store)) is None or channel.readers < 2:
            await asyncio.sleep(0.01)
        await store.append_message("k", message())
        one, other = await asyncio.gather(*waiting)
        assert one is other
        assert one.data is other.data
        for each in events:
            await each.aclose()

    served(work)
