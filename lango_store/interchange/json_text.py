"""JSON of other systems: parsed, or rejected with the reason."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

from lango_store._rows.encoding import MAX_LEVELS, reject_constant
from lango_store._values.json_faults import levels_within

LEVELS: Final = MAX_LEVELS + 10
"""The levels of a line or a member: those of a field, and what is around it."""


class NotJson(ValueError):
    """A text is not JSON, perhaps because it was cut off."""


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


_STRICT: Final[dict[str, Any]] = {"parse_constant": reject_constant, "parse_float": _finite}
"""Options of a JSON decoder that reject NaN, which is not JSON, and 1e999, which we cannot store."""


def read_json(
    text: str,
    *,
    levels: int = LEVELS,
    strict: bool = True,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the value of a JSON text; `NotJson` or another ValueError says why it cannot be read or stored.

    Unless `strict`, NaN and Infinity are read, as Python writes them.
    """
    too_deep = ValueError(f"is nested more than {levels} levels deep")
    try:
        value = json.loads(text, object_pairs_hook=object_pairs_hook, **(_STRICT if strict else {}))
    except json.JSONDecodeError as error:
        raise NotJson(f"is not JSON ({error})") from None
    except ValueError as error:
        raise ValueError(f"cannot be read ({error})") from None
    except RecursionError:
        raise too_deep from None
    if text.count("[") + text.count("{") > levels and not levels_within(value, levels):
        raise too_deep
    return value


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; ValueError if it has a name twice, of which `json` would drop the first value."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a name twice")
    return value
