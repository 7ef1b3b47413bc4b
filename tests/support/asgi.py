"""Requests to an ASGI application in this process, whose answer is read while it is sent."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any


class Request:
    """A GET request.

    Attributes:
        status: The status of the answer, once it has begun.
        headers: The headers of the answer.
    """

    def __init__(self, app: Any, path: str, *, method: str = "GET", root: str = "", **headers: str) -> None:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": root + path,
            "root_path": root,
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self._sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._buffer = ""
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        self._sent.put_nowait(message.get("body", b""))
        if not message.get("more_body"):
            self._sent.put_nowait(None)

    async def frames(self) -> AsyncIterator[str]:
        """Yield the frames of server-sent events, comments included, until the answer ends."""
        while (part := await asyncio.wait_for(self._sent.get(), 30)) is not None:
            self._buffer += part.decode()
            while "\n\n" in self._buffer:
                frame, self._buffer = self._buffer.split("\n\n", 1)
                yield frame

    async def events(self) -> AsyncIterator[tuple[str, str, Any]]:
        """Yield the id, the type and the data of each event."""
        async for frame in self.frames():
            if frame.startswith("id: "):
                fields = dict(line.split(": ", 1) for line in frame.split("\n"))
                yield fields["id"], fields["event"], json.loads(fields["data"])

    async def disconnect(self) -> None:
        """Disconnect the client, and wait for the application to end."""
        self._gone.set()
        await asyncio.wait_for(self.task, 30)

    async def finish(self) -> int | None:
        """Wait for the end of the answer, and return its status."""
        await asyncio.wait_for(self.task, 30)
        return self.status
