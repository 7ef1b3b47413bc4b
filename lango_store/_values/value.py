"""The base of all values: validated, with unknown fields refused, and equal after a round trip through JSON."""

import json
from contextvars import ContextVar
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, WrapSerializer
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

_keep_surrogates: Final[ContextVar[bool]] = ContextVar("_keep_surrogates", default=False)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    return value


def _json_mode(value: Any, handler: SerializerFunctionWrapHandler) -> Any:
    # pydantic cannot write lone surrogates: a web framework that serializes the value would answer 500.
    if not _keep_surrogates.get():
        try:
            to_json(value)
        except PydanticSerializationError:
            value = _escaped(value)
    return handler(value)


Json = Annotated[Any, WrapSerializer(_json_mode, when_used="json")]
JsonObject = Annotated[dict[str, Any], WrapSerializer(_json_mode, when_used="json")]
JsonList = Annotated[list[Any], WrapSerializer(_json_mode, when_used="json")]


def absent(value: object) -> bool:
    """Return whether a field says nothing, so that a dump leaves it out."""
    return value is None or value == 0 or value == [] or value == {}


def copied(value: Any) -> Any:
    """Return a JSON value that shares no list and no dict with this one: copy.deepcopy in a tenth of its time."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


class Value(BaseModel):
    """The base of all values: unknown fields are refused, assignments are validated."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Return the value as JSON text, whatever its texts hold: lone surrogates come out as `\\udXXX`."""
        token = _keep_surrogates.set(True)
        try:
            return super().model_dump_json(indent=indent, **options)
        except PydanticSerializationError:
            plain = self.model_dump(**options)
            separators = None if indent else (",", ":")
            return json.dumps(plain, indent=indent, separators=separators, allow_nan=False, default=to_jsonable_python)
        finally:
            _keep_surrogates.reset(token)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Read a value from JSON text, all that `model_dump_json` writes: lone surrogates and 200 levels too."""
        try:
            return super().model_validate_json(json_data, **options)
        except ValidationError as error:
            if error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
                raise
            try:
                plain = json.loads(json_data)
            except (ValueError, RecursionError):
                raise error from None
            return cls.model_validate(plain, **options)
