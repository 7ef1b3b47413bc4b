"""The standard streams of the command line, which a shell may close, fill or connect to a reader that ends early."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

OUTPUT_FAILED: Final = 3


class _Output(io.FileIO):
    """Standard output whose errors end the command with a message, unless its reader has ended.

    Without a reader, the command finishes its work, so that its exit code is true.
    """

    ends_with_reader: ClassVar = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._discard_the_rest()
            if self.ends_with_reader:
                sys.exit(0)
            return len(data)
        except OSError as error:
            self._discard_the_rest()
            print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
            sys.exit(OUTPUT_FAILED)

    def _discard_the_rest(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """End the command in this block as soon as its output has no reader, for commands that only print."""
    _Output.ends_with_reader = True
    try:
        yield
    finally:
        _Output.ends_with_reader = False


def prepare() -> None:
    """Replace closed streams by empty ones, and let errors of standard output end the command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 # open until the process ends
    before = sys.__stdout__
    if before is not None and sys.stdout is before:  # not an object of a program that calls `main`
        output = io.BufferedWriter(_Output(before.fileno(), "w", closefd=False))
        lines = before.line_buffering or before.write_through
        sys.stdout = io.TextIOWrapper(output, before.encoding, line_buffering=lines)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Raise SystemExit at SIGTERM and SIGHUP in the block, so that unfinished files are deleted."""

    def end(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        sys.exit(128 + number)

    signals = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP
    handled = [each for each in signals if signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
