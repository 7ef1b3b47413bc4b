"""`lango-store adopt`: move in from the database of an agent framework."""

from typing import Annotated

import sqlalchemy as sa
import typer

from lango_store import interchange, schema
from lango_store._engine.engine import database_file
from lango_store.cli.options import JsonOption, database, flag, open_store, option
from lango_store.cli.output import one_line, print_json, progress, quantity, say
from lango_store.errors import quoted
from lango_store.interchange import Adopted
from lango_store.interchange.adoption.adopting import SOURCES, check_source

_NAMES = ", ".join(SOURCES)


def adopt(
    source_url: Annotated[str, typer.Argument(metavar="URL", help="Database of the framework. It is only read.")],
    source: Annotated[
        str | None, option("FRAMEWORK", f"One of {_NAMES}. Default: detected by the tables.", "--from")
    ] = None,
    target_url: Annotated[
        str | None,
        option(
            "URL",
            "Database to write to; may be the same one. A SQLite file that does not exist is created. "
            "Default: as for --url of other commands.",
            "--to",
        ),
    ] = None,
    table: Annotated[
        str | None, option("TABLE", "Adopt only the sessions in this table. Default: all.", "--table")
    ] = None,
    prefix: Annotated[
        str | None, option("TEXT", "Prefix of the session keys; pass it to the framework's adapter too.", "--prefix")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Report what would be adopted. Write nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Adopt the sessions in the database of an agent framework.

    Existing sessions of the store are never changed, except those that were
    adopted from the same database before: new messages are added to them. If
    the command is killed, run it again. Exit code 1 if a session collides with an
    existing one or cannot be read completely; each is listed.
    """
    if source is not None and source not in SOURCES:
        raise typer.BadParameter(f"{quoted(source)} cannot be adopted: give one of {_NAMES}", param_hint="--from")
    database(source_url, option="URL")
    if target_url is not None and not dry_run:
        _create(database(target_url, new=True, option="--to"), source_url, source)
    with open_store(target_url, "comparing with" if dry_run else "adopting into", option="--to") as store:
        store.ping()
        with progress("adopting rows", quiet=json_) as update:

            def on_session(report: Adopted) -> None:
                if json_:
                    print_json(report)
                else:
                    _print_problems(report)

            reports = interchange.adopt(
                store,
                source_url,
                source,
                table=table,
                prefix=prefix or "",
                dry_run=dry_run,
                on_session=on_session,
                on_rows=lambda rows: update(advance=rows),
            )
    if not json_:
        print(_summarize(reports, dry_run=dry_run))
    if any(each.state in ("collided", "failed") or each.skipped for each in reports):
        raise typer.Exit(1)


def _create(url: str, source_url: str, source: str | None) -> None:
    """Create the schema in a SQLite file that does not exist, if there is a source to adopt."""
    file = database_file(sa.make_url(url))
    if file is not None and not file.exists():
        check_source(source_url, source)
        schema.upgrade(url)


def _print_problems(report: Adopted) -> None:
    if report.state in ("collided", "failed"):
        say(one_line(f"{report.state}: {report.key}"))
    for reason in [*report.skipped, *report.notes]:
        say(one_line(f"{report.key}: {reason}"))


def _summarize(reports: list[Adopted], *, dry_run: bool) -> str:
    def count(*states: str) -> int:
        return sum(each.state in states for each in reports)

    return (
        f"{'would adopt' if dry_run else 'adopted'} {quantity(count('imported'), 'session')}, "
        f"continued {count('continued'):,}, {quantity(sum(each.messages for each in reports), 'message')}; "
        f"{count('already there'):,} already there, {count('collided'):,} collided, {count('failed'):,} failed, "
        f"{sum(len(each.skipped) for each in reports if each.state not in ('collided', 'failed')):,} rows left out"
    )
