"""`lango-store sessions changes`, `undo` and `redact`: list changes, take them back, and redact texts."""

import re
from typing import Annotated, Any, Final

import typer

from lango_store._rooms.versions.values import Change
from lango_store.cli.options import (
    CsvOption,
    JsonOption,
    Key,
    UrlOption,
    YesOption,
    confirm,
    example,
    flag,
    open_store,
    option,
)
from lango_store.cli.output import Columns, print_items, print_json, quantity, say
from lango_store.cli.sessions import app as sessions
from lango_store.errors import quoted

COLUMNS: Final[Columns[Change]] = {
    "seq": lambda change: change.seq,
    "change": lambda change: change.kind,
    "of seq": lambda change: change.after_seq,
    "time (UTC)": lambda change: change.changed_at,
    "undo until": lambda change: change.undo_until,
}


@sessions.command(epilog=example("sessions changes telegram:42 --url sqlite:///agent.db"))
def changes(key: Key, url: UrlOption = None, csv_: CsvOption = False, json_: JsonOption = False) -> None:
    """List the cuts, edits, compactions and undos of a session, oldest first.

    In a pipe, each change is one line of tab-separated fields without a
    header: the seq of the change, its kind, the seq that it refers to,
    its time, and the time until which the removed messages are kept.
    """
    with open_store(url) as store:
        print_items(
            COLUMNS, [store.conversation(key).versions.changes()], as_json=json_, as_csv=csv_, none="no changes"
        )


@sessions.command(epilog=example("sessions undo telegram:42 --url sqlite:///agent.db"))
def undo(
    key: Key,
    url: UrlOption = None,
    redo: Annotated[bool, flag("--redo", "Take back the last undo instead.")] = False,
    json_: JsonOption = False,
) -> None:
    """Take back the last cut, edit or compaction of a session.

    Redactions, drop_sent, and changes that were taken back already are
    skipped. The application must have kept the removed messages, with
    `Store(keep_removed=...)`. Exit code 1 if nothing can be taken back.
    """
    with open_store(url) as store:
        conversation = store.conversation(key)
        undone = conversation.versions.redo() if redo else conversation.versions.undo()
    if undone is None:
        say("nothing to take back")
        raise typer.Exit(1)
    if json_:
        print_json(undone)
    else:
        restored, removed = quantity(undone.restored, "message"), quantity(undone.removed, "message")
        print(f"took back {undone.change.kind} (change {undone.change.seq}): restored {restored}, removed {removed}")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{quoted(text)} is not a regular expression: {error}") from None
    if pattern.search(""):
        raise typer.BadParameter(f"{quoted(text)} matches an empty text, and so every text")
    return pattern


@sessions.command(epilog=example("sessions redact tg:42 --pattern 'sk-\\w+' --url sqlite:///a.db"))
def redact(
    key: Key,
    pattern: Annotated[Any, option("REGEX", "Regular expression of Python.", parser=_pattern)],
    url: UrlOption = None,
    replacement: Annotated[str, option("TEXT", "Text to write in place of each match.", "--with")] = "(redacted)",
    archive: Annotated[str | None, option("FILE|URL", "Redact the messages in this archive too.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "List the messages that match. Change nothing.")] = False,
    yes: YesOption = False,
) -> None:
    """Replace the texts that match a pattern, in all messages and records of a session.

    Searches contents, tool calls, results and extra fields. Earlier
    versions of a changed message, which are kept for an undo, are redacted
    as a whole. Titles, values, drafts, the inbox, removed messages,
    alternatives, forks and backups are not searched. An interrupted
    command can be repeated. Exit code 1 if nothing matches.
    """

    def replaced(text: str) -> str:
        return str(pattern.sub(lambda match: replacement if match[0] else "", text))

    with open_store(url) as store:
        conversation = store.conversation(key)
        seqs = conversation.edits._find(archive, replaced)
        if not seqs:
            say("nothing matches")
            raise typer.Exit(1)
        listed = f"{quantity(len(seqs), 'message')} (seq {', '.join(map(str, seqs))})"
        if dry_run:
            print(f"would redact {listed}")
            return
        confirm(f"redacting {listed}", yes=yes)
        for seq in seqs:
            conversation.edits.redact(seq, replace=replaced, archive=archive)
    print(f"redacted {listed}")
