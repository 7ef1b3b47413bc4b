"""What a URL names: one of our databases, with our driver, and no secret in a place that is ever shown.

An engine shows its URL, and drivers quote what they could not use: whatever may be a part of a password is refused
before, in words that quote nothing of the URL.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

import sqlalchemy as sa

URL_VARIABLES: Final = ("LANGO_STORE_URL", "DATABASE_URL")
"""The environment's names for a URL that was not given, the first before the second."""

_DRIVERS: Final = {
    "sqlite": ("", "pysqlite", "aiosqlite"),
    "postgresql": ("", "psycopg", "psycopg_async", "asyncpg"),
}

_SECRETS: Final = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")

_SQLITE: Final = frozenset(
    {"cache", "cached_statements", "check_same_thread", "detect_types", "immutable", "isolation_level", "mode"}
    | {"modeof", "nolock", "psow", "timeout", "uri", "vfs"}
)
_NUMBERS: Final = frozenset(
    {"cached_statements", "connect_timeout", "detect_types", "keepalives", "keepalives_count", "keepalives_idle"}
    | {"keepalives_interval", "tcp_user_timeout", "timeout"}
)
_LONGEST_TIMEOUT: Final = 2**31 - 1
_UNITS: Final = {"": 1, "ms": 1, "s": 1000, "min": 60_000}

_ASYNCPG_ONLY: Final = ("command_timeout", "max_cached_statement_lifetime", "max_cacheable_statement_size")
_ASYNCPG_CACHES: Final = ("prepared_statement_cache_size", "statement_cache_size")
_SSL: Final = {"true": "require", "1": "require", "false": "disable", "0": "disable"}

_HOST: Final = re.compile(r"[\w.-]+|[0-9a-fA-F.]*:[0-9a-fA-F:.]*(%\w+)?")
_HOST_AND_PORT: Final = re.compile(r"/[^\s=;&?@]*|[\w.-]*(:\d*)?|[0-9a-fA-F:.]+")
_NAME_AND_PORT: Final = re.compile(r"[\w.-]*:\d+")
_OUT_OF_PLACE: Final = re.compile(r"(?i)(pass\w*|pwd|secret\w*|key)\s*=")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

_NO_URL: Final = "that is not a database URL: give sqlite:///file or postgresql://user@host/database"
_NO_PORT: Final = (
    "the port in the URL is not a number from 1 to 65535: write postgresql://user:password@host:5432/database, "
    "and several hosts as ?host=a:5432&host=b:5432"
)
_UNQUOTED: Final = (
    "the URL has an unquoted @ in its user, password or parameters: write %40 (and %3A for :, %2F for /, %3F for ?, "
    "%26 for &, %23 for #)"
)


def parse(given: str | sa.URL) -> tuple[sa.URL, dict[str, Any]]:
    """Return the URL for our driver, without secrets in its parameters, and what to give to the driver beside it.

    ValueError, which quotes nothing of the URL, for one that names none of our databases or cannot be told for sure.
    """
    url = _made(given)
    backend, _, driver = url.drivername.partition("+")
    backend = "postgresql" if backend == "postgres" else backend
    if driver not in _DRIVERS.get(backend, ()):
        raise ValueError(
            "that database or driver is not supported: give sqlite:///file, sqlite:// or postgresql://user@host/database"
        )
    for part in (url.username, url.host, url.database, *_texts(url)):
        _check(part or "")
    if re.search(r"[?&](ssl)?password=", url.password or ""):  # an @ further back has made all this one password
        raise ValueError(_UNQUOTED)
    if backend == "sqlite":
        return _sqlite(url), {}
    if driver == "asyncpg":
        url = _from_asyncpg(url)
    return _postgresql(url)


def shown(url: sa.URL) -> str:
    """Write a URL without its secrets, wherever they stand."""
    secret = [name for name in url.query if name.lower() in _SECRETS or "password" in name.lower()]
    return url.update_query_dict(dict.fromkeys(secret, "***")).render_as_string(hide_password=True)


def _made(given: str | sa.URL) -> sa.URL:
    text = str(given) if isinstance(given, str) else ""
    if text.startswith("postgres") and text.count("@") > 1:
        raise ValueError(_UNQUOTED)
    if re.search(r"(//|@)\[(?![0-9a-fA-F:.]+(%\w+)?\])", text):
        raise ValueError(
            "the URL has something other than an IPv6 address between [ and ]: write postgresql://user@[::1]:5432/database"
        )
    fault = _NO_URL
    try:
        return sa.make_url(given)
    except sa.exc.ArgumentError:
        pass  # its text may show the URL, and would stand in a traceback as the context of ours
    except ValueError:
        fault = _NO_PORT
    raise ValueError(fault)


def _texts(url: sa.URL) -> list[str]:
    """Return the names and the values of a URL's parameters, but for secret values."""
    texts = list(url.query)
    for name, value in url.query.items():
        if name not in _SECRETS:
            texts += [value] if isinstance(value, str) else value
    return texts


def _check(text: str) -> None:
    if _CONTROL.search(text) or not _encodable(text):
        raise ValueError("the URL holds a line break or another character that cannot be sent: remove it")
    if _OUT_OF_PLACE.search(text):
        raise ValueError("the URL has a password in an odd place: write postgresql://user:password@host/database")


def _encodable(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text


def _check_parameters(url: sa.URL, known: frozenset[str]) -> None:
    if not known.issuperset(url.query):
        raise ValueError(
            f"the URL has an unknown parameter: give only {', '.join(sorted(known))}; "
            "in a password, ? is written %3F and & %26"
        )
    for name in _NUMBERS.intersection(url.query):
        if not re.fullmatch(r"-?\d{1,9}(\.\d{1,6})?", str(url.query[name])):
            raise ValueError(f"{name} in the URL is not a number: give {name}=10")


def _sqlite(url: sa.URL) -> sa.URL:
    if url.host or url.username or url.password or url.port:
        raise ValueError(
            "a URL of SQLite has neither host nor user: write sqlite:///file, with four slashes for an absolute path"
        )
    _check_parameters(url, _SQLITE)
    for name in {"check_same_thread", "uri"}.intersection(url.query):
        if str(url.query[name]).lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            raise ValueError(f"{name} in the URL is neither true nor false: give {name}=true")
    return url.set(drivername="sqlite")


def _postgresql(url: sa.URL) -> tuple[sa.URL, dict[str, Any]]:
    if "@" in (url.host or "") + (url.database or "") or "?" in (url.username or ""):
        raise ValueError(_UNQUOTED)
    connect_args: dict[str, Any] = {}
    if "prepare_threshold" in url.query:  # as text it would break every statement
        connect_args["prepare_threshold"] = _prepare_threshold(url.query["prepare_threshold"])
    if "statement_timeout" in url.query:  # no parameter of libpq
        connect_args["statement_timeout"] = milliseconds(url.query["statement_timeout"])
    for name in set(_SECRETS).intersection(url.query):
        secret = url.query[name]
        if not isinstance(secret, str):
            raise ValueError(f"{name} stands twice in the URL: give it once")
        connect_args[name] = secret
    if "\0" in (url.password or "") or not all(
        _encodable(str(each)) for each in (url.password or "", *connect_args.values())
    ):
        raise ValueError("the password in the URL holds a character that cannot be sent: percent-encode it as UTF-8")
    url = url.difference_update_query([*_SECRETS, "prepare_threshold", "statement_timeout"])
    _check_parameters(url, _known_to_libpq())
    hosts = [host for host in (url.host or "").split(",") if host]
    given = url.query.get("host", ())
    elsewhere = [host for each in ([given] if isinstance(given, str) else given) for host in each.split(",")]
    if not all(map(_HOST.fullmatch, hosts)) or not all(map(_HOST_AND_PORT.fullmatch, elsewhere)):
        raise ValueError(
            "the URL's host is not a host name: write postgresql://user:password@host:5432/database, with %40 for @ "
            "and %2F for / in a password"
        )
    given = url.query.get("port", ())
    ports = [port for each in ([given] if isinstance(given, str) else given) for port in each.split(",") if port]
    if not all(map(_is_port, ports)):
        raise ValueError("port in the URL is not a number from 1 to 65535: give port=5432")
    beside = [host.rpartition(":")[2] for host in elsewhere if _NAME_AND_PORT.fullmatch(host)]
    if not all(map(_is_port, [*([] if url.port is None else [str(url.port)]), *beside])):
        raise ValueError(_NO_PORT)
    return url.set(drivername="postgresql+psycopg"), connect_args


def _is_port(text: str) -> bool:
    return re.fullmatch(r"\d{1,5}", text) is not None and 1 <= int(text) <= 65_535


def _from_asyncpg(url: sa.URL) -> sa.URL:
    """Return in libpq's words what a URL says in asyncpg's."""
    query = dict(url.query)
    for name in _ASYNCPG_ONLY:
        if name in query:
            raise ValueError(
                f"{name} in the URL is asyncpg's, and psycopg has nothing like it: give the store a URL without it"
            )
    if "ssl" in query:
        ssl = str(query.pop("ssl"))
        query["sslmode"] = _SSL.get(ssl.lower(), ssl)
    if "timeout" in query:
        query["connect_timeout"] = query.pop("timeout")
    if "database" in query:
        query["dbname"] = query.pop("database")
    for name in _ASYNCPG_CACHES:  # 0 is what a pooler between needs
        if query.pop(name, None) == "0":
            query["prepare_threshold"] = "none"
    query.pop("prepared_statement_name_func", None)
    return url.set(query=query)


def _known_to_libpq() -> frozenset[str]:
    # The driver would refuse others itself, but the engine has shown them by then.
    from psycopg import pq  # only PostgreSQL's users wait for its import

    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


def _prepare_threshold(text: str | tuple[str, ...]) -> int | None:
    if isinstance(text, str) and text.lower() in ("", "none", "null"):
        return None
    if isinstance(text, str) and re.fullmatch(r"\d{1,9}", text):
        return int(text)
    raise ValueError("prepare_threshold in the URL: give a number or none")


def milliseconds(statement_timeout: object) -> int:
    """Return a time in PostgreSQL's words as milliseconds: a number of them, or one with ms, s or min."""
    found = re.fullmatch(r"(\d{1,9}) ?(ms|s|min)?", str(statement_timeout))
    if found is None or (length := int(found[1]) * _UNITS[found[2] or ""]) > _LONGEST_TIMEOUT:
        raise ValueError("statement_timeout is not a time: give milliseconds, or a number with s or min, such as 5s")
    return length


def url_from_environment() -> str | None:
    """Return the URL that `LANGO_STORE_URL`, else `DATABASE_URL`, names."""
    return next((os.environ[name] for name in URL_VARIABLES if os.environ.get(name)), None)
