"""`lango-store tail`: print the last messages of a session, and follow it."""

import sys
from contextlib import suppress
from typing import Annotated, Final

import typer
from rich.text import Text

from lango_store._values.events import Appended, Changed, Ended, Event, Piece
from lango_store._values.value import Json, Value
from lango_store.cli.options import JsonOption, UrlOption, open_store
from lango_store.cli.output import console, print_json, printable, say
from lango_store.cli.rendering import render_message
from lango_store.errors import quoted

LAST: Final = 10
"""The number of seqs before the end at which the output begins by default."""


class Line(Value):
    """An event as a line of JSON."""

    event: str
    cursor: str
    data: Json


def tail(
    key: Annotated[str, typer.Argument(help="Session key.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until the session ends or Ctrl-C is pressed.")
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(metavar="SEQ", help="Start after this seq, or after a cursor of --json. Default: near the end."),
    ] = None,
    url: UrlOption = None,
    json_: JsonOption = False,
) -> None:
    """Print the end of a session's log. With -f, print what is added too.

    Answers appear while a turn streams them. Messages are printed as
    they are stored now; edits and deletions are printed as lines with
    the seq that they refer to.

    With --json, each event is one line: its kind, its cursor and its data.
    """
    with open_store(url) as store, suppress(KeyboardInterrupt):
        if after is None:
            after = str(max(0, store.info(key).last_seq - LAST))
        show = _Screen(key).show
        for event in store.tail(key, after=after, follow=follow):
            if json_:
                print_json(Line(event=event.name, cursor=event.cursor, data=event.model_dump(exclude={"cursor"})))
            else:
                show(event)
            sys.stdout.flush()


class _Screen:
    """The output for people: panels with messages, and the text of a draft as it arrives."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._out = console()
        self._is_in_line = False

    def show(self, event: Event) -> None:
        """Print an event."""
        if self._is_in_line and not (isinstance(event, Piece) and event.n):
            print()
            self._is_in_line = False
        match event:
            case Appended():
                for message in event.messages:
                    self._out.print(render_message(message))
            case Changed():
                self._out.print(Text(printable(f"{event.seq} {event.kind} {event.after_seq}"), style="dim"))
            case Piece(text=text) if text:
                print(printable(text), end="")
                self._is_in_line = True
            case Ended():
                say(f"session {quoted(self._key)} {'has' if event.reason == 'expired' else 'was'} {event.reason}")
