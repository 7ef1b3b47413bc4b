"""What the commands share: where a URL comes from, and how an error looks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from lango_store.schema import URL_VARIABLES, url_from_environment

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help=f"The database; else ${URL_VARIABLES[0]}, else ${URL_VARIABLES[1]}.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def database(url: str | None) -> str:
    """Give the URL a command works on; wrong usage if there is none."""
    found = url or url_from_environment()
    if not found:
        raise typer.BadParameter(
            f"which database? Give --url sqlite:///agent.db, or set {URL_VARIABLES[0]}", param_hint="--url"
        )
    return found


def say_error(error: Exception) -> None:
    """Print an error as one line on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {error}", markup=False)
