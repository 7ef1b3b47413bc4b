"""A local stub of the Messages API that calls a weather tool and reports its result."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Blocks = list[dict[str, Any]]

TOOL = "mcp__desk__get_weather"

CITIES = {"Oslo": "", "Rome": "b"}
"""The cities that the model knows, with the end of the id of a call for each."""


class MessagesApi:
    """The model: it answers a question about the weather with a call for each city, and everything else with text.

    `asked` has the messages of each request. While `mute` is set, tool results are not answered.
    """

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.mute = False
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return the model's response to a request; None if the client has disconnected."""
        self.asked.append(question["messages"])
        number = len(self.asked)
        last = blocks(question["messages"][-1])
        results = [block for block in last if block["type"] == "tool_result"]
        if results and self.mute:
            self._over.wait()
            return None
        cities = [city for city in CITIES if not results and city in texts(last)[-1]]
        text = {"type": "text", "text": "I will look." if cities else f"Answer {number}."}
        calls = [
            {"type": "tool_use", "id": f"toolu_{number}{CITIES[city]}", "name": TOOL, "input": {"city": city}}
            for city in cities
        ]
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": question["model"],
            "content": [text, *calls],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3},
        }


def blocks(message: dict[str, Any]) -> Blocks:
    """Return the content of a message as blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def texts(said: Blocks) -> list[str]:
    """Return the texts of a user or the model among blocks, without the texts that the CLI adds."""
    found = [block["text"].strip() for block in said if block["type"] == "text"]
    return [text for text in found if not text.startswith("<")]


def _handler(api: MessagesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._send(b"", "text/plain")

        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = api.answer(question)
            if response is None:
                self.close_connection = True
            elif question.get("stream"):
                lines = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in _streamed(response))
                self._send(lines.encode(), "text/event-stream")
            else:
                self._send(json.dumps(response).encode(), "application/json")

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _streamed(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**response["usage"], "output_tokens": 1}  # the usage is complete at the end of the stream
    yield {"type": "message_start", "message": {**response, "content": [], "stop_reason": None, "usage": begun}}
    for index, block in enumerate(response["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            said = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            empty, delta = {**block, "input": {}}, said
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": response["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": response["usage"]}
    yield {"type": "message_stop"}
