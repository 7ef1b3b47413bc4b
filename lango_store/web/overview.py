"""The page of totals: tokens, cost and sessions per day as bars, tools that fail, large sessions, and owed turns."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from rich import filesize

from lango_store import Message, MessageRole, UsageRow
from lango_store._rooms.documents.page import escape_line, render_time
from lango_store.content import Call, Native, Result, parts
from lango_store.errors import NotFound
from lango_store.rows import SESSION, TURN, dialect_of
from lango_store.store import Store
from lango_store.tables import live_at
from lango_store.web.payloads import without_payloads

DAYS: Final = 30
_TURNS: Final = 200_000
_LARGEST: Final = 10
_OWED: Final = 20
_TOOLS: Final = 20
_SESSIONS: Final = 500
_MESSAGES: Final = 10_000
_MESSAGES_OF_A_SESSION: Final = 200
_HEIGHT: Final = 80
_WIDTH: Final = 20
_SHORTENED: Final = f"Usage of {{}}: {DAYS} days have more than {_TURNS:,} turns. All: lango-store usage --by day"

Link = Callable[[str, str], str]
"""Returns a link to the session with a key, with a text."""


def render(store: Store, now: datetime, link: Link) -> str:
    """Return the body of the page.

    Args:
        store: The store.
        now: The present time, in UTC. Usage is shown of this day and the 29 days before, or of fewer days if more
            than 200,000 turns would have to be read.
        link: Makes the links to sessions.
    """
    query = (
        sa.select(SESSION.c.key, SESSION.c.title, SESSION.c.message_count)
        .where(SESSION.c.message_count > 0, live_at(now))
        .order_by(SESSION.c.message_count.desc(), SESSION.c.key)
        .limit(_LARGEST)
    )
    start = datetime.combine(now.date() - timedelta(days=DAYS - 1), datetime.min.time(), now.tzinfo)
    with store._context.snapshot() as connection:
        largest = connection.execute(query).all()
        counts = {day: (sessions, turns) for day, sessions, turns in connection.execute(_counts(connection, start))}
    by_day = {str(now.date() - timedelta(days=ago)): _Day() for ago in range(_number_of_days(now, counts))}
    since = start + timedelta(days=DAYS - len(by_day))
    models: defaultdict[str, _Day] = defaultdict(_Day)
    for row in store.usage(("day", "model"), since=since):
        for day in (by_day.setdefault(str(row.day), _Day()), models[row.model or "–"]):
            day.add(row)
    for name, day in by_day.items():
        day.sessions, _ = counts.get(name, (0, 0))
    stats = store.stats()
    owed = store.owed(limit=_OWED).items
    facts = {
        "sessions": f"{stats.sessions:,}",
        "messages": f"{stats.messages:,}",
        "turns": f"{stats.turns:,}",
        "on disk": filesize.decimal(stats.bytes),
        "owed turns": f"{stats.owed_turns:,}",
        "turns given up": f"{stats.given_up_turns:,}",
        "unknown tool calls": f"{stats.unknown_calls:,}",
        "suspensions without an answer": f"{stats.unanswered_suspensions:,}",
    }
    days = dict(sorted(by_day.items()))
    charts = [
        _bars("Tokens per day", {name: day.tokens for name, day in days.items()}),
        _bars("Sessions with turns per day", {name: day.sessions for name, day in days.items()}),
    ]
    if any(day.cost for day in days.values()):
        charts.insert(1, _bars("Cost per day, in dollars", {name: day.cost for name, day in days.items()}, "{:,.2f}"))
    spent = [(escape_line(name), *day.cells()) for name, day in reversed(days.items()) if day.turns]
    of_models = [(escape_line(name), *day.cells()[1:]) for name, day in sorted(models.items())]
    columns = ("sessions", "turns", "input", "output", "dollars")
    return "".join(
        [
            "<h1>Totals</h1><dl>",
            *(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in facts.items()),
            "</dl>",
            *charts,
            f"<p>{_SHORTENED.format(_days(len(by_day)))}</p>" if len(by_day) < DAYS else "",
            _table("Usage by model", ("model", *columns[1:]), of_models),
            *_tools(store),
            _table(
                "Turns that are owed, the longest due first",
                ("session", "reason", "due", "attempts", "error"),
                [
                    (
                        link(each.key, each.key),
                        each.reason,
                        "given up" if each.given_up else render_time(each.due_at),
                        str(each.attempts),
                        escape_line(each.error),
                    )
                    for each in owed
                ],
                "texts",
            ),
            _table(
                "Largest sessions",
                ("session", "messages"),
                [(link(key, title or key), f"{count:,}") for key, title, count in largest],
            ),
            _table("Usage by day, in UTC", ("day", *columns), spent),
        ]
    )


def _counts(connection: sa.Connection, since: datetime) -> sa.Executable:
    """Return a query of the sessions with turns, and of their turns, by day; this is much faster than their usage."""
    day = dialect_of(connection).day_of(TURN.c.created_at).label("day")
    turns = sa.and_(TURN.c.created_at >= since, TURN.c.copied_from.is_(None))
    return sa.select(day, sa.func.count(TURN.c.session_key.distinct()), sa.func.count()).where(turns).group_by("day")


def _number_of_days(now: datetime, counts: Mapping[str, tuple[int, int]]) -> int:
    """Return for how many days, this one included, the usage can be read in a few seconds."""
    total = 0
    for ago in range(DAYS):
        total += counts.get(str(now.date() - timedelta(days=ago)), (0, 0))[1]
        if ago and total > _TURNS:
            return ago
    return DAYS


def _tools(store: Store) -> Iterator[str]:
    """Yield a table of the tools that failed most often.

    Only the parser of contents knows a failure in each form of messages, so messages are read, and the table names
    their number.
    """
    results: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    read = 0
    for session in store.list_sessions(limit=_SESSIONS).items:
        if read >= _MESSAGES:
            break
        names: dict[str | None, str | None] = {}
        limit = min(_MESSAGES_OF_A_SESSION, _MESSAGES - read)
        try:
            entries = store.conversation(session.key).all_messages(last=limit, damaged="return", payloads="reference")
        except NotFound:  # deleted or expired since it was listed
            continue
        read += len(entries)
        for message in entries:
            if not isinstance(message, Message) or message.role is MessageRole.RECORD:
                continue
            for part in parts(without_payloads(message)[0]):
                shown = part.shown if isinstance(part, Native) else part
                if isinstance(shown, Call):
                    names[shown.id] = shown.name
                elif isinstance(shown, Result):
                    name = shown.name or names.get(shown.id) or "–"
                    results[name] += 1
                    failures[name] += shown.failed
    most = sorted(results, key=lambda name: (-failures[name], -results[name], name))[:_TOOLS]
    rows = [
        (escape_line(name), f"{results[name]:,}", f"{failures[name]:,}", f"{failures[name] / results[name]:.1%}")
        for name in most
    ]
    title = f"Tools, the most failures first, in {read:,} messages of the sessions used last"
    yield _table(title, ("tool", "results", "failed", "share"), rows)


def _days(number: int) -> str:
    return "1 day" if number == 1 else f"{number} days"


class _Day:
    """The sums of a day, or of a model."""

    def __init__(self) -> None:
        self.sessions = self.turns = self.input = self.output = 0
        self.cost = 0.0

    def add(self, row: UsageRow) -> None:
        self.turns += row.turns
        self.input += row.input_tokens
        self.output += row.output_tokens
        self.cost += row.cost_usd or 0

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def cells(self) -> tuple[str, ...]:
        counts = (self.sessions, self.turns, self.input, self.output)
        return (*(f"{each:,}" for each in counts), f"{self.cost:,.2f}" if self.cost else "")


def _bars(title: str, days: dict[str, float], form: str = "{:,}") -> str:
    """Return a bar chart as SVG; each bar has its day and its number as a title, and the table below has them too."""
    most = max(days.values(), default=0)
    if not most:
        return ""
    bars = []
    for at, (day, number) in enumerate(days.items()):
        height = round(_HEIGHT * number / most, 1)
        bars.append(
            f'<rect x="{at * _WIDTH + 2}" y="{_HEIGHT - height}" width="{_WIDTH - 4}" height="{height}"'
            f' fill="var(--user)"><title>{escape_line(day)}: {form.format(number)}</title></rect>'
        )
    width = len(days) * _WIDTH
    line = f'<path d="M0 {_HEIGHT}.5H{width}" stroke="currentColor"/>'
    label = f"{title}, {_days(len(days))}; most: {form.format(most)}"
    box = f'viewBox="0 0 {width} {_HEIGHT + 1}" width="100%"'
    ends = f'<p class="facts ends"><span>{escape_line(min(days))}</span><span>{escape_line(max(days))}</span></p>'
    return f'<h2>{label}</h2><svg role="img" aria-label="{label}" {box}>{"".join(bars)}{line}</svg>{ends}'


def _table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, ...]], kind: str = "numbers") -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = "".join(
        "<tr>"
        + f'<td dir="auto">{first}</td>'
        + "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in zip(columns[1:], rest, strict=True))
        + "</tr>"
        for first, *rest in rows
    )
    empty = f'<tr><td colspan="{len(columns)}">None.</td></tr>'
    return f'<h2>{title}</h2><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body or empty}</tbody></table>'
