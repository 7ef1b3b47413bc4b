"""Many readers follow sessions while eight writers append, edit, compact, delete and create them.

LANGO_STORE_TAIL_READERS sets the number of readers, and LANGO_STORE_TAIL_WRITES the number of writes of each writer.
"""

import asyncio
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest
from support.factories import message, messages

from lango_store import (
    Appended,
    AsyncStore,
    Changed,
    Conflict,
    Conversation,
    Ended,
    Event,
    InvalidCut,
    Message,
    MessageNotFound,
    NotKept,
    SessionNotFound,
    Store,
)

pytestmark = pytest.mark.slow

READERS: Final = int(os.environ.get("LANGO_STORE_TAIL_READERS", "60"))
WRITES: Final = int(os.environ.get("LANGO_STORE_TAIL_WRITES", "40"))
WRITERS: Final = 8
KEYS: Final = ("a", "b", "b/child")
LAST: Final = "last"


class Viewer:
    """A reader that is cut at random moments, and continues from the cursor of the last event that it has seen."""

    def __init__(self, store: AsyncStore, key: str, seed: int) -> None:
        self._store, self._key = store, key
        self._choose = random.Random(seed)
        self.cuts = self.sessions = 0
        self._forget()

    def _forget(self) -> None:
        self.log: dict[int, Message] = {}
        self._after: int | str = 0
        self._last_seq = 0

    async def follow(self) -> None:
        """Follow the session until its last message."""
        while not any(each.content == LAST for each in self.log.values()):
            watching = asyncio.create_task(self._follow_once())
            if self._choose.random() < 0.5:
                await asyncio.wait([watching], timeout=self._choose.uniform(0, 0.3))
                watching.cancel()
            try:
                await watching
            except asyncio.CancelledError:
                self.cuts += 1
            except SessionNotFound:
                await asyncio.sleep(0.01)

    async def _follow_once(self) -> None:
        seen, most = 0, self._choose.choice([1, 3, 10_000])
        events = self._store.conversation(self._key).tail(after=self._after)
        try:
            async for event in events:
                await self._see(event)
                seen += 1
                if seen == most or any(each.content == LAST for each in self.log.values()):
                    return
                if self._choose.random() < 0.02:
                    await asyncio.sleep(0.1)  # be late
        finally:
            await events.aclose()

    async def _see(self, event: Event) -> None:
        match event:
            case Appended():
                seqs = [each.seq for each in event.messages]
                assert seqs == sorted(set(seqs))
                assert seqs[0] > self._last_seq, "a message came twice or out of order"
                self._last_seq = seqs[-1]
                self.log |= {each.seq: each for each in event.messages}
            case Changed():
                assert event.seq > self._last_seq
                await self._reload(event.seq)  # if it is cut here, the event comes again
                self._last_seq = event.seq
            case Ended():
                self.sessions += 1
                self._forget()
                return
        self._after = event.cursor

    async def _reload(self, upto: int) -> None:
        try:
            stored = await self._store.conversation(self._key).all_messages(before=upto + 1)
        except SessionNotFound:
            return  # the next event is Ended
        self.log = {each.seq: each for each in stored}


Write = Callable[[Store, Conversation, random.Random], object]


def some_seq(conversation: Conversation, choose: random.Random) -> int:
    return choose.randint(1, max(1, conversation.info().last_seq))


def recreate(store: Store, conversation: Conversation, choose: random.Random) -> None:
    store.delete(conversation.key)
    store.conversation(conversation.key).append_messages(messages(choose.randint(1, 3)), create=True)


APPENDS: Final[list[Write]] = [
    lambda store, k, choose: k.append_message(message(str(choose.random()))),
    lambda store, k, choose: k.append_messages(messages(choose.randint(2, 5))),
    lambda store, k, choose: k.append_message(message(str(choose.random()), role="record")),
]
CHANGES: Final[list[Write]] = [
    lambda store, k, choose: k.truncate(after=some_seq(k, choose)),
    lambda store, k, choose: k.append_messages(messages(2), replace_after=some_seq(k, choose)),
    lambda store, k, choose: k.edits.update(some_seq(k, choose), message(f"edited {choose.random()}")),
    lambda store, k, choose: k.edits.redact(some_seq(k, choose)),
    lambda store, k, choose: k.edits.delete(some_seq(k, choose)),
    lambda store, k, choose: k.pop_message(),
    lambda store, k, choose: k.compact(lambda _: message("summary"), discard=choose.random() < 0.3),
    lambda store, k, choose: k.clear(),
    lambda store, k, choose: k.versions.undo(),
    lambda store, k, choose: k.versions.redo(),
    recreate,
]


def write(store: Store, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(WRITES):
        chosen = choose.choice(CHANGES if choose.random() < 0.25 else APPENDS)
        with suppress(Conflict, InvalidCut, MessageNotFound, NotKept, SessionNotFound):  # another writer was first
            chosen(store, store.conversation(choose.choice(KEYS)), choose)


@pytest.mark.timeout(900)
def test_followers_can_rebuild_the_log_of_eight_writers_from_the_events(url: str) -> None:
    async def work() -> None:
        # The writers in this process wake the readers; those of the other store are found by polling.
        async with AsyncStore(url) as store, asyncio.timeout(800):
            with Store(url) as other, ThreadPoolExecutor(WRITERS) as pool:
                for key in KEYS:
                    other.create(key)
                viewers = [Viewer(store, KEYS[number % len(KEYS)], number) for number in range(READERS)]
                following = [asyncio.create_task(each.follow()) for each in viewers]
                loop = asyncio.get_running_loop()
                writers = [
                    loop.run_in_executor(pool, write, store.store if number % 2 else other, number)
                    for number in range(WRITERS)
                ]
                await asyncio.gather(*writers)
                for key in KEYS:
                    other.append_message(key, message(LAST), create=True)
                await asyncio.gather(*following)
            for number, viewer in enumerate(viewers):
                stored = await store.conversation(KEYS[number % len(KEYS)]).all_messages()
                assert [viewer.log[seq] for seq in sorted(viewer.log)] == stored
            assert sum(viewer.cuts for viewer in viewers) >= READERS // 2
            assert sum(viewer.sessions for viewer in viewers) >= READERS // 2

    asyncio.run(work())
