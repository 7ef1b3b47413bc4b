"""A web application that shows the sessions of a store, under a secret path.

`lango-store serve` runs it.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode

from lango_store import Alternative, Filters, Message, SearchHit, SessionInfo
from lango_store._rooms.documents.document import render_header, render_log
from lango_store._rooms.documents.page import PAGE_END, POLICY, escape_line, render_time, start_page
from lango_store.errors import DamagedMessage, LangoStoreError, needs_extra
from lango_store.rows import TURN
from lango_store.rows.storage import Order, turns
from lango_store.store import Store
from lango_store.web import overview
from lango_store.web.requests import headers_of_page, status_and_text

with needs_extra("web"):
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Mount, Route

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")

_MESSAGES: Final = 100
_SESSIONS: Final = 50
_HITS: Final = 20
_PREVIEW: Final = 80
_COLUMNS: Final = ("session", "agent", "user", "messages", "turns", "updated")
_FILTERS: Final = ("agent_id", "user_id", "key_prefix", "title")

_POLICY: Final = POLICY.replace("form-action 'none'", "form-action 'self'")  # the list has filters
_HEADERS: Final = headers_of_page(_POLICY)


def new_token() -> str:
    """Return a random token for `application`, 32 characters that need no quoting in a URL."""
    return secrets.token_urlsafe(24)


def application(
    store: Store, token: str, *, hosts: tuple[str, ...] = LOOPBACK, searching: Store | None = None
) -> Starlette:
    """Create an ASGI application that shows the sessions of a store under the path `/TOKEN/`.

    The application changes no session, and needs no cookies or scripts. Anyone who knows the token can read all
    sessions.

    Args:
        store: The store to show, preferably on a `read_only_engine`.
        token: The secret in the path, at least 16 characters.
        hosts: The host names that the application answers to. This prevents DNS rebinding: a web page cannot reach the
            application under another name. `("*",)` allows any name. Default: `localhost`, `127.0.0.1`
            and `[::1]`.
        searching: The store to search. Default: `store`. Pass a writable store here if `store` is read-only, because a
            search first indexes what is not indexed yet.

    Raises:
        ValueError: The token has fewer than 16 characters.
    """
    if len(token) < 16:
        raise ValueError("the token has fewer than 16 characters: give a longer token")
    pages = _Pages(store, searching or store)
    guarded = Mount(
        "/{token}",
        routes=[
            Route("/", pages.sessions, methods=["GET"]),
            Route("/session", pages.session, methods=["GET"]),
            Route("/search", pages.search, methods=["GET"]),
            Route("/totals", pages.totals, methods=["GET"]),
        ],
    )
    handlers: dict[Any, Any] = {404: _missing, 405: _missing, LangoStoreError: _failed, ValueError: _failed}
    app = Starlette(routes=[guarded], exception_handlers=handlers)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    app.add_middleware(_TokenGuard, token=token)
    return app


class _TokenGuard:
    """Middleware that answers 404 unless the path begins with the token, and adds security headers to each response."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protect(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        first, _, _ = scope["path"].removeprefix("/").partition("/")  # the path of `OPTIONS *` is an asterisk
        token = first.encode("utf-8", "surrogateescape")
        if secrets.compare_digest(token, self._token):
            await self._app(scope, receive, protect)
        else:
            await _page("Not found", "<h1>Not found</h1><p>Use the whole address, including the token.</p>", 404)(
                scope, receive, protect
            )


class _Pages:
    """The handlers of the pages. They are synchronous, so Starlette runs each in a thread."""

    def __init__(self, store: Store, searching: Store) -> None:
        self._store = store
        self._searching = searching

    def search(self, request: Request) -> Response:
        """List the messages that match a search, best match first."""
        query = request.query_params
        words = query.get("words", "")
        links = [_link(".", {}, "all sessions")]
        hits = ""
        if words.strip():
            page = self._searching.search(words, limit=_HITS, cursor=query.get("cursor") or None)
            hits = "".join(map(_hit, page.items)) or "<p>No message has these words.</p>"
            if page.newest is not None:
                hits += f"<p>Too many messages match: only the newest {page.newest:,} were searched.</p>"
            if page.next:
                links.append(_link("search", {"words": words, "cursor": page.next}, "more"))
        return _page("Search", f"<h1>Search</h1>{_search_form(words)}{_nav(links)}{hits}")

    def sessions(self, request: Request) -> Response:
        """List sessions, newest first."""
        query = request.query_params
        order: Order = "created" if query.get("order") == "created" else "updated"
        which: Filters = {name: query[name] for name in _FILTERS if query.get(name)}  # type: ignore[assignment]
        page = self._store.list_sessions(order=order, limit=_SESSIONS, cursor=query.get("cursor") or None, **which)
        links = []
        if query.get("cursor"):
            links.append(_link(".", {**which, "order": order}, "newest"))
        if page.next:
            links.append(_link(".", {**which, "order": order, "cursor": page.next}, "older"))
        rows = "".join(map(_row, page.items)) or '<tr><td colspan="6">No session.</td></tr>'
        columns = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
        table = f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"
        totals = _nav([_link("totals", {}, "totals")], "more")
        return _page(
            "Sessions", f"<h1>Sessions</h1>{totals}{_search_form('')}{_form(query, order)}{table}{_nav(links)}"
        )

    def totals(self, request: Request) -> Response:
        """Show tokens, cost and sessions per day, tools that fail, the largest sessions, and owed turns."""
        links = _nav([_link(".", {}, "all sessions")])
        now = self._store._context.clock_time()
        body = overview.render(self._store, now, lambda key, text: _link("session", {"key": key}, text))
        return _page("Totals", f"{links}{body}")

    def session(self, request: Request) -> Response:
        """Show a part of the log of a session, by default the end."""
        query = request.query_params
        key = query.get("key", "")
        after, before = _seq(query, "after"), _seq(query, "before")
        if (alternative := _seq(query, "alternative")) is not None:
            return self._alternative(key, alternative)
        info = self._store.conversation(key).info()
        messages = (
            self._log(key, after=after, limit=_MESSAGES)
            if after is not None
            else self._log(key, last=_MESSAGES, before=before)
        )
        links = [_link(".", {}, "all sessions")]
        if messages and self._log(key, last=1, before=messages[0].seq):
            links.append(_link("session", {"key": key, "after": 0}, "first"))
            links.append(_link("session", {"key": key, "before": messages[0].seq}, "earlier"))
        if messages and self._log(key, after=messages[-1].seq, limit=1):
            links.append(_link("session", {"key": key, "after": messages[-1].seq}, "later"))
            links.append(_link("session", {"key": key}, "last"))
        suspensions = self._store.conversation(key).suspensions.list()
        others = self._store.conversation(key).alternatives()
        log = render_log(info, messages, self._turns(key, messages), suspensions, alternatives=others)
        shown = "".join(log) or "<p>No message.</p>"
        usage = {}
        if after is None and before is None:  # on the first page only, because it reads all turns
            with suppress(DamagedMessage):
                usage = self._store.conversation(key).total_usage()
        header = render_header(info, usage)
        return _page(
            info.title or key, f"{_nav(links)}{header}{_alternatives(key, others)}{shown}{_nav(links, 'pages, again')}"
        )

    def _alternative(self, key: str, id: int) -> Response:
        """Show a session as it would be after a switch to an alternative."""
        session = self._store.conversation(key).get(alternative=id)
        links = _nav([_link(".", {}, "all sessions"), _link("session", {"key": key}, "what the session shows")])
        shown = "".join(render_log(session, session.messages))
        return _page(session.title or key, f"{links}<h1>Alternative {id} of {escape_line(key)}</h1>{shown}")

    def _log(self, key: str, **part: Any) -> list[Message | DamagedMessage]:
        return self._store.conversation(key).all_messages(**part, damaged="return")

    def _turns(self, key: str, messages: list[Message | DamagedMessage]) -> Iterator[Any]:
        numbers = [each.turn_no for each in messages if isinstance(each, Message) and each.turn_no is not None]
        if not numbers:
            return iter(())
        with self._store._context.snapshot(key) as connection:
            return iter(turns.read(connection, key, TURN.c.turn_no.between(min(numbers), max(numbers))))


def _failed(request: Request, error: Exception) -> Response:
    status, _ = status_and_text(error)
    home = _link(".", {}, "all sessions")
    return _page("Error", f"<h1>Error</h1><p>{escape_line(str(error))}</p>{_nav([home])}", status)


async def _missing(request: Request, _: Exception) -> Response:
    return _page("Not found", "<h1>Not found</h1>", 404)


def _page(title: str, body: str, status: int = 200) -> Response:
    return HTMLResponse(f"{start_page(title, _POLICY)}{body}{PAGE_END}", status_code=status)


def _row(info: SessionInfo) -> str:
    name = _link("session", {"key": info.key}, info.title or info.key)
    under = f"<br><small>{escape_line(info.key)}</small>" if info.title else ""
    cells = (
        escape_line(info.agent_id),
        escape_line(info.user_id),
        f"{info.message_count:,}",
        f"{info.turn_count:,}",
        render_time(info.updated_at),
    )
    named = zip(_COLUMNS[1:], cells, strict=True)
    rest = "".join(f'<td data-name="{column}">{cell}</td>' for column, cell in named)
    return f'<tr><td dir="auto">{name}{under}</td>{rest}</tr>'


def _hit(hit: SearchHit) -> str:
    at, parts = 0, []
    for start, end in hit.places:
        parts += [escape_line(hit.snippet[at:start]), f"<mark>{escape_line(hit.snippet[start:end])}</mark>"]
        at = end
    to = _link("session", {"key": hit.key, "after": max(hit.seq - 2, 0)}, f"{hit.title or hit.key}, {hit.seq}")
    named = {"key": hit.key if hit.title else None, "agent": hit.agent_id, "user": hit.user_id, "by": hit.author}
    written = [f"{name} {escape_line(value)}" for name, value in named.items() if value]
    facts = " · ".join([hit.role, *written, render_time(hit.created_at)])
    return (
        f'<article class="hit"><header><h2 dir="auto">{to}</h2><p class="facts">{facts}</p></header>'
        f'<div class="text" dir="auto">{"".join(parts)}{escape_line(hit.snippet[at:])}</div></article>'
    )


def _alternatives(key: str, found: Sequence[Alternative]) -> str:
    """Return links to what was kept in the place of what the session shows, by the message after which it differs."""
    points: dict[int, list[str]] = {}
    for each in found:
        name = f"{each.first.role} {each.first.text or ''}"[:_PREVIEW]
        to = escape_line(name) if each.is_shown else _link("session", {"key": key, "alternative": each.id}, name)
        points.setdefault(each.after_seq, []).append(f"<li{' aria-current=true' * each.is_shown}>{to}</li>")
    items = "".join(f"<li>after message {after}<ol>{''.join(each)}</ol></li>" for after, each in points.items())
    return f"<details><summary>{len(found)} alternatives</summary><ul>{items}</ul></details>" if items else ""


def _search_form(words: str) -> str:
    field = f'<label>words<input name="words" type="search" value="{escape_line(words)}"></label>'
    return f'<form method="get" action="search" role="search">{field}<button>Search</button></form>'


def _form(query: Mapping[str, str], order: str) -> str:
    labels = {"agent_id": "agent", "user_id": "user", "key_prefix": "key starts with", "title": "title contains"}
    fields = "".join(
        f'<label>{label}<input name="{name}" value="{escape_line(query.get(name))}"></label>'
        for name, label in labels.items()
    )
    options = "".join(
        f"<option{' selected' if each == order else ''}>{each}</option>" for each in ("updated", "created")
    )
    choice = f'<label>last<select name="order">{options}</select></label>'
    return f'<form method="get" action=".">{fields}{choice}<button>Show</button></form>'


def _link(to: str, parameters: Mapping[str, Any], text: str) -> str:
    query = urlencode(parameters)
    return f'<a href="{escape_line(f"{to}?{query}" if query else to)}">{escape_line(text)}</a>'


def _nav(links: list[str], label: str = "pages") -> str:
    return f'<nav aria-label="{label}">{"".join(links)}</nav>' if links else ""


def _seq(query: Mapping[str, str], name: str) -> int | None:
    if not query.get(name):
        return None
    with suppress(ValueError):
        return int(query[name])
    raise ValueError(f"{name} is not a number: follow a link of the page")
