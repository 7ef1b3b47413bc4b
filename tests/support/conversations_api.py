"""A server of the Conversations API, with clients for it."""

import http.client
import json
from typing import Any

import openai
from starlette.requests import Request

from lango_store import Store

Answer = tuple[int, Any]


def named(request: Request) -> str | None:
    """Return the user whose id is the token of a request."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token or None if scheme == "Bearer" else None


class Server:
    """A server of the API, with a store of the same database."""

    def __init__(self, store: Store, port: int) -> None:
        self.store = store
        self.port = port
        self.client = openai.OpenAI(api_key="ann", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)

    def request(self, method: str, path: str, body: Any = None, *, user: str = "ann", **headers: str) -> Answer:
        """Send a request, and return its status and its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        sent = {"Authorization": f"Bearer {user}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, f"/v1{path}", data, sent)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def create(self, *items: dict[str, Any], user: str = "ann") -> str:
        """Create a conversation, and return its id."""
        status, body = self.request("POST", "/conversations", {"items": items}, user=user)
        assert status == 200, body
        id: str = body["id"]
        return id

    def items(self, id: str, query: str = "order=asc&limit=100") -> list[Any]:
        status, body = self.request("GET", f"/conversations/{id}/items?{query}")
        assert status == 200, body
        data: list[Any] = body["data"]
        return data


def said(text: str, **fields: Any) -> dict[str, Any]:
    """Return an item: a message of the user."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}
