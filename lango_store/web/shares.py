"""A web application that shows shared conversations to those who have their links."""

import logging
from typing import Any, Final

from lango_store._rooms.documents.page import PAGE_END, POLICY, start_page
from lango_store.aio import AsyncStore
from lango_store.errors import LangoStoreError, ShareNotFound, needs_extra
from lango_store.web.requests import headers_of_page, status_and_text

with needs_extra("web"):
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

logger = logging.getLogger("lango_store.web")

_HEADERS: Final = headers_of_page(POLICY) | {"X-Robots-Tag": "noindex, nofollow, noarchive"}


def shares(store: AsyncStore) -> Starlette:
    """Create an ASGI application that shows the conversations of `Conversation.share`, each at the path `/TOKEN`.

    Mount it where the links point to, without authentication: `Mount("/s", web.shares(store))`. It writes nothing. A
    token that opens nothing is answered with 404 and always the same page, whatever the reason. A token has 256 random
    bits, so guesses need no limit. Each request builds the document again: limit the rate of requests in your proxy.

    Args:
        store: The store.

    Raises:
        TypeError: `store` is not an `AsyncStore`.
    """
    if not isinstance(store, AsyncStore):
        raise TypeError(f"store is {type(store).__name__}: give an AsyncStore")

    async def document(request: Request) -> Response:
        return HTMLResponse(await store.shares.document(request.path_params["token"]), headers=_HEADERS)

    missing: dict[Any, Any] = {404: _missing, 405: _missing, ShareNotFound: _missing, LangoStoreError: _failed}
    return Starlette(routes=[Route("/{token}", document, methods=["GET"])], exception_handlers=missing)


async def _missing(_: Request, __: Exception) -> Response:
    return _page("Not found", "This link does not exist, or it no longer works.", 404)


async def _failed(_: Request, error: Exception) -> Response:
    if status_and_text(error)[0] == 503:
        return _page("Not available", "Try again later.", 503)
    logger.error("a shared conversation cannot be shown", exc_info=error)
    return _page("Error", "This conversation cannot be shown.", 500)


def _page(title: str, text: str, status: int) -> Response:
    return HTMLResponse(f"{start_page(title)}<h1>{title}</h1><p>{text}</p>{PAGE_END}", status, _HEADERS)
