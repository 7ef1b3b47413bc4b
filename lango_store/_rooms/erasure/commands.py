"""`lango-store erase`: erase a person."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from lango_store._rooms.erasure.values import ErasureReceipt
from lango_store.cli.options import (
    Archives,
    AuthorsOption,
    JsonOption,
    Scopes,
    UrlOption,
    YesOption,
    confirm,
    example,
    flag,
    open_store,
    option,
)
from lango_store.cli.output import one_line, print_json, quantity, rows_by_table, say
from lango_store.cli.root import app
from lango_store.errors import InvalidFile

UserOption = Annotated[str | None, option("ID", "The user.", "--user")]
Keys = Annotated[list[str] | None, option("KEY", "Further session of the user, such as one without a user.", "--key")]


def read_receipt(path: Path) -> ErasureReceipt:
    """Read a receipt from a file."""
    try:
        return ErasureReceipt.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InvalidFile(path, "is not a receipt: give the file with the output of erase --json") from error


@app.command(epilog=example("erase --user ann --dry-run --url sqlite:///agent.db"))
def erase(
    url: UrlOption = None,
    user: UserOption = None,
    archive: Archives = None,
    scope: Scopes = None,
    key: Keys = None,
    authors: AuthorsOption = False,
    receipt: Annotated[
        Path | None, option("FILE", "Erase the sessions in this receipt again, in a restored backup.", "--receipt")
    ] = None,
    digests: Annotated[
        bool, flag("--digests", "Add digests of the erased sessions to the receipt, for --receipt.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Count the rows that would be erased. Erase nothing.")] = False,
    yes: YesOption = False,
    json_: JsonOption = False,
) -> None:
    """Erase a person, and print a receipt.

    Deletes all sessions of a user, live and expired, with their
    descendants and everything that belongs to them. With --authors, also
    redacts the user's messages in the sessions of others. An interrupted
    command can be repeated. Redirect the output of --json to a file to
    keep the receipt, which contains no personal data.

    Exit code 1 if some sessions are held or were created in the meantime. The
    command names held sessions on standard error.
    """
    old = None if receipt is None else read_receipt(receipt)
    if not (user or scope or key or old):
        raise typer.BadParameter("give --user, --scope, --key or --receipt")
    with open_store(url, "counting in" if dry_run else "erasing from") as store:
        if not dry_run:
            confirm("erasing a person", yes=yes)
        done = store.erase(
            user,
            archives=archive or (),
            scopes=scope or (),
            authors=authors,
            keys=key or (),
            receipt=old,
            digests=digests,
            dry_run=dry_run,
        )
    if json_:
        print_json(done)
    else:
        _print(done)
    for held, reason in done.held.items():
        say(f"{held} is not erased: {reason}")
    if not done.complete:
        raise typer.Exit(1)


def _print(receipt: ErasureReceipt) -> None:
    would = "would be " if receipt.dry_run else ""
    for action, databases in (("erased", receipt.erased), ("redacted", receipt.redacted)):
        for database, counts in databases.items():
            print(f"{would}{action} in {database}: {rows_by_table(counts)}")
    for reason, count in receipt.reasons.items():
        print(f"not erased: {quantity(count, 'session')}, {one_line(reason)}")
    if receipt.remaining:
        print(f"not erased: {quantity(receipt.remaining, 'session')} created meanwhile: run the command again")
    for each in receipt.remains:
        print(f"remains: {each}")
