"""`lango-store demo --web`: a chat page, two workers, and a button that kills the worker that answers.

The command serves the page. The workers are processes that print lines of JSON.
"""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from queue import SimpleQueue
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from lango_store import Budget, Message, MessageRole, Store, ToolCall, ui
from lango_store.aio import AsyncConversation, AsyncRunningTurn, AsyncStore
from lango_store.cli import killing
from lango_store.cli.serve import listen
from lango_store.cli.serve import run as serve
from lango_store.content import Media, Result, Text, parts
from lango_store.errors import needs_extra

if TYPE_CHECKING:
    from starlette.applications import Starlette

LEASE: Final = timedelta(seconds=2)
PAUSE: Final = 0.12
"""Seconds that the model of the demo takes for a word."""

_ABOUT: Final = (
    "I only pretend to be a model, but my words are stored while I write them. Reload this page, open it in a second "
    "tab, or kill the worker that answers: another worker continues. Write “remind me in 20 seconds”, “book” for a "
    "tool that needs your approval, or “where” for one that your browser runs."
)
_REMIND: Final = re.compile(r"remind me in (\d{1,4}) seconds?(?: to)?\s*(.*)", re.IGNORECASE)
LONGEST: Final = 60
"""The most words of an answer."""
_SCOPE: Final = "user:you"
_TOOLS: Final = {"book": ("book_train", {"to": "Oslo"}), "where": ("where_am_i", {})}


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    """Imitate a model that calls tools for some words, and otherwise streams a text slowly."""
    await _book(conversation, turn)
    last = (await conversation.messages())[-1]
    if last.role is MessageRole.ASSISTANT:  # an attempt that was killed has stored this answer
        return
    words = " ".join(each.text for each in parts(last) if isinstance(each, Text))
    found = [tool for word, tool in _TOOLS.items() if last.role is MessageRole.USER and word in words.lower()]
    if found:
        await _write(turn, "Let me see.")
        calls = [ToolCall(id=f"{turn.id}-{name}", name=name, arguments=arguments) for name, arguments in found]
        await turn.append(Message.assistant(turn.draft_text, tool_calls=calls))
        await _book(conversation, turn)
    elif not await ui.open_calls(conversation):
        results = [str(each.content) for each in parts(last) if isinstance(each, Result)]
        files = [each.name or "a file" for each in parts(last) if isinstance(each, Media)]
        text = f"The answer is: {', '.join(results)}." if results else _ABOUT
        if asked := _REMIND.search(words):
            reminder = Message.user(asked[2] or "Time is up.", id=f"{turn.id}-later")
            await conversation.inbox.put(reminder, in_=timedelta(seconds=int(asked[1])))
            text = "I will come back to this."
        elif str(last.id).endswith("-later"):
            text = "You wanted me to remind you."
        await _write(turn, f"I have {', '.join(files)}. {text}" if files else text)
        await turn.append(Message.assistant(turn.draft_text))


async def _write(turn: AsyncRunningTurn, text: str) -> None:
    turn.usage = {"output_tokens": len(text.split())}
    for word in text.split():
        await asyncio.sleep(PAUSE)
        await turn.write(f" {word}" if turn.draft_text else word)


async def _book(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    """Ask for an approval of each open call of the tool, or run what has one."""
    for call in await ui.open_calls(conversation):
        if call.name != "book_train":
            continue
        if call.suspension is None:
            await conversation.suspensions.create(calls=[(call.seq, call.position)], reason="Book a train to Oslo?")
        elif call.suspension.answered_at is not None:
            async with turn.call(call.seq, call.position, idempotent=True) as effect:
                if not effect.replayed:
                    effect.output = "booked" if call.suspension.answer["approved"] else "not booked"


class Workers:
    """The processes that answer, and which of them answers a conversation."""

    def __init__(self, url: str) -> None:
        self._url, self._count = url, 0
        self._events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._processes: dict[str, Popen[str]] = {}
        self._answering: dict[str, str] = {}

    def start(self) -> None:
        """Start another worker."""
        self._count += 1
        name = f"worker {self._count}"
        self._processes[name] = killing.start(name, self._url, self._events, __name__)

    def find(self, key: str) -> dict[str, Any]:
        """Return the worker that answers a conversation, and its process id; both are None if none does."""
        while not self._events.empty():
            event = self._events.get()
            if event["event"] == "begins":
                self._answering[event["key"]] = event["name"]
            elif self._answering.get(event["key"]) == event["name"]:
                del self._answering[event["key"]]
        name = self._answering.get(key, "")
        process = self._processes.get(name)
        return {"name": None, "pid": None} if process is None else {"name": name, "pid": process.pid}

    def kill(self, key: str) -> None:
        """Kill the worker that answers a conversation, and start another one."""
        if (name := self.find(key)["name"]) is not None:
            killing.end(self._processes.pop(name))
            self.start()

    def end(self) -> None:
        """Kill all workers."""
        for each in self._processes.values():
            killing.end(each)


def application(url: str, workers: Workers) -> "Starlette":
    """Create the application of the page."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Mount, Route

    from lango_store import web
    from lango_store.web import page

    async def worker(request: Request) -> JSONResponse:
        key = request.query_params.get("id", "")
        if request.method == "POST":
            await asyncio.to_thread(workers.kill, key)
        return JSONResponse(workers.find(key))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with store:
            yield

    store = AsyncStore(url)
    chat = web.chat(store, answer, user=lambda _: "you", background=True, client_tools=["where_am_i"], shares=True)
    pages = [*web.chat_page("demo.js"), page.route("demo.js")]
    routes = [*pages, Route("/worker", worker, methods=["GET", "POST"]), Mount("/", chat)]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[*web.LOOPBACK])
    return Starlette(routes=routes, middleware=[hosts], lifespan=lifespan)


def run(port: int, budget: int | None = None) -> None:
    """Serve the page until Ctrl-C. With `budget`, answers may have this number of words a day."""
    with needs_extra("web"):
        import uvicorn  # noqa: F401

    with ExitStack() as stack:
        url = f"sqlite:///{stack.enter_context(TemporaryDirectory(prefix='lango-store-demo-'))}/demo.db"
        with Store(url, migrate=True) as store:
            store.shared_values(_SCOPE).set({"budget": budget})
        workers = Workers(url)
        stack.callback(workers.end)
        for _ in range(2):
            workers.start()
        listening = stack.enter_context(listen("127.0.0.1", port))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/ (Ctrl-C ends it)", flush=True)
        serve(application(url, workers), listening)


async def _work(name: str, url: str) -> None:
    async def handle(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        killing.say("begins", name=name, key=conversation.key)
        try:
            await answer(conversation, turn)
        finally:
            killing.say("ends", name=name, key=conversation.key)

    async def budget(_: AsyncConversation) -> Budget | None:
        words = (await store.shared_values(_SCOPE).get()).get("budget")
        return None if words is None else Budget(_SCOPE, words, per="day", reserve=LONGEST)

    async with AsyncStore(url) as store:
        await store.work(handle, lease=LEASE, poll=timedelta(seconds=0.25), budget=budget)


def main() -> None:
    """Be a worker."""
    name, url = sys.argv[1:]
    killing.end_with_parent()
    asyncio.run(_work(name, url))
