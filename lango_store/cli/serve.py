"""`lango-store serve`: a store to look at in a browser."""

from __future__ import annotations

import socket
import sys
from typing import Annotated

import typer

from lango_store._engine.engine import read_only_engine
from lango_store.cli.terminal import UrlOption, console, database
from lango_store.store import Store


def serve(
    url: UrlOption = None,
    host: Annotated[str, typer.Option(help="Where to listen: this machine alone unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 is any that is free.", min=0, max=65_535)] = 8321,
    token: Annotated[
        str | None, typer.Option(help="The secret in the address; a new one if left out.", show_default=False)
    ] = None,
) -> None:
    """Serve lists and conversations to a browser, read only, at an address that holds a secret token.

    Needs the extra `web`.
    """
    try:
        import uvicorn

        from lango_store import web
    except ImportError as error:
        raise typer.BadParameter(f"{error.name} is not installed: pip install 'lango-store[web]'") from None

    found = database(url)
    engine = read_only_engine(found)
    try:
        with (
            Store(engine) as store,
            Store(found) as searching,
            socket.create_server((host, port), family=_family(host)) as listening,
        ):
            secret = token or web.new_token()
            store.ping()
            alone = host in ("127.0.0.1", "::1", "localhost")
            app = web.application(store, secret, hosts=web.LOOPBACK if alone else ("*",), searching=searching)
            shown = f"[{host}]" if ":" in host else host
            console().print(f"http://{shown}:{listening.getsockname()[1]}/{secret}/", soft_wrap=True)
            sys.stdout.flush()
            uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])
    finally:
        engine.dispose()


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
