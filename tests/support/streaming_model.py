"""A local server that imitates a model: it streams answers to other processes, counts its calls and can be held."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

PIECES: Final = ("I ", "have ", "read ", "it.")

_CLIENT: Final = '''
async def complete(prompt):
    """Ask the streaming model for an answer to the last message."""
    reader, writer = await asyncio.open_connection("127.0.0.1", {port})
    writer.write(json.dumps(prompt[-1]["content"]).encode() + b"\\n")
    async for line in reader:
        yield json.loads(line), {{}}
    writer.close()
    yield "", {{"calls": 1}}
'''


class StreamingModel:
    """A model that answers each question with `PIECES`.

    Attributes:
        calls: The number of calls by question.
        port: The port of the server.
        client: The source of a function `complete` that calls the model; it needs the modules asyncio and json.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.calls: Counter[str] = Counter()
        self._loop = loop
        self._released = asyncio.Event()
        self._server = loop.run_until_complete(asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=512))
        self._held_after = 1
        self.port = self._server.sockets[0].getsockname()[1]
        self.client = _CLIENT.format(port=self.port)

    def hold(self, after: int = 1) -> None:
        """Pause calls after some pieces, by default after the first one."""
        self._held_after = after
        self._loop.call_soon_threadsafe(self._released.clear)

    def release(self) -> None:
        """Continue all calls."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def close(self) -> None:
        """Stop listening, and wait for the running answers."""
        self._server.close()
        if running := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(running)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.readline()
        self.calls[question.decode().strip().strip('"')] += 1
        with suppress(ConnectionError):  # the program was killed
            for number, piece in enumerate(PIECES, 1):
                writer.write(f'"{piece}"\n'.encode())
                await writer.drain()
                if number >= self._held_after:
                    await self._released.wait()
        writer.close()


@contextmanager
def streaming_model() -> Iterator[StreamingModel]:
    """Serve a model from a thread."""
    loop = asyncio.new_event_loop()
    model = StreamingModel(loop)
    model.release()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield model
    finally:
        model.release()
        asyncio.run_coroutine_threadsafe(model.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
