"""HTML pages without scripts and external resources.

All stored text is escaped, and characters that control the direction of text are made visible.
"""

import base64
import hashlib
import re
from datetime import datetime
from html import escape
from typing import Final

from lango_store._rooms.documents.characters import ON_ONE_LINE, PICTURES

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def start_page(title: str, policy: str | None = None) -> str:
    """Return the beginning of a page with a content security policy. The page must end with `PAGE_END`."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy or POLICY}">\n'
        f"<title>{escape_line(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    )


def framed(text: str) -> str:
    """Return a document as a sandboxed frame, isolated from the styles and scripts of the surrounding page."""
    return f'<iframe sandbox srcdoc="{escape(text)}" style="width:100%;height:40em;border:0" title="session"></iframe>'


def escape_text(text: str) -> str:
    """Return stored text escaped."""
    return escape(visible(text))


def escape_line(text: str | None) -> str:
    """Return stored text escaped, on one line."""
    return escape(_encodable((text or "").translate(ON_ONE_LINE)))


def visible(text: str) -> str:
    """Return stored text with visible control characters and surrogates."""
    return _encodable(text.translate(PICTURES))


def _encodable(text: str) -> str:
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def render_time(moment: datetime | None) -> str:
    """Return an HTML time element; an empty text for None."""
    if moment is None:
        return ""
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S %Z}</time>'


STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--dim:#595f69;--line:#d5d9de;--card:#f6f7f9;
--user:#0b57c4;--assistant:#11723c;--tool:#8a5300;--system:#6f3ab0;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--bg:#14161a;--fg:#e7e9ec;--dim:#a3abb6;--line:#363c45;--card:#1d2026;
--user:#86b4ff;--assistant:#79d39b;--tool:#f0b45b;--system:#cda6ff;--bad:#ff9a92}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:1rem}
main:has(>table){max-width:72rem}
h1{font-size:1.4rem;margin:.5rem 0;overflow-wrap:anywhere}
h2{font-size:1rem;margin:0;font-weight:400;overflow-wrap:anywhere}
h3,main>h2{font-size:.85rem;margin:.5rem 0 0;color:var(--dim)}
main>h2{margin-top:1.2rem;font-weight:700}
dl{display:flex;flex-wrap:wrap;gap:.2rem 1.5rem;margin:0}
dl div{display:flex;gap:.4rem;min-width:0}
dt{color:var(--dim);white-space:nowrap}
dd{margin:0;overflow-wrap:anywhere}
header.session{border-bottom:1px solid var(--line);padding-bottom:.7rem;margin-bottom:1rem}
article{border-left:.3rem solid var(--dim);background:var(--card);border-radius:.3rem;
padding:.5rem .8rem;margin:.6rem 0}
article>header{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem}
article .role{font-weight:700}
article a{color:var(--dim);text-decoration:none;display:inline-block;min-width:1.5rem;min-height:1.5rem}
article a:hover,article a:focus{text-decoration:underline}
.user{border-color:var(--user)}.user .role{color:var(--user)}
.assistant{border-color:var(--assistant)}.assistant .role{color:var(--assistant)}
.tool{border-color:var(--tool)}.tool .role{color:var(--tool)}
.system{border-color:var(--system)}.system .role{color:var(--system)}
.summary{border-color:var(--system);border-left-style:double}.summary .role{color:var(--system)}
.damaged{border-color:var(--bad)}.damaged .role{color:var(--bad)}
.record{background:none;padding:0 .8rem;margin:.2rem 0;color:var(--dim);border-left-style:dotted}
.by{color:var(--dim)}.by::before{content:"· "}
.facts,.id,small{color:var(--dim);font-size:.85rem;margin:0}
.turn{color:var(--dim);border-top:1px solid var(--line);margin:1.2rem 0 .4rem;padding-top:.3rem;overflow-wrap:anywhere}
.failed{color:var(--bad)}
.text{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;margin:.3rem 0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2rem 0;font:.85rem/1.45 ui-monospace,monospace}
.markdown{white-space:normal}
.markdown>:first-child{margin-top:0}.markdown>:last-child{margin-bottom:0}
.markdown p,.markdown ul,.markdown ol,.markdown table{margin:.5rem 0}
.markdown h3{font-size:1rem;margin:.8rem 0 .3rem;color:inherit}
.markdown .h1{font-size:1.25rem}.markdown .h2{font-size:1.1rem}
.markdown th{overflow-wrap:anywhere}
.markdown a{display:inline;color:var(--user);text-decoration:underline}
.markdown blockquote{margin:.5rem 0;padding-left:.8rem;border-left:.2rem solid var(--line);color:var(--dim)}
.markdown table{display:block;width:auto}.markdown pre{border:1px solid var(--line);border-radius:.3rem;padding:.5rem}
code{font-family:ui-monospace,monospace;font-size:.9em}pre code{font-size:inherit}
.code [class^=k],.code .nt{color:var(--assistant)}.code [class^=s],.code .gi{color:var(--user)}
.code [class^=c],.code .gh,.code .gu{color:var(--dim)}.code [class^=m],.code .na{color:var(--tool)}
.code .nf,.code .nc,.code .nd,.code .nb{color:var(--system)}.code .gd,.code .err{color:var(--bad)}
img{display:block;max-width:100%;max-height:30rem;margin:.3rem 0}
#turns ol{list-style:none;padding:0;margin:0;overflow-wrap:anywhere}
details{margin:.3rem 0}
summary{cursor:pointer;overflow-wrap:anywhere;min-height:1.5rem}
mark{background:var(--user);color:var(--bg)}
summary .name{font-family:ui-monospace,monospace;font-weight:700}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.6rem 0}
nav a,td a,li a,.facts a{color:var(--user)}
.ends{display:flex;justify-content:space-between}
.numbers td+td,.numbers th+th{text-align:right;font-variant-numeric:tabular-nums}
form{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:end;margin:.6rem 0}
label{display:flex;flex-direction:column;color:var(--dim);font-size:.85rem}
input,select,button{font:inherit;padding:.25rem .5rem;border:1px solid var(--dim);border-radius:.3rem;max-width:100%;
background:var(--bg);color:var(--fg)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .5rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere;
vertical-align:top}
th{color:var(--dim);font-weight:400;overflow-wrap:normal}
.hit a{color:var(--user);text-decoration:underline}
@media print{nav,form{display:none}main{max-width:none;padding:0}
article{break-inside:avoid;background:none;border:1px solid #999;border-left-width:.3rem}
details::details-content{content-visibility:visible;display:block;height:auto}}
@media(max-width:30rem){main{padding:.5rem}article{padding:.4rem .6rem}
main>table thead{display:none}
main>table tr{display:block;border-bottom:1px solid var(--line);padding:.35rem 0}
main>table td{display:block;border:0;padding:0}
main>table td[data-name]{display:inline-block;text-align:left;font-size:.85rem;padding-right:1rem}
td[data-name]::before{content:attr(data-name) " ";color:var(--dim)}
main>table td:empty{display:none}}
""".strip()
"""The style of all pages: light and dark, on screen, on paper and on a phone."""

_STYLE_DIGEST: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""The content security policy of a document: the style above, images in the document, and nothing is loaded."""

PAGE_END: Final = "</main>\n</body>\n</html>\n"
