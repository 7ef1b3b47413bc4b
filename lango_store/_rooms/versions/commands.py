"""`lango-store sessions changes` and `undo`: list the changes of a session, and take them back."""

from typing import Annotated, Final

import typer

from lango_store._rooms.versions.values import Change
from lango_store.cli.options import JsonOption, Key, UrlOption, example, flag, open_store
from lango_store.cli.output import Columns, print_items, print_json, quantity, say
from lango_store.cli.sessions import app as sessions

COLUMNS: Final[Columns[Change]] = {
    "seq": lambda change: change.seq,
    "change": lambda change: change.kind,
    "of seq": lambda change: change.after_seq,
    "time (UTC)": lambda change: change.changed_at,
    "undo until": lambda change: change.undo_until,
}


@sessions.command(epilog=example("sessions changes telegram:42 --url sqlite:///agent.db"))
def changes(key: Key, url: UrlOption = None, json_: JsonOption = False) -> None:
    """List the cuts, edits, compactions and undos of a session, oldest first.

    In a pipe, each change is one line of tab-separated fields without a
    header: the seq of the change, its kind, the seq that it refers to,
    its time, and the time until which the removed messages are kept.
    """
    with open_store(url) as store:
        print_items(COLUMNS, [store.conversation(key).versions.changes()], as_json=json_, none="no changes")


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
