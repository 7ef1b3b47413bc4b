"""`lango-store archive`: what `expire --archive` stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lango_store.archive import Archive
from lango_store.cli.listing import Column, Listing
from lango_store.cli.terminal import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    YesOption,
    agreed,
    announce,
    duration,
    opened,
)

app = typer.Typer(help="Search, restore and forget what expire --archive stored.", no_args_is_help=True)

FOUND: Final = Listing[dict[str, Any]](
    [
        Column("key", lambda each: each["key"]),
        Column("seq", lambda each: str(each["seq"]), right=True),
        Column("role", lambda each: each["role"]),
        Column("time", lambda each: each["created_at"], lambda each: each["created_at"][:16]),
        Column("text", lambda each: each["text"], least=20),
    ],
    importance=("seq", "text", "role", "time"),
)
"""How found messages are listed."""

File = Annotated[Path, typer.Argument(help="The archive's file.")]


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="Words that a message holds, all of them.")],
    file: File,
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 20,
    json_: JsonOption = False,
) -> None:
    """Find archived messages, the best first; exit code 1 if there is none."""
    if not text.split():
        raise typer.BadParameter("give a word or more", param_hint="TEXT")
    with Archive(file) as archive:
        found = archive.search(text, limit=limit)
    if json_:
        for each in found:
            print(json.dumps(each))
    else:
        FOUND.print([found])
    if not found:
        raise typer.Exit(1)


@app.command()
def restore(
    key: Annotated[str, typer.Argument(help="The session's key.")],
    file: File,
    url: UrlOption = None,
    ttl: Annotated[str | None, typer.Option(help="A TTL such as 30d; else it never expires.")] = None,
) -> None:
    """Bring an archived session back into the store."""
    with opened(url) as store:
        announce(store, "restoring on")
        session = store.restore(file, key, ttl=None if ttl is None else duration(ttl, "--ttl"))
    print(f"restored {session.message_count} messages")


@app.command()
def forget(
    file: File,
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    yes: YesOption = False,
) -> None:
    """Delete archived sessions of a user, an agent or a key prefix, so that the file keeps no trace."""
    if not (user or agent or prefix):
        raise typer.BadParameter("give --user, --agent or --prefix")
    with Archive(file) as archive:
        sessions, messages = archive.count(user_id=user, agent_id=agent, key_prefix=prefix)
        agreed(f"forgetting {sessions:,} sessions, {messages:,} messages in {file}", yes=yes)
        gone = archive.forget(user_id=user, agent_id=agent, key_prefix=prefix)
    print(f"forgot {gone} sessions")
