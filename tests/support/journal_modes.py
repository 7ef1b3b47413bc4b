"""Engines of a host with another journal mode of SQLite than WAL."""

from typing import Any

import sqlalchemy as sa


def host_engine(url: str, mode: str) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": 60})

    @sa.event.listens_for(engine, "connect")
    def settings(driver: Any, _: object) -> None:
        driver.execute("PRAGMA foreign_keys = ON")
        driver.execute(f"PRAGMA journal_mode = {mode}")

    return engine
