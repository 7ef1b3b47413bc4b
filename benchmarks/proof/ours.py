"""lango_store, with its synchronous and its asynchronous interface."""

from datetime import timedelta
from typing import Any

import benchmarks.turns  # noqa: F401  makes the helpers of the tests importable
from benchmarks.proof.adapter import LEASE, Adapter, Effects
from lango_store import AsyncStore, Conversation, Message, RunningTurn, Store, ToolCall

_LEASE = timedelta(seconds=LEASE)


class Lango(Adapter):
    """`Store`."""

    can = frozenset({"batch", "ids", "turn", "request", "tool", "answer", "follow"})

    def __init__(self, url: str) -> None:
        self.store = Store(url)

    def open(self, key: str) -> None:
        self.store.open(key)

    def append(self, key: str, texts: list[str]) -> None:
        self.store.conversation(key).append_messages([Message.user(text, id=text) for text in texts])

    def read(self, key: str) -> list[str]:
        return _texts(self.store.conversation(key).all_messages())

    def turn(self, key: str, request: str, effects: Effects) -> None:
        with self.store.conversation(key).turn(request, lease=_LEASE) as turn:
            if not turn.replayed:
                _run(turn, effects)

    def finish(self, key: str, effects: Effects) -> bool:
        def handle(_: Conversation, turn: RunningTurn) -> None:
            _run(turn, effects)

        self._work(handle, once=True, lease=_LEASE, backoff=timedelta(seconds=0.1), key_prefix=key)
        return bool(self.store.owed(key_prefix=key).items or self.store.turns.list_in_progress(key_prefix=key).items)

    def _work(self, handle: Any, **options: Any) -> None:
        self.store.work(handle, **options)

    def ask(self, key: str) -> None:
        self.store.conversation(key).suspensions.create()

    def answer(self, key: str, text: str) -> None:
        conversation = self.store.conversation(key)
        conversation.suspensions.answer(conversation.suspensions.list()[0].id, text)

    def follow(self, key: str, cursor: Any) -> tuple[list[str], Any]:
        events = [*self.store.conversation(key).tail(after=cursor or 0, follow=False)]
        texts = [text for event in events if event.event == "appended" for text in _texts(event.messages)]
        return texts, events[-1].cursor if events else cursor


class AsyncLango(Lango):
    """`AsyncStore`, whose calls are awaited on an event loop in another thread."""

    def __init__(self, url: str) -> None:
        from support.awaiting import awaiting

        self._open = awaiting(AsyncStore(url))
        self.store = self._open.__enter__()

    def _work(self, handle: Any, **options: Any) -> None:
        from support.working import work

        options.pop("once")
        work(self.store, handle, **options)


def _run(turn: RunningTurn, effects: Effects) -> None:
    turn.append(Message.user(turn.id))
    asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="call", name="tool")]))
    with turn.call(asking, 0, limit=_LEASE, idempotent=True) as effect:
        if not effect.replayed:
            effect.output = effects.tool(turn.id)
    effects.stored("tool", turn.id)
    if not any(message.role == "assistant" and message.content for message in turn.messages):
        turn.append(Message.assistant(effects.model(turn.id)))
        effects.stored("model", turn.id)


def _texts(messages: list[Message]) -> list[str]:
    return [str(message.content) for message in messages if message.role != "tool" and message.content]
