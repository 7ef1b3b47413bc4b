"""A Messages API for the programs on the page of the Claude Agent SDK."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CALLS = {  # a word of the question: the tool, its arguments, the answer
    "Oslo": ("get_weather", {"city": "Oslo"}, "It is -3 °C."),
    "bill": ("pay", {"euros": 40}, "Done."),
}


def blocks_of(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks: list[dict[str, Any]] = content
    return blocks


class Model(BaseHTTPRequestHandler):
    """Call a tool for the words above, otherwise repeat earlier questions."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        messages = [blocks_of(each["content"]) for each in request["messages"]]
        blocks = [block for message in messages for block in message]
        texts = [block.get("text", "").strip() for block in blocks]
        questions = [text for text in texts if text.endswith("?")]
        result = any(block["type"] == "tool_result" for block in blocks)
        tool, arguments, text = next(
            (call for word, call in CALLS.items() if word in questions[-1]),
            (None, None, f"You asked: {' '.join(questions[:-1])}"),
        )
        if tool and not result:
            block = {
                "type": "tool_use",
                "id": "toolu_1",
                "name": f"mcp__desk__{tool}",
                "input": {},
            }
            delta = {
                "type": "input_json_delta",
                "partial_json": json.dumps(arguments),
            }
        else:
            block = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": text}
        begun = {"input_tokens": 10, "output_tokens": 1}
        usage = {"input_tokens": 10, "output_tokens": 5}
        message = {
            "id": f"msg_{len(messages)}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [],
            "usage": begun,
        }
        reason = "tool_use" if block["type"] == "tool_use" else "end_turn"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in (
            {"type": "message_start", "message": message},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": block,
            },
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason},
                "usage": usage,
            },
            {"type": "message_stop"},
        ):
            line = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            self.wfile.write(line.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
