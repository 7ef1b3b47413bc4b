"""A chat with its page, as a service and as workers in other processes, for tests in a browser.

The model and the tool `pay` are servers of the test, so that they can be held and count their calls.
"""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final
from urllib.request import Request, urlopen

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Mount, Route
from support.processes import Program

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Message, ToolCall, ui
from lango_store.web import chat, chat_page

LEASE: Final = timedelta(seconds=1)
TOOLS: Final = {"Pay": ["pay"], "Where": ["where"], "Both": ["pay", "where"]}
SCRIPT: Final = "langoTools.where = () => (window.ran = (window.ran ?? 0) + 1, window.where ?? 'Oslo');"


def text_of(message: Message) -> str:
    """Return the text of a question."""
    if isinstance(message.content, list):
        return "".join(each.get("text", "") for each in message.content)
    return str(message.content)


class Answering:
    """Answers with the model of a test, and runs its tool."""

    def __init__(self, model: int, tool: str) -> None:
        self._model, self._tool = model, tool

    async def __call__(self, chat: AsyncConversation, turn: AsyncRunningTurn) -> None:
        last = (await chat.messages(last=1))[-1]
        if last.role == "user" and (names := TOOLS.get(text_of(last))):
            calls = [ToolCall(id=f"{turn.id}-{name}", name=name, arguments={"for": "tests"}) for name in names]
            await turn.append(Message.assistant("Wait.", tool_calls=calls))
        for call in await ui.open_calls(chat):
            place = (call.seq, call.position)
            if call.name == "pay" and call.suspension is None:
                await chat.suspensions.create([place], reason="Pay?")
            elif call.suspension is not None and call.suspension.answered_at is not None:
                async with turn.call(*place, idempotent=True) as effect:
                    if not effect.replayed:
                        is_approved = call.suspension.answer["approved"]
                        effect.output = await asyncio.to_thread(self._pay, effect.key) if is_approved else "not paid"
        if not await ui.open_calls(chat) and (await chat.messages(last=1))[-1].role != "assistant":
            question = [each for each in await chat.messages() if each.role == "user"][-1]
            async for piece in self._complete(text_of(question)):
                await turn.write(piece)
                await turn.flush()
            await turn.append(Message.assistant(turn.draft_text))

    async def _complete(self, question: str) -> AsyncIterator[str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._model)
        writer.write(json.dumps(question).encode() + b"\n")
        try:
            async for line in reader:
                yield json.loads(line)
        finally:
            writer.close()

    def _pay(self, key: str) -> str:
        with urlopen(Request(f"{self._tool}/pay", method="POST", headers={"Idempotency-Key": key})) as answer:
            return str(answer.read().decode())


class Service:
    """The processes of a chat: a web server at `address`, and workers."""

    def __init__(self, url: str, model: int, tool: str) -> None:
        self._arguments = [url, str(model), tool]
        self._port = 0
        self._workers: list[Program] = []
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Start the web server, on the port that it had."""
        self._server = self._begin("serve", str(self._port))
        self._port = int(self._server.stdout.readline())

    def start_worker(self) -> None:
        self._workers.append(self._begin("work", ""))

    def kill_server(self) -> None:
        _end(self._server)

    def kill_workers(self) -> None:
        while self._workers:
            _end(self._workers.pop())

    def _begin(self, what: str, port: str) -> Program:
        source = "from support.chat_service import main; main()"
        return Program(source, what, port, *self._arguments, keep_stderr=False)


def _end(process: Program) -> None:
    process.kill()
    process.wait()
    process.close()


@contextmanager
def chat_service(url: str, model: int, tool: str) -> Iterator[Service]:
    """Start a service without workers."""
    service = Service(url, model, tool)
    try:
        yield service
    finally:
        service.kill_workers()
        service.kill_server()


def _serve(port: int, url: str, answer: Answering) -> None:
    store = AsyncStore(url)

    async def script(_: HttpRequest) -> Response:
        return Response(SCRIPT, media_type="text/javascript")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with store:
            yield

    app = chat(store, answer, user=lambda _: "ann", background=True, client_tools=["where"], shares=True)
    routes = [*chat_page("tools.js"), Route("/tools.js", script), Mount("/", app)]
    config = uvicorn.Config(Starlette(routes=routes, lifespan=lifespan), log_level="error", ws="none")
    listening = socket.create_server(("127.0.0.1", port))  # from now on, browsers that connect wait
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listening])


async def _work(url: str, answer: Answering) -> None:
    async with AsyncStore(url) as store:
        await store.work(answer, lease=LEASE, poll=timedelta(seconds=0.1), backoff=timedelta(seconds=0.2))


def main() -> None:
    what, port, url, model, tool = sys.argv[1:]
    answer = Answering(int(model), tool)
    if what == "serve":
        _serve(int(port), url, answer)
    else:
        asyncio.run(_work(url, answer))
