"""Check database URLs, so that no error, repr or log can show a password.

An engine shows its URL, and drivers quote the parts that they do not understand. So a URL that may have a password in
another part is refused, with an error that quotes nothing of the URL.
"""

import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import sqlalchemy as sa

URL_VARIABLES: Final = ("LANGO_STORE_URL", "DATABASE_URL")
"""The environment variables for a URL, in order of precedence."""

_DRIVERS: Final = {
    "sqlite": ("", "pysqlite", "pysqlite3", "aiosqlite"),
    "postgresql": ("", "psycopg", "psycopg_async", "psycopg2", "asyncpg"),
}
_SEVERAL_HOSTS: Final = re.compile(
    r"(postgres\w*(?:\+\w+)?://(?:[^@/?]*@)?)([^@/?,]+(?:,[^@/?,]+)+)(?:/([^?]*))?(?:\?(.*))?"
)
"""The form of libpq, `postgresql://user@host1:5432,host2:5432/database`."""
_SECRETS: Final = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
_ASYNCPG_CACHES: Final = ("prepared_statement_cache_size", "statement_cache_size")
_LONGEST_TIMEOUT: Final = 2**31 - 1
_UNITS: Final = {"": 1, "ms": 1, "s": 1000, "min": 60_000}
_SECRET_NAME: Final = re.compile(r"(?i)pass|pwd|secret")
_ASSIGNED_SECRET: Final = re.compile(r"(?i)(pass\w*|pwd|secret\w*|key)\s*=")

_NO_URL: Final = "not a database URL that is supported: give sqlite:///file, sqlite:// or postgresql://user:password@host:5432/database"
_ENCRYPTED: Final = (
    "a URL of SQLCipher is supported only as an engine: pass sqlalchemy.create_engine(url, poolclass=QueuePool) to the "
    "store, with a listener for `connect` that switches foreign keys on"
)
_UNQUOTED: Final = (
    "the URL has an unquoted @: in a user name, password or parameter write %40 (and %2F for /, %3F for ?)"
)
_ODD_PLACE: Final = "the URL has a password in an odd place: write postgresql://user:password@host/database"


def parse(database_url: str | sa.URL) -> tuple[sa.URL, dict[str, Any]]:
    """Return the URL for the driver of the store, and the parameters to pass separately, such as secret ones.

    Raises:
        ValueError: The database is not supported, or the URL may show a password. The text quotes nothing of the URL.
    """
    url = _parsed(database_url)
    backend, _, driver = url.drivername.partition("+")
    backend = "postgresql" if backend == "postgres" else backend
    if url.drivername == "sqlite+pysqlcipher":
        raise ValueError(_ENCRYPTED)
    if driver not in _DRIVERS.get(backend, ()) or (url.port is not None and not 0 < url.port < 2**16):
        raise ValueError(_NO_URL)
    _reject_misplaced(url)
    if backend == "sqlite":
        if url.database == "":
            raise ValueError("the URL names no file: write sqlite:///file, or sqlite:// for a database in memory")
        if isinstance(database_url, str):
            url = url.set(database=_file_name(database_url))
        if url.host or url.username or url.password or url.port or any(name in url.query for name in _SECRETS):
            raise ValueError(
                "a URL of SQLite has no host and no password: write sqlite:///file, or sqlite:////absolute/path"
            )
        return url.set(drivername="sqlite+pysqlite3" if driver == "pysqlite3" else "sqlite"), {}
    if driver == "asyncpg":
        url = _from_asyncpg(url)
    connect_args: dict[str, Any] = {name: url.query[name] for name in _SECRETS if name in url.query}
    for secret in (url.password or "", *connect_args.values()):
        if not isinstance(secret, str) or "\0" in secret or secret != secret.encode("utf-8", "replace").decode():
            raise ValueError("the URL has the password twice, or the password has a character that cannot be sent")
    if "prepare_threshold" in url.query:  # psycopg needs a number here: text would break every statement
        connect_args["prepare_threshold"] = _prepare_threshold(str(url.query["prepare_threshold"]))
    if "statement_timeout" in url.query:  # libpq has no such parameter
        connect_args["statement_timeout"] = milliseconds(url.query["statement_timeout"])
    url = url.difference_update_query(["statement_timeout", *connect_args])
    return url.set(drivername="postgresql+psycopg"), connect_args


def _file_name(database_url: str) -> str | None:
    """Return the file that a URL of SQLite names."""
    # SQLAlchemy 2.0 opens the name as it is written and 2.1 decodes it, so an update could create a second file.
    written = database_url.partition("?")[0].partition("://")[2].partition("/")[2]
    decoded = unquote(written)
    if written.startswith("file:") or (Path(written).exists() and not Path(decoded).exists()):
        return written
    return decoded or None


def _parsed(database_url: str | sa.URL) -> sa.URL:
    if isinstance(database_url, str) and database_url.startswith("postgres") and database_url.count("@") > 1:
        raise ValueError(_UNQUOTED)
    try:
        if isinstance(database_url, str) and (hosts := _SEVERAL_HOSTS.fullmatch(database_url)):
            start, names, database, query = hosts.groups()
            parameters = [f"host={name}" for name in names.split(",")] + ([query] if query else [])
            database_url = f"{start}/{database or ''}?{'&'.join(parameters)}"
        return sa.make_url(database_url)
    except (sa.exc.ArgumentError, ValueError):
        pass  # the error is raised below: with this one as its context, a traceback would show the URL
    raise ValueError(_NO_URL)


def _reject_misplaced(url: sa.URL) -> None:
    texts = [url.host or "", url.database or "", *url.query]
    for name, value in url.query.items():
        if name in _SECRETS:
            continue
        if _SECRET_NAME.search(name):
            raise ValueError(_ODD_PLACE)
        texts += [value] if isinstance(value, str) else value
    # If a password has an unquoted "?" and an @ follows, everything up to the @ would become the password.
    if "@" in "".join(texts) or "?" in (url.username or "") or re.search(r"[?&](ssl)?password=", url.password or ""):
        raise ValueError(_UNQUOTED)
    if any(_ASSIGNED_SECRET.search(text) for text in (url.username or "", *texts)):
        raise ValueError(_ODD_PLACE)


def _from_asyncpg(url: sa.URL) -> sa.URL:
    query = {"sslmode" if name == "ssl" else name: value for name, value in url.query.items()}
    for name in _ASYNCPG_CACHES:
        if query.pop(name, None) == "0":  # applications set 0 for connection poolers
            query["prepare_threshold"] = "none"
    return url.set(query=query)


def _prepare_threshold(text: str) -> int | None:
    if text.lower() in ("", "none", "null"):
        return None
    if text.isdecimal():
        return int(text)
    raise ValueError("prepare_threshold in the URL: give a number or none")


def milliseconds(statement_timeout: object) -> int:
    """Convert a time in PostgreSQL's notation to milliseconds: a number, optionally with ms, s or min."""
    match = re.fullmatch(r"(\d{1,9}) ?(ms|s|min)?", str(statement_timeout))
    if match is None or (length := int(match[1]) * _UNITS[match[2] or ""]) > _LONGEST_TIMEOUT:
        raise ValueError("statement_timeout is not a time: give milliseconds, or a number with s or min, such as 5s")
    return length


def url_from_environment() -> str | None:
    """Return the URL in the environment variable `LANGO_STORE_URL`, or else in `DATABASE_URL`."""
    return next((os.environ[name] for name in URL_VARIABLES if os.environ.get(name)), None)
