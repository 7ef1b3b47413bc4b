"""Errors of SQLAlchemy and the driver as the store's own, which show no content.

A driver's error may quote a row ("Failing row contains …"), and SQLAlchemy's the parameters of a statement. They are
therefore not chained to ours: a traceback would print them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from lango_store._dialect import Dialect, dialect_of
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, LangoStoreError


@contextmanager
def translated_errors(engine: sa.Engine) -> Iterator[None]:
    """Raise errors of SQLAlchemy and the driver as the store's, and an interruption that such an error hides."""
    handled = sys.exception()
    try:
        yield
    except Exception as error:
        if interruption := _hidden_interruption(error, engine, handled):
            raise interruption from None
        translate(error, engine)
        raise


def translate(error: BaseException, engine: sa.Engine) -> None:
    """Raise an error of SQLAlchemy or the driver as one of the store's; return if it is another."""
    if isinstance(error, sa.exc.TimeoutError):
        raise DatabaseBusy(
            f"no connection became free in time: {error}; "
            "make the pool larger: create_engine(url, pool_size=…), or use fewer threads"
        ) from error
    driver_error = of_driver(error)
    if isinstance(driver_error, engine.dialect.loaded_dbapi.Error):
        raise translated(driver_error, dialect_of(engine)) from None
    if isinstance(error, sa.exc.StatementError):
        raise translated(driver_error, dialect_of(engine)) from None
    if isinstance(error, UnicodeDecodeError):  # a driver's, where its own words are damaged
        raise DatabaseUnavailable(f"the database is damaged: {error}; restore it from a backup") from error
    if isinstance(error, OverflowError):
        raise LangoStoreError(f"a number is larger than the database holds: {error}; run `doctor`") from error


def translated(error: BaseException, dialect: Dialect) -> LangoStoreError:
    """Return the store's error for a driver's, to be raised `from None`."""
    ours = dialect.translate_error(error)
    ours.driver_error = error
    return ours


def _hidden_interruption(error: Exception, engine: sa.Engine, handled: BaseException | None) -> BaseException | None:
    """Return what interrupted a block, such as a KeyboardInterrupt, if leaving it raised another error.

    SQLAlchemy and psycopg fail while they leave a commit or a pipeline that was interrupted. `handled` is the exception
    that was being handled when the block began.
    """
    hiding = (sa.exc.SQLAlchemyError, engine.dialect.loaded_dbapi.Error, AssertionError, AttributeError)
    found: BaseException | None = error if isinstance(error, hiding) else None
    while isinstance(found, Exception) and found is not handled:
        found = found.__context__
    return None if found is handled or isinstance(found, GeneratorExit) else found


def of_driver(error: BaseException) -> BaseException:
    """Return the driver's error that SQLAlchemy wrapped, or the error itself."""
    return error.orig or error if isinstance(error, sa.exc.StatementError) else error
