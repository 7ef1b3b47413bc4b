"""The base class of all values: validated, and equal after a round trip through JSON."""

import json
from contextvars import ContextVar
from typing import Annotated, Any, Final, Self, TypeVar

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
    # Pydantic cannot serialize lone surrogates: a web framework that returns the value would answer with status 500.
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
    """Return True for an empty field, which a dump leaves out."""
    return value is None or value == 0 or value == [] or value == {}


def copied(value: Any) -> Any:
    """Return a deep copy of a JSON value, in a tenth of the time of copy.deepcopy."""
    # No call for texts and numbers, which are most items.
    if isinstance(value, dict):
        return {name: copied(item) if isinstance(item, (dict, list)) else item for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) if isinstance(item, (dict, list)) else item for item in value]
    return value


class Value(BaseModel):
    """The base class of all values: refuses unknown fields and validates assignments."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Return the value as JSON text.

        Args:
            indent: The number of spaces per level. Default: None, all on one line.
            **options: Further options of pydantic's `model_dump_json`.

        Returns:
            JSON text. Lone surrogates, which pydantic refuses, are written as `\\udXXX`.
        """
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
        """Create a value from the JSON text that `model_dump_json` returned.

        Args:
            json_data: The JSON text. It may have lone surrogates, and up to 200 levels.
            **options: Further options of pydantic's `model_validate_json`.

        Raises:
            pydantic.ValidationError: The text is not JSON, or not such a value.
        """
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


Built = TypeVar("Built", bound=Value)

_SLOTS: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
set_values, set_fields_set, set_extra, set_private = (vars(BaseModel)[slot].__set__ for slot in _SLOTS)


def built(kind: type[Built], values: dict[str, Any], fields_set: set[str]) -> Built:
    """Build a value from valid values of all its fields, faster than `model_construct` does."""
    value = object.__new__(kind)
    set_values(value, values)
    set_fields_set(value, fields_set)
    set_extra(value, None)
    set_private(value, None)
    return value
