"""Translation of errors from SQLAlchemy and the driver into the store's errors, which never show stored content.

A driver's error may quote a row ("Failing row contains …"), and SQLAlchemy's error quotes the parameters of a
statement. These errors are therefore not chained to ours, because a traceback would print them.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from lango_store._dialect import Dialect, dialect_of
from lango_store.errors import DamagedDatabase, DatabaseBusy, DatabaseUnavailable, LangoStoreError


@contextmanager
def translated_errors(engine: sa.Engine) -> Iterator[None]:
    """Translate errors of SQLAlchemy and the driver; raise an interruption that such an error hides."""
    handled = sys.exception()
    try:
        yield
    except Exception as error:
        if interruption := _hidden_interruption(error, engine, handled):
            raise interruption from None
        translate(error, engine)
        raise


def translate(error: BaseException, engine: sa.Engine) -> None:
    """Raise the store's error for an error of SQLAlchemy or the driver; return for any other error.

    A driver's error from another database, for which a connection is open too, is one of the others.
    """
    if isinstance(error, sa.exc.TimeoutError):
        raise DatabaseBusy(
            f"no connection became free in time: {error}; "
            "make the pool larger: create_engine(url, pool_size=…), or use fewer threads"
        ) from error
    driver_error = of_driver(error)
    if isinstance(driver_error, engine.dialect.loaded_dbapi.Error):
        raise translated(driver_error, dialect_of(engine)) from None
    if isinstance(error, sa.exc.StatementError) and not isinstance(error, sa.exc.DBAPIError):
        raise translated(driver_error, dialect_of(engine)) from None
    if isinstance(error, UnicodeDecodeError):  # from a driver that cannot decode a name in a damaged file
        raise DatabaseUnavailable(f"the database is damaged: {error}; restore it from a backup") from error
    if isinstance(error, OSError) and _is_raised_by_driver(error, engine):
        ours = DatabaseUnavailable(f"the driver failed: {error}; check the server, the network and `ulimit -n`")
        ours.driver_error = error
        raise ours from None
    if isinstance(error, OverflowError):
        raise DamagedDatabase(f"a number is larger than the database holds: {error}; run `doctor`") from error


def translated(error: BaseException, dialect: Dialect) -> LangoStoreError:
    """Return the store's error for a driver's error, to be raised `from None`."""
    ours = dialect.translate_error(error)
    ours.driver_error = error
    return ours


def _hidden_interruption(error: Exception, engine: sa.Engine, handled: BaseException | None) -> BaseException | None:
    """Return the interruption of a block, such as KeyboardInterrupt, that `error` hides; None if there is none.

    SQLAlchemy and psycopg may raise an error while they leave an interrupted commit or pipeline. `handled` is the
    exception that was being handled when the block began.
    """
    hiding = (sa.exc.SQLAlchemyError, engine.dialect.loaded_dbapi.Error, AssertionError, AttributeError)
    cause: BaseException | None = error if isinstance(error, hiding) else None
    while isinstance(cause, Exception) and cause is not handled:
        cause = cause.__context__
    return None if cause is handled or isinstance(cause, GeneratorExit) else cause


def _is_raised_by_driver(error: OSError, engine: sa.Engine) -> bool:
    """Return True if the driver raised the error, and not, for example, the code in a transaction's block."""
    driver = engine.dialect.loaded_dbapi.__name__.partition(".")[0]
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == driver for frame, _ in frames)


def of_driver(error: BaseException) -> BaseException:
    """Return the driver's error that SQLAlchemy wrapped, or the error itself."""
    return error.orig or error if isinstance(error, sa.exc.StatementError) else error
