"""Commands for a shell: each runs in a process forked from one where the package is loaded, see `processes`."""

import json
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from support.places import fast_folder
from support.processes import start

# The program that the shell starts. It passes on its streams, arguments, folder and environment, and returns the
# exit code of the command.
_CLIENT: Final = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as ours:
    ours.connect({address!r})
    socket.send_fds(ours, [b"-"], [0, 1, 2])
    ours.sendall(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
    ours.shutdown(socket.SHUT_WR)
    sys.exit(int(ours.recv(16)))
"""


@contextmanager
def shell_commands(sources: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder for the PATH of a shell, with commands of these names and sources."""
    folder = Path(tempfile.mkdtemp(prefix="lgsh-", dir=fast_folder()))
    address = str(folder / ".socket")
    for name in sources:
        (folder / name).write_text(_CLIENT.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        accepting = threading.Thread(target=_serve, args=(listener, sources))
        accepting.start()
        try:
            yield folder
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            shutil.rmtree(folder)


def _serve(listener: socket.socket, sources: Mapping[str, str]) -> None:
    running = []
    while True:
        try:
            theirs, _ = listener.accept()
        except OSError:  # the tests are done
            break
        running.append(threading.Thread(target=_run, args=(theirs, sources)))
        running[-1].start()
    for each in running:
        each.join()


def _run(theirs: socket.socket, sources: Mapping[str, str]) -> None:
    with theirs:
        _, streams, _, _ = socket.recv_fds(theirs, 1, 3)
        ends: list[Connection[Any, Any]] = [Connection(stream) for stream in streams]
        with theirs.makefile("rb") as said:
            name, words, folder, environment = json.load(said)
        process = start(sources[name], *words, ends=ends, folder=folder, environment=environment)
        process.join(100)
        theirs.sendall(str(process.exitcode).encode())
