"""The chat page: an HTML document with its script and its style, which load nothing from other servers."""

from html import escape
from importlib.resources import files
from typing import Final

from lango_store.errors import needs_extra
from lango_store.web.requests import headers_of_page

with needs_extra("web"):
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

_STATIC: Final = files("lango_store.web") / "static"
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_HEADERS: Final = headers_of_page(_POLICY) | {"Cache-Control": "no-cache"}


def chat_page(*scripts: str) -> list[Route]:
    """Return the routes of a page for `chat`: `/`, `/chat.js` and `/chat.css`.

    The page itself has no access: it sends the requests of the browser to `api/chat`, with the cookies of the user.

    Args:
        *scripts: The addresses of other scripts of the same origin that the page loads. A script defines the tools that
            the page runs, as `langoTools.name = (input) => output`; the function may return a promise.

    Returns:
        Routes for an application of Starlette, before a `Mount` of the chat at the same path.
    """
    tags = "".join(f'<script src="{escape(each)}" defer></script>\n' for each in scripts)
    return [route("chat.html", "/", before_end_of_head=tags), route("chat.js"), route("chat.css")]


def route(name: str, path: str | None = None, *, before_end_of_head: str = "") -> Route:
    """Return the route of a file of the page."""
    content = (_STATIC / name).read_text(encoding="utf-8").replace("</head>", f"{before_end_of_head}</head>")

    async def get(_: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=_TYPES[name.partition(".")[2]])

    return Route(path or f"/{name}", get, methods=["GET"])
