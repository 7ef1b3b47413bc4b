"""Times and roles of other systems, read in one way for all formats."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lango_store.interchange.moments import moment, nanoseconds

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-07-01T12:00:00Z",
        "2026-07-01t12:00:00z",
        "2026-07-01 14:00:00+02:00",
        "2026-07-01T12:00:00",
        "2026-07-01T12:00:00.000000999Z",
    ],
)
def test_a_time_is_an_instant_in_utc_to_the_microsecond(text: str) -> None:
    assert moment(text) == NOON


def test_nanoseconds_order_what_microseconds_cannot() -> None:
    texts = ["0001-01-01T00:00:00+01:00", "1969-12-31T23:59:59.999999999Z", "1970-01-01T00:00:00.000000001Z"]
    counts = [nanoseconds(text) for text in texts]
    assert counts[1:] == [-1, 1]
    assert counts[0] is not None
    assert counts[0] < -(2**62)


@pytest.mark.parametrize(
    "text", [None, 5, "", "soon", "2026-13-01T00:00:00Z", "2026-07-01T12:00:00+25:00", "\ud800", "0001-01-01T00:00:00Z"]
)
def test_what_is_not_a_time_and_gos_zero_time_are_none(text: object) -> None:
    assert moment(text) is moment(text, local=True) is None
