"""Retention policies: rules in a TOML file. The first rule that matches a session decides about it."""

import re
import tomllib
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, Self

import sqlalchemy as sa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lango_store._connections.context import Context
from lango_store._operations.binds import SESSION
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import MAX_TTL
from lango_store._rooms.expiry import batches, purging
from lango_store._rooms.expiry.batches import PurgeBatch, PurgePolicy
from lango_store._rooms.expiry.values import ExpiryReport
from lango_store._rows.encoding import end_of_prefix
from lango_store.errors import InvalidFile, quoted

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as 30d, 12h, 90m, 45s or 2w, up to 100 years."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if not match:
        raise ValueError(f"{quoted(text)} is not a duration: write 45s, 90m, 12h, 30d or 2w")
    try:
        value = timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        value = timedelta.max
    if value > MAX_TTL:
        raise ValueError(f"{quoted(text)} is longer than the longest TTL, 100 years")
    return value


_Text = Annotated[str, Field(min_length=1)]
_Duration = Annotated[timedelta, BeforeValidator(lambda value: parse_duration(str(value)))]


class Rule(BaseModel):
    """A rule of a policy: which sessions it matches, and either when they are purged or the reason of their hold."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Text
    agent: _Text | None = None
    user: _Text | None = None
    prefix: _Text | None = None
    idle: _Duration | None = None
    age: _Duration | None = None
    grace: _Duration | None = None
    archive: _Text | None = None
    descendants: bool = False
    hold: _Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        others = {"idle", "age", "grace", "archive", "descendants"} & self.model_fields_set
        if self.hold is not None and others:
            raise ValueError(f"a rule with hold purges nothing: remove {', '.join(sorted(others))}")
        return self

    def matches(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of the sessions that the rule matches; none of them is ever NULL."""
        wanted = {SESSION.c.agent_id: self.agent, SESSION.c.user_id: self.user}
        conditions = [column.is_not_distinct_from(value) for column, value in wanted.items() if value is not None]
        if self.prefix is not None:
            conditions += [SESSION.c.key >= self.prefix, SESSION.c.key < end_of_prefix(self.prefix)]
        return conditions

    def covers(self, other: Self) -> bool:
        """Return True if the rule matches each session that another rule matches."""
        is_equal = all(mine in (None, theirs) for mine, theirs in ((self.agent, other.agent), (self.user, other.user)))
        return is_equal and (other.prefix or "").startswith(self.prefix or "")


class _Policy(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rules: Annotated[list[Rule], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for first, rule in combinations(self.rules, 2):
            if first.covers(rule):
                names = f"rule {quoted(rule.name)} never applies, because rule {quoted(first.name)}"
                raise ValueError(f"{names} matches all of its sessions: write the special rule first")
        if len({rule.name for rule in self.rules}) < len(self.rules):
            raise ValueError("two rules have the same name")
        return self


def read_rules(path: Path) -> list[Rule]:
    """Read the rules of a file. A relative path of an archive is relative to the file."""
    try:
        rules = _Policy.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig"))).rules
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "rules"
        raise InvalidFile(path, f"{place}: {fault['msg'].removeprefix('Value error, ')}") from None
    except (OSError, ValueError) as error:
        raise InvalidFile(path, f"is not a policy: {error}") from error
    for rule in rules:
        if rule.archive is not None and "://" not in rule.archive:
            rule.archive = str(path.parent / rule.archive)
    return rules


def apply(
    context: Context,
    rules: Sequence[Rule],
    batch_size: int,
    on_batch: Callable[[ExpiryReport], None] | None,
    *,
    dry_run: bool,
) -> list[ExpiryReport]:
    """Apply each rule to the sessions that no earlier rule matches, and return one report per rule."""
    reports: list[ExpiryReport] = []
    others: list[sa.ColumnElement[bool]] = []
    every = Filter(expired=None)
    now = context.on_primary().read_together(lambda connection, _, which: context.now(connection), every)
    holds = {rule.name: context.own_fields({"hold": rule.hold}) for rule in rules if rule.hold is not None}
    for rule in rules:
        which = Filter(agent_id=rule.agent, user_id=rule.user, key_prefix=rule.prefix, expired=None)
        policy = PurgePolicy(
            which,
            rule.idle,
            None if rule.age is None else now - rule.age,
            everything=rule.hold is not None,
            descendants=rule.descendants,
            grace=rule.grace or timedelta(0),
            only=(*others,),
        )
        if rule.hold is None or dry_run:
            report = purging.purge(context, policy, now, batch_size, None, rule.archive, on_batch, dry_run)
            if rule.hold is not None:
                report = ExpiryReport(at=now, dry_run=True, oldest=report.oldest, put_on_hold=report.sessions)
        else:
            report = ExpiryReport(at=now)
            batch = PurgeBatch(policy.reasons(now)[0], which, [], batch_size, 0)
            while keys := context.transact(batches.hold, batch, holds[rule.name]):
                report.put_on_hold += len(keys)
        report.rule = rule.name
        reports.append(report)
        others.append(~sa.and_(sa.true(), *rule.matches()))
    return reports
