"""`lango-store tail`: print the last messages of a session, and follow it."""

import json
import sys
from contextlib import suppress
from typing import Annotated, Final

from rich.text import Text

from lango_store._rooms.tail.values import Appended, Changed, Ended, Event, Piece, TurnBegan, TurnEnded
from lango_store.cli import streams
from lango_store.cli.options import JsonOption, Key, UrlOption, example, flag, open_store, option
from lango_store.cli.output import console, print_json, printable, say
from lango_store.cli.rendering import render_message
from lango_store.cli.root import app
from lango_store.errors import quoted

LAST: Final = 10
"""By default, the output begins this many seqs before the end."""


@app.command(epilog=example("tail telegram:42 -f --url sqlite:///agent.db"))
def tail(
    key: Key,
    follow: Annotated[bool, flag("--follow", "-f", "Wait for more, until Ctrl-C or the end of the session.")] = False,
    after: Annotated[
        str | None,
        option("SEQ", "Start after this seq, or after the event with this cursor. Default: 10 seqs before the end."),
    ] = None,
    url: UrlOption = None,
    json_: JsonOption = False,
) -> None:
    """Print the end of a session's log. With -f, also print what follows.

    Answers appear while a turn streams them. Messages that were
    edited before are printed with their new content. Each cut, edit,
    compaction or undo is a line with its own seq, its kind, and the seq
    that it refers to. Lines also show when turns begin and end, with the
    usage of saved turns.

    With --json, each event is one line, with its kind and its cursor.
    """
    with open_store(url) as store, suppress(KeyboardInterrupt), streams.ending_with_reader():
        if after is None:
            after = str(max(0, store.conversation(key).info().last_seq - LAST))
        in_draft = False
        for event in store.conversation(key).tail(after=after, follow=follow):
            if json_:
                print_json(event)
            else:
                if in_draft and not (isinstance(event, Piece) and event.n):
                    print()
                _show(key, event)
                in_draft = isinstance(event, Piece) and event.text != ""
            sys.stdout.flush()


def _show(key: str, event: Event) -> None:
    """Print an event for people: panels of messages, and the text of a draft as it arrives."""
    match event:
        case Appended():
            for message in event.messages:
                console().print(render_message(message))
        case Changed():
            _print_line(f"{event.seq} {event.kind} {event.after_seq}")
        case Piece():
            print(printable(event.text), end="")
        case TurnBegan():
            _print_line(f"turn {quoted(event.turn_id)} began")
        case TurnEnded():
            usage = "" if event.turn is None else f" {event.turn.turn_no}: {json.dumps(event.turn.usage)}"
            _print_line(f"turn {event.outcome}{usage}")
        case Ended():
            say(f"session {quoted(key)} {'has' if event.reason == 'expired' else 'was'} {event.reason}")


def _print_line(text: str) -> None:
    console().print(Text(printable(text), style="dim"))
