"""PgBouncer in transaction mode between the tests and their server, if PgBouncer is installed."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import sqlalchemy as sa

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

_CONFIGURATION: Final = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
unix_socket_dir = {folder}
unix_socket_mode = 0777
listen_port = 6432
auth_type = any
pool_mode = transaction
default_pool_size = 4
logfile = {folder}/log
pidfile = {folder}/pid
"""


class PgBouncer:
    """PgBouncer on a separate socket, in transaction mode."""

    def __init__(self, server: sa.URL) -> None:
        assert PROGRAM is not None
        self.folder = Path(tempfile.mkdtemp(prefix="lgpb-", dir="/tmp"))
        host = str(server.query.get("host", server.host or "127.0.0.1"))
        (self.folder / "ini").write_text(
            _CONFIGURATION.format(
                host=host, port=server.port or 5432, user=server.username or "postgres", folder=self.folder
            )
        )
        user = []
        if os.geteuid() == 0:  # it refuses root
            who = pwd.getpwnam("nobody")
            os.chown(self.folder, who.pw_uid, who.pw_gid)
            user = ["--user=nobody"]
        self.folder.chmod(0o755)
        self._process = subprocess.Popen([PROGRAM, "--quiet", *user, self.folder / "ini"])
        deadline = time.monotonic() + 20
        while not (self.folder / ".s.PGSQL.6432").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.01)  # nothing announces that it listens

    def url(self, database: str) -> str:
        """Return the documented URL for a database through PgBouncer."""
        made = sa.make_url(database)
        through = made.difference_update_query(["host"]).set(host=None, port=6432)
        return through.update_query_dict({"host": str(self.folder), "prepare_threshold": "none"}).render_as_string(
            hide_password=False
        )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self.folder)
