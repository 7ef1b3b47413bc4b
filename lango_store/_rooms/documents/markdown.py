"""Markdown as HTML without raw HTML, images, scripts and styles.

Only `document` imports this module, when it first needs it, because markdown-it-py and Pygments take long to import.
"""

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name

_SCHEMES: Final = ("http://", "https://", "mailto:")
_MAX_COLORED_LENGTH: Final = 4_000
"""The length of the code in a text that is colored. Pygments needs several milliseconds for 1,000 characters."""

# Only these languages, because text can choose the language, and some lexers of Pygments are slow for hostile text.
_LANGUAGES: Final = re.compile(
    r"bash|c|c\+\+|console|cpp|css|diff|go|html|ini|javascript|js|json|python|py|rust|sh|shell|sql|toml|ts|typescript|xml"
    r"|yaml|yml"
)


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802
        """Return True for a link that may be shown as one; any other stays text."""
        return url.lower().startswith(_SCHEMES)


def render(text: str) -> str | None:
    """Return Markdown as HTML; None if it is nested so deeply that the parser would drop text.

    Control characters and surrogates of the text must be replaced already.
    """
    parser = _parser()
    env: dict[str, Any] = {}
    tokens = parser.parse(text, env)
    if max((token.level for token in tokens), default=0) >= parser.options.maxNesting - 1:
        return None
    rendered: str = parser.renderer.render(tokens, parser.options, env)
    return rendered


@cache
def _parser() -> MarkdownIt:
    parser = _Markdown("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    # Links that a reference defines would hide their text, and entities could hide characters of the source.
    parser.disable(["image", "reference", "entity"])
    for rule in (_fence, _link_open, _heading_open, _heading_close):
        parser.add_render_rule(rule.__name__.removeprefix("_"), rule)
    for tag in ("th", "td"):  # without the style of an alignment, which the policy of the page forbids
        parser.add_render_rule(f"{tag}_open", lambda *_, tag=tag: f"<{tag}>")
    return parser


def _fence(_: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: dict[str, Any]) -> str:
    info, code = tokens[index].info.strip(), tokens[index].content
    name = info.split(maxsplit=1)[0].lower() if info else ""
    colored = env.get("colored", 0) + len(code)
    if _LANGUAGES.fullmatch(name) and colored <= _MAX_COLORED_LENGTH:
        env["colored"] = colored
        shown = highlight(code, _lexer(name), _formatter())
    else:
        shown = escape(code)
    label = f"<small>{escape(info)}</small>" if info else ""
    return f'{label}<pre class="code"><code>{shown}</code></pre>\n'


@cache
def _formatter() -> HtmlFormatter:
    return HtmlFormatter(nowrap=True)


@cache
def _lexer(name: str) -> Lexer:
    return get_lexer_by_name(name, stripnl=False, ensurenl=False)


def _link_open(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return f'<a href="{escape(str(tokens[index].attrs["href"]))}" rel="noopener noreferrer">'


def _heading_open(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return f'<h3 class="{tokens[index].tag}">'  # below the h2 of the message


def _heading_close(*_: Any) -> str:
    return "</h3>\n"
