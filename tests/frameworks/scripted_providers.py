"""Providers behind a local server that seal what their models think, and judge each request by their rules."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from support.strict_rules import Block, BoundThinking, Request, judge, seal

PROVIDERS: Final = {
    "anthropic": ("anthropic", "claude-opus-5-5"),
    "gemini": ("google", "gemini-3-pro"),
    "openai-responses": ("openai", "gpt-5"),
}
"""The provider and the model of each format."""

USAGE: Final = {"input_tokens": 10, "output_tokens": 5}


class Scripted:
    """A model that calls `get_weather` for a question about the weather, and answers everything else with text.

    It thinks before each answer. `requests` has the requests so far, with their answers.
    """

    def __init__(self, format: str) -> None:
        self.format = format
        self.provider, self.model = PROVIDERS[format]
        self.requests: list[Request] = []

    def ask(self, messages: list[Block], system: Any = None, tools: Any = ()) -> list[Block]:
        """Return the blocks of the answer to a request."""
        request = Request(self.format, self.provider, self.model, messages, system, tools or ())
        request.answer = self._answer(request, len(self.requests), "Weather" in json.dumps(messages[-1]))
        self.requests.append(request)
        return request.answer

    def _answer(self, request: Request, number: int, is_call: bool) -> list[Block]:
        name, arguments, text = "get_weather", {"city": f"city {number}"}, f"Answer {number}."
        sealed = seal(issuer=self.provider, model=self.model, digest=None, n=number)
        if self.format == "anthropic":
            said = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
            thought = {"type": "thinking", "thinking": f"thought {number}"}
            return BoundThinking().sign(request, [thought, said if is_call else {"type": "text", "text": text}])
        if self.format == "gemini":
            part: Block = {"function_call": {"name": name, "args": arguments}} if is_call else {"text": text}
            return [part | {"thought_signature": sealed}]
        ids = {"call_id": f"call_{number}", "id": f"fc_{number}"}
        call = {"type": "function_call", "name": name, "arguments": json.dumps(arguments), **ids}
        reasoning = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": sealed}
        return [reasoning, call if is_call else {"type": "output_text", "text": text}]

    def faults(self) -> list[str]:
        """Return why the provider refuses any of the requests."""
        return judge(self.requests)[0]

    def share(self) -> tuple[int, int]:
        """Return how many blocks of thinking were sent back, and how many could have been."""
        share = judge(self.requests)[1]
        return share["kept"], share["could"]


class Server:
    """The HTTP API of a scripted provider, without streams."""

    def __init__(self, scripted: Scripted) -> None:
        self.scripted = scripted
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(scripted: Scripted) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(_responses[scripted.format](scripted, asked)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _anthropic(scripted: Scripted, asked: Block) -> Block:
    content = scripted.ask(asked["messages"], asked.get("system"), asked.get("tools"))
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": scripted.model, "stop_sequence": None}
    return about | {"content": content, "stop_reason": "end_turn", "usage": USAGE}


def _gemini(scripted: Scripted, asked: Block) -> Block:
    parts = scripted.ask(_renamed(asked["contents"], _snake), None, asked.get("tools"))
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    candidate = {"content": {"role": "model", "parts": _renamed(parts, _camel)}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": scripted.model}


def _openai(scripted: Scripted, asked: Block) -> Block:
    blocks = scripted.ask(asked["input"], asked.get("instructions"), asked.get("tools"))
    output = [_item(block, f"msg_{len(scripted.requests)}") for block in blocks]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    about = {"id": "resp_1", "object": "response", "created_at": 1, "model": scripted.model, "status": "completed"}
    more = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return about | more | {"output": output, "usage": USAGE | {"total_tokens": 15} | details}


def _item(block: Block, id: str) -> Block:
    if block["type"] != "output_text":
        return block
    content = [block | {"annotations": []}]
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content}


_responses: Final = {"anthropic": _anthropic, "gemini": _gemini, "openai-responses": _openai}


def _renamed(value: Any, rename: Any) -> Any:
    """Rename the fields of Gemini's JSON, whose names differ between its HTTP API and its Python types."""
    if isinstance(value, list):
        return [_renamed(each, rename) for each in value]
    if isinstance(value, dict):
        return {rename(name): _renamed(each, rename) for name, each in value.items()}
    return value


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda letter: letter[1].upper(), name)
