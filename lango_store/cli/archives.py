"""`lango-store archive`: search, restore and delete the sessions that `expire --archive` stored."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lango_store.archive import Archive
from lango_store.cli.options import Agent, JsonOption, Prefix, UrlOption, User, YesOption, confirm, duration, open_store
from lango_store.cli.output import Columns, print_table

app = typer.Typer(help="Search, restore and forget what expire --archive stored.", no_args_is_help=True)

COLUMNS: Final[Columns[dict[str, Any]]] = {
    "key": lambda found: found["key"],
    "seq": lambda found: found["seq"],
    "role": lambda found: found["role"],
    "time": lambda found: datetime.fromisoformat(found["created_at"]),
    "text": lambda found: found["text"],
}

File = Annotated[Path, typer.Argument(help="The archive's file.")]
Key = Annotated[str, typer.Argument(help="The session's key.")]


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
        print_table(COLUMNS, [found])
    if not found:
        raise typer.Exit(1)


@app.command()
def restore(
    key: Key,
    file: File,
    url: UrlOption = None,
    ttl: Annotated[Any, typer.Option(parser=duration, help="A TTL such as 30d; else it never expires.")] = None,
) -> None:
    """Bring an archived session back into the store."""
    with open_store(url, "restoring on") as store:
        session = store.restore(file, key, ttl=ttl)
    print(f"restored {session.message_count} messages")


@app.command()
def forget(file: File, user: User = None, agent: Agent = None, prefix: Prefix = None, yes: YesOption = False) -> None:
    """Delete archived sessions of a user, an agent or a key prefix, so that the file keeps no trace."""
    filters = {"user_id": user, "agent_id": agent, "key_prefix": prefix}
    if not any(filters.values()):
        raise typer.BadParameter("give --user, --agent or --prefix")
    with Archive(file) as archive:
        sessions, messages = archive.count(**filters)
        confirm(f"forgetting {sessions:,} sessions, {messages:,} messages in {file}", yes=yes)
        print(f"forgot {archive.forget(**filters)} sessions")
