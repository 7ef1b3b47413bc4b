"""`lango-store serve`: show a store in a web browser, read-only."""

import errno
import socket
from typing import Annotated

import typer

from lango_store._engine.engine import read_only_engine
from lango_store.cli.options import UrlOption, database, option
from lango_store.errors import needs_extra
from lango_store.store import Store


def serve(
    url: UrlOption = None,
    host: Annotated[
        str, option("ADDRESS", "Address to listen on. The default accepts only this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, option("NUMBER", "Port to listen on. 0 selects a free port.", min=0, max=65_535)] = 8321,
) -> None:
    """Serve read-only web pages of the sessions, at an address with a secret token.

    Requires the extra `web` of the package.
    """
    with needs_extra("web"):
        import uvicorn

    from lango_store import web

    url = database(url)
    engine = read_only_engine(url)
    try:
        with Store(engine) as store, Store(url) as searching, _listen(host, port) as listening:
            secret = web.new_token()
            store.ping()
            hosts = web.LOOPBACK if host in ("127.0.0.1", "::1", "localhost") else ("*",)
            app = web.application(store, secret, hosts=hosts, searching=searching)
            name = f"[{host}]" if ":" in host else host
            print(f"http://{name}:{listening.getsockname()[1]}/{secret}/", flush=True)
            uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])
    finally:
        engine.dispose()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            reason = f"port {port} is in use or not allowed: choose another port, or 0 for a free one"
            raise typer.BadParameter(reason, param_hint="--port") from None
        raise typer.BadParameter(f"{host!r} is not an address of this machine", param_hint="--host") from None
