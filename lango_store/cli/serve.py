"""`lango-store serve`: show a store in a web browser, read-only, or serve OpenAI's Conversations API."""

import errno
import socket
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lango_store._engine.engine import read_only_engine
from lango_store._engine.url import url_from_environment
from lango_store.aio import AsyncStore
from lango_store.cli.options import UrlOption, database, flag, option
from lango_store.errors import needs_extra, quoted
from lango_store.store import Store

_FILE: Final = "sqlite:///conversations.db"


def serve(
    url: UrlOption = None,
    host: Annotated[
        str, option("ADDRESS", "Address to listen on. The default accepts only this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, option("NUMBER", "Port to listen on. 0 selects a free port.", min=0, max=65_535)] = 8321,
    api: Annotated[
        bool, flag("--api", "Serve OpenAI's Conversations API instead of pages. It reads and writes.")
    ] = False,
    user: Annotated[
        str | None, option("ID", "With --api: serve the sessions of this user. A token is printed.", "--user")
    ] = None,
    tokens: Annotated[
        Path | None,
        option("FILE", "With --api: serve several users. Each line has a token, a space and a user id.", "--tokens"),
    ] = None,
) -> None:
    """Serve read-only web pages of the sessions, at an address with a secret token.

    A page of totals shows tokens, cost and sessions per day, the tools that fail, the largest sessions, and the turns
    that are owed. The links of `lango-store shares add` work too, without this token.

    With `--api`, serve OpenAI's Conversations API under `/v1`, and print the environment variables for its clients.
    Without a database URL, the sessions are stored in the file `conversations.db`.

    Requires the extra `web` of the package.
    """
    with needs_extra("web"):
        import uvicorn  # noqa: F401

    if api:
        _serve_api(url, host, port, user, tokens)
    elif user is not None or tokens is not None:
        raise typer.BadParameter("it needs --api", param_hint="--user" if user is not None else "--tokens")
    else:
        _serve_pages(url, host, port)


def _serve_pages(url: str | None, host: str, port: int) -> None:
    from starlette.applications import Starlette
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Mount

    from lango_store import web

    url = database(url)
    engine = read_only_engine(url)
    try:
        with Store(engine) as store, Store(url) as searching, listen(host, port) as listening:
            secret = web.new_token()
            store.ping()
            pages = web.application(store, secret, hosts=("*",), searching=searching)
            print(f"{_address(host, listening)}/{secret}/", flush=True)
            routes = [Mount("/s", web.shares(AsyncStore(store))), Mount("/", pages)]
            run(TrustedHostMiddleware(Starlette(routes=routes), [*_hosts(host)], www_redirect=False), listening)
    finally:
        engine.dispose()


def _serve_api(url: str | None, host: str, port: int, user: str | None, tokens: Path | None) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from lango_store import web

    if bool(user) is (tokens is not None):
        raise typer.BadParameter("give --user for one user, or --tokens for several", param_hint="--user")
    token = web.new_token()
    users = {token: user} if user else _read_tokens(tokens)
    is_default = not (url or url_from_environment())
    url = _FILE if is_default else database(url)
    with Store(url, migrate=is_default) as store, listen(host, port) as listening:
        store.ping()
        print(f"OPENAI_BASE_URL={_address(host, listening)}/v1", flush=True)
        if user:
            print(f"OPENAI_API_KEY={token}", flush=True)
        app = web.conversations(AsyncStore(store), user=web.bearer_tokens(users))
        whole = Starlette(routes=[Mount("/v1", app)], exception_handlers=app.exception_handlers)
        whole.router.redirect_slashes = False
        run(whole, listening)  # under any host name: a page that rebinds a name has no token


def _read_tokens(file: Any) -> dict[str, str]:
    try:
        lines = [line for line in file.read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"the file cannot be read: {error}", param_hint="--tokens") from None
    if not lines:
        raise typer.BadParameter(f"{quoted(file.name)} has no tokens", param_hint="--tokens")
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        token, _, user = line.strip().partition(" ")
        if len(token) < 16 or not token.isascii() or not user.strip() or token in users:
            what = "a new token of at least 16 ASCII characters and a user id"
            reason = f"line {number} of {quoted(file.name)} is not {what}"
            raise typer.BadParameter(reason, param_hint="--tokens")
        users[token] = user.strip()
    return users


def _hosts(host: str) -> tuple[str, ...]:
    from lango_store import web

    return web.LOOPBACK if host in ("127.0.0.1", "::1", "localhost") else ("*",)


def _address(host: str, listening: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def run(app: Any, listening: socket.socket) -> None:
    """Serve an application until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; 0 is a free port."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            reason = f"port {port} is in use or not allowed: choose another port, or 0 for a free one"
            raise typer.BadParameter(reason, param_hint="--port") from None
        raise typer.BadParameter(f"{host!r} is not an address of this machine", param_hint="--host") from None
