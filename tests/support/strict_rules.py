"""Rules of providers that depend on the model, on the author of a block and on earlier requests, with their sources.

`strict_faults` returns the reasons for which a provider refuses a request, as "rule at place: detail". `judge` looks at
all requests of a conversation: it also checks that an answer is sent back unchanged, and counts how much of the
thinking that could be sent back was.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from support.prompt_rules import faults

Block = dict[str, Any]

BINDS: Final = {
    *("claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-2", "claude-opus-5-5", "claude-sonnet-5-5"),
    "claude-haiku-5-5",
}
ALWAYS_REFUSE: Final = {"claude-fable-5-2", "claude-mythos-5-2"}
READS: Final = {"claude-fable-5-1": {"claude-opus-5", "claude-opus-5-5"}}
"""Claude models that bind thinking, those of them that refuse on accounts of any age, and what a model reads besides
its own thinking (Claude docs "Prefix checks on thinking blocks", "Preserved thinking")."""

ECHO: Final = {"deepseek": None, "moonshot": ""}
"""Servers that want `reasoning_content` with each call, and what is not enough (hermes-agent#15353, crush#2696)."""

_IMAGES: Final = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_RESULTS: Final = r"(web_search|web_fetch|(bash_|text_editor_)?code_execution|tool_search|mcp)_tool_result"
_SERVER: Final = re.compile(rf"server_tool_use|mcp_tool_use|compaction|container_upload|{_RESULTS}")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PARTS: Final[dict[str, dict[str, str]]] = {
    "openai": {
        "user": "text image_url input_audio file", "assistant": "text refusal", "tool": "text", "system": "text",
    },
    "openai-responses": {
        "user": "input_text input_image input_file", "assistant": "output_text refusal", "system": "input_text",
    },
    "anthropic": {
        "user": "text image document search_result tool_result",
        "assistant": "text thinking redacted_thinking tool_use",
    },
}  # fmt: skip
_GEMINI: Final = {
    *("text", "inline_data", "file_data", "function_call", "function_response", "executable_code"),
    *("code_execution_result", "tool_call", "tool_response"),
}
_GEMINI_MORE: Final = {"thought", "thought_signature", "video_metadata", "media_resolution"}
_DUMMIES: Final = {
    "skip_thought_signature_validator",
    base64.b64encode(b"skip_thought_signature_validator").decode(),
}
"""Types: openai 3.57.0, anthropic 0.125.0, google-genai 2.34.0. Dummies: Gemini docs "Thought Signatures"."""


@dataclass
class Request:
    """What is sent to a provider, and `answer`, the blocks that it sent back.

    `follows` is the request before it to the same provider, if nothing was changed and no limit cuts the prompt.
    """

    format: str
    issuer: str
    model: str
    messages: list[Block]
    system: Any = None
    tools: Sequence[Block] = ()
    prompt: Any = None
    follows: "Request | None" = None
    answer: list[Block] = field(default_factory=list)


def rule_of(fault: str) -> str:
    """Return the kind of a fault, without its place and its details."""
    return fault.split(" at ")[0] if " at " in fault else re.sub(r"^\w+ ?\d*: |'[^']*'|\d+|\[.*?\]", "", fault)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def bare(value: Any) -> Any:
    """Drop the cache marks: they say what to cache, and are not content (Claude docs "Prompt caching")."""
    if isinstance(value, list):
        return [bare(each) for each in value]
    if isinstance(value, dict):
        return {name: bare(each) for name, each in value.items() if name != "cache_control"}
    return value


def blocks_of(content: Any) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def is_thought(block: Block) -> bool:
    return block.get("type") in ("thinking", "redacted_thinking", "reasoning")


def signature_of(block: Block) -> Any:
    """Return the sealed part of a block in any format, or None."""
    names = {"thinking": "signature", "redacted_thinking": "data", "reasoning": "encrypted_content"}
    return block.get(names.get(block.get("type", ""), "thought_signature"))


def seal(**fields: Any) -> str:
    return base64.b64encode(canonical(fields).encode()).decode()


def unseal(signature: Any) -> Any:
    try:
        return json.loads(base64.b64decode(signature, validate=True))
    except (TypeError, ValueError):
        return None


def _key(block: Block) -> str:
    """Return what a block says, without ids that a repair may change."""
    call = block.get("function_call") or (block if block.get("type") in ("tool_use", "function_call") else None)
    if call:
        given = call.get("input", call.get("args", call.get("arguments")))
        return canonical(["call", call.get("name"), json.loads(given) if isinstance(given, str) else given])
    text = block.get("text") if block.get("type") in (None, "text", "output_text") else None
    return canonical(["text", text.strip()] if isinstance(text, str) else bare(block))


def _said(request: Request) -> list[Block]:
    """Return the blocks that the model said, of all messages in their order."""
    found: list[Block] = []
    for message in request.messages:
        if request.format == "gemini":
            found += message["parts"] if message["role"] == "model" else []
        elif message.get("role") == "assistant":
            found += blocks_of(message.get("content"))
        elif "role" not in message and not str(message.get("type")).endswith("_output"):
            found.append(message)
    return found


class BoundThinking:
    """A provider that binds thinking to its prefix, as Claude does since September 2026.

    A changed `system`, `tools` or earlier message makes later thinking invalid, and so does thinking that is missing or
    moved between others; leading thinking may go. A new account refuses (400), an old one leaves the block out unless
    the model always refuses. A model that cannot read a block leaves it out on every account (Claude docs "Prefix
    checks on thinking blocks", "Fix a thinking block bound to a different conversation"; AWS Bedrock docs "Preserved
    thinking").
    """

    def __init__(self, account: str = "new") -> None:
        self.account = account

    @staticmethod
    def walk(request: Request) -> Iterator[tuple[str, Block]]:
        """Yield each block of the assistant with a digest of everything before it, besides thinking and cache marks."""
        tools = [tool for tool in request.tools if not tool.get("defer_loading")]  # pydantic-ai#7984
        digest = hashlib.sha256(canonical(bare([request.system, tools])).encode())
        before = None
        for message in request.messages:
            if message["role"] != before:
                before = message["role"]
                digest.update(before.encode())
            for block in bare(blocks_of(message["content"])):
                if before == "assistant":
                    yield digest.hexdigest()[:16], block
                if not is_thought(block):
                    digest.update(canonical(block).encode())

    def sign(self, request: Request, blocks: list[Block]) -> list[Block]:
        """Return the blocks of an answer with their thinking signed."""
        last = (self.check(request)[1] or [None])[-1]
        whole = replace(request, messages=[*request.messages, {"role": "assistant", "content": blocks}])
        sealed = list(self.walk(whole))[-len(blocks) :]
        for digest, block in sealed:
            if block["type"] == "thinking":
                made = {"issuer": request.issuer, "model": request.model, "n": block["thinking"]}
                last = block["signature"] = seal(**made, digest=digest, before=_id(last))
        return [block for _, block in sealed]

    def check(self, request: Request) -> tuple[list[str], list[Any]]:
        """Return the faults of a request, and the signatures of the thinking that the model gets to read."""
        faults: list[str] = []
        kept: list[Any] = []
        refuses = self.account == "new" or request.model in ALWAYS_REFUSE
        for digest, block in self.walk(request):
            sealed = unseal(signature_of(block)) if is_thought(block) else None
            if is_thought(block) and not signature_of(block):
                faults.append(f"unsigned-thinking at {len(kept)}")
            elif sealed is None:
                continue
            elif sealed["issuer"] != request.issuer:
                faults += [f"foreign-thinking at {len(kept)}: of {sealed['issuer']}"] * (request.issuer == "anthropic")
            elif reads(request.model, sealed["model"]):
                before = next((each for each in reversed(kept) if reads(sealed["model"], unseal(each)["model"])), None)
                is_order = before and sealed["before"] != _id(before)
                wrong = "prefix" if sealed["digest"] != digest else "order" if is_order else None
                if not wrong or not {sealed["model"], request.model} <= BINDS:
                    kept.append(signature_of(block))
                elif refuses:
                    faults.append(f"bound-thinking at {len(kept)}: {wrong}")
        return faults, kept


def _id(signature: Any) -> Any:
    return signature and hashlib.sha256(signature.encode()).hexdigest()[:8]


def reads(model: str, other: str) -> bool:
    """Return True if a model can use the thinking of another; unknown pairs cannot."""
    return model == other or other in READS.get(model, ())


def _media_faults(place: int, data: Any, kind: Any = None, kinds: Any = None, url_safe: bool = False) -> Iterator[str]:
    alphabet = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
    if not data:
        yield f"empty-media at {place}"
    elif not re.fullmatch(r"[A-Za-z0-9+/_-]+={0,2}" if url_safe else alphabet, data):  # lmnr#1275
        yield f"base64 at {place}: {data[:12]!r}"
    if kinds and kind not in kinds:
        yield f"media-type at {place}: {kind!r}"  # hermes-agent#55432, claude-code#12750


def _uri_faults(place: int, url: Any) -> Iterator[str]:
    """Check an image's URL in OpenAI's formats (OmniSearch#3)."""
    match = re.match(r"data:([^;,]*);base64,(.*)", url or "", re.DOTALL)
    if match:
        yield from _media_faults(place, match[2], match[1], _IMAGES)
    elif not re.match(r"https?://", url or ""):
        yield f"image-url at {place}: {(url or '')[:20]!r}"


def _openai(request: Request) -> Iterator[str]:
    """Check parts by role, data URIs, names and reasoning (openai 3.57.0)."""
    for number, message in enumerate(request.messages):
        role = "system" if message["role"] == "developer" else message["role"]
        for part in blocks_of(message.get("content")):
            if part.get("type") not in _PARTS["openai"].get(role, "").split() or part["type"] not in part:
                yield f"unknown-part at {number}: {part.get('type')!r} of {role}"
            elif part["type"] == "image_url":
                yield from _uri_faults(number, (part["image_url"] or {}).get("url"))
        if message.get("name") and not re.fullmatch(r"[^\s<|\\/>]{1,64}", message["name"]):
            yield f"name at {number}: {message['name']!r}"
        reasoning = message.get("reasoning_content")
        if request.issuer in ECHO and message.get("tool_calls") and reasoning in (None, ECHO[request.issuer]):
            yield f"reasoning-content at {number}"


def _responses(request: Request) -> Iterator[str]:
    """Check items of OpenAI's responses: shape, order, pairs (openai 3.57.0; pi#4526, vercel/ai#7099, #7883)."""
    items = request.messages
    ids = Counter(item["id"] for item in items if item.get("id"))
    calls: list[Any] = []
    outputs: list[Any] = []
    for number, item in enumerate(items):
        kind, role = item.get("type", "message"), item.get("role", "")
        if kind == "message":
            role = "system" if role == "developer" else role
            for part in item["content"] if isinstance(item.get("content"), list) else []:
                if part.get("type") not in _PARTS["openai-responses"].get(role, "").split():
                    yield f"unknown-part at {number}: {part.get('type')!r} of {role}"
                elif part["type"] == "input_image" and not part.get("file_id"):
                    yield from _uri_faults(number, part.get("image_url"))
        elif kind == "reasoning":
            extra = set(item) - {"id", "type", "summary", "content", "encrypted_content", "status"}
            is_summary = all(each.get("type") == "summary_text" for each in item.get("summary", [{}]))
            if extra or not item.get("id") or not is_summary:
                yield f"reasoning-shape at {number}: {sorted(item)}"
            after = items[number + 1] if number + 1 < len(items) else {}
            if not (after.get("role") == "assistant" or re.search(r"_call$|^reasoning$", after.get("type", ""))):
                yield f"reasoning-alone at {number}: before {after.get('role') or after.get('type')}"  # continue#8933
        elif kind.endswith("_call"):
            calls.append(item.get("call_id"))
            is_sound = _NAME.fullmatch(item.get("name") or "") and isinstance(item.get("arguments"), str)
            if kind == "function_call" and not is_sound:
                yield f"call-shape at {number}: {item.get('name')!r}"
        elif kind.endswith("_call_output"):
            if item.get("call_id") not in calls:
                yield f"output-alone at {number}"
            outputs.append(item.get("call_id"))
        elif kind not in ("compaction", "item_reference"):
            yield f"unknown-item at {number}: {kind!r}"
        sealed = unseal(item.get("encrypted_content")) if "encrypted_content" in item else None
        if sealed and sealed["issuer"] != request.issuer:
            yield f"foreign-thinking at {number}: of {sealed['issuer']}"  # codex#17541, opencodex#5583
    for each in sorted(map(str, set(calls) ^ set(outputs))):
        yield f"call-pairs at end: {each!r}"
    if len(set(calls)) < len(calls) or any(count > 1 for count in ids.values()):
        yield "duplicate-item at end"  # vercel/ai#7883, pi#9057


def _anthropic(request: Request, account: str) -> Iterator[str]:
    """Check blocks, marks, media and the last turn for Claude (anthropic 0.125.0 and the reports named below)."""
    marks = canonical([request.system, request.tools, request.messages]).count('"cache_control": {')
    if marks > 4:
        yield f"cache-control at end: {marks}"  # Anthropic.SDK#50
    for number, message in enumerate(request.messages):
        role, blocks = message["role"], blocks_of(message["content"])
        seen = {block.get("id") for block in blocks if block.get("type") in ("server_tool_use", "mcp_tool_use")}
        answered = {block.get("tool_use_id") for block in blocks if re.fullmatch(_RESULTS, block.get("type", ""))}
        if answered - seen:
            yield f"server-tools at {number}"  # claude-code#65726
        for block in blocks:
            kind = block.get("type", "")
            is_server = role == "assistant" and _SERVER.fullmatch(kind)
            if kind not in _PARTS["anthropic"].get(role, "").split() and not is_server:
                yield f"unknown-part at {number}: {kind!r} of {role}"
            if is_thought(block) and "cache_control" in block:
                yield f"cache-control at {number}: on {kind}"  # gbrain#5326, sub2api#225
            inner = blocks_of(block.get("content")) if kind == "tool_result" else []
            if block.get("is_error") and any(each.get("type") != "text" for each in inner):
                yield f"error-with-media at {number}"  # vellum-assistant#18387
            if isinstance(block.get("content"), list) and any(each.get("text", "x") == "" for each in inner):
                yield f"empty-text at {number}"
            for each in [block, *inner]:
                yield from _source_faults(number, each)
    if request.messages and is_thought((blocks_of(request.messages[-1]["content"]) or [{}])[-1]):
        yield "thinking-last at end"  # CLIProxyAPI#5321: only the last message's last block counts
    generation = re.search(r"claude-(?:opus|sonnet|haiku|fable|mythos)-(\d+)(?:-(\d)\b)?", request.model)
    version = (int(generation[1]), int(generation[2] or 0)) if generation else (0, 0)
    if version >= (4, 6) and request.messages and request.messages[-1]["role"] == "assistant":
        yield "prefill at end"  # strands sdk-python#1694, agno#7015
    yield from BoundThinking(account).check(request)[0]


def _source_faults(number: int, block: Block) -> Iterator[str]:
    source = block.get("source") if block.get("type") in ("image", "document") else None
    if isinstance(source, dict) and source.get("type") == "base64":
        kinds = _IMAGES if block["type"] == "image" else {"application/pdf"}
        yield from _media_faults(number, source.get("data"), source.get("media_type"), kinds)
    elif source is not None and not (
        isinstance(source, dict) and source.get("type") in ("url", "text", "file", "content")
    ):
        yield f"media-source at {number}: {source!r:.60}"


def _gemini(request: Request) -> Iterator[str]:
    """Check names, signatures and parts (Gemini docs "Thought Signatures"; ccs#25, gemini-cli#7869)."""
    contents = request.messages
    turn = max(
        (
            number
            for number, each in enumerate(contents)
            if each["role"] == "user" and not all("function_response" in part for part in each["parts"])
        ),
        default=-1,
    )
    for number, content in enumerate(contents):
        calls = [part for part in content["parts"] if "function_call" in part]
        if calls and number > turn and request.model.startswith("gemini-3") and not calls[0].get("thought_signature"):
            yield f"signature-missing at {number}"
        for part in content["parts"]:
            name = (part.get("function_call") or part.get("function_response") or {}).get("name", "x")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}", name):
                yield f"name at {number}: {name!r}"
            if len(set(part) & _GEMINI) != 1 or set(part) - _GEMINI - _GEMINI_MORE:
                yield f"unknown-part at {number}: {sorted(part)}"
            if "inline_data" in part:
                yield from _media_faults(number, part["inline_data"].get("data"), url_safe=True)
            signature = part.get("thought_signature")
            sealed = unseal(signature) if signature and signature not in _DUMMIES else None
            if sealed and sealed["issuer"] != request.issuer:
                yield f"foreign-thinking at {number}: of {sealed['issuer']}"  # pydantic-ai-slim 2.68.0 models/google.py


def strict_faults(request: Request, account: str = "new") -> list[str]:
    """Return the reasons for which a provider refuses a request, with the rules for its model and its issuer."""
    text = json.dumps([request.system, request.messages], ensure_ascii=False, default=str)
    found = ["surrogate at end"] if re.search("[\ud800-\udfff]", text) else []  # claude-code#3277, #60394
    found += faults(request.messages, request.format)
    if request.format == "openai":
        return found + list(_openai(request))
    if request.format == "openai-responses":
        return found + list(_responses(request))
    return found + list(_anthropic(request, account) if request.format == "anthropic" else _gemini(request))


def _answer_faults(request: Request, made: Request) -> Iterator[str]:
    """Check that an earlier answer is sent back whole and in its order, with native blocks unchanged.

    Order and thinking: claude-code#63203, vercel/ai#7099. Native blocks: agno#7766, #7171.
    """
    said, everything = _said(request), canonical(request.messages)
    tokens = [signature_of(block) if is_thought(block) else _key(block) for block in said]
    wanted = [signature_of(block) if is_thought(block) else _key(block) for block in made.answer]
    places = [tokens.index(each) for each in wanted if each in tokens]
    thoughts = [signature_of(block) in tokens for block in made.answer if is_thought(block)]
    if made.format == request.format and places != sorted(places):
        yield f"order at {places}"
    if made.format == request.format and any(thoughts) and not all(thoughts):
        yield f"thinking-partly at {places}"
    for block in made.answer:
        mark = re.search(r"(srvtoolu|cmp|code)_\d+", canonical(block))
        if mark and re.search(rf"\b{mark[0]}\b", everything):
            if made.issuer != request.issuer:
                yield from [f"foreign-native at end: {mark[0]}"] * (mark[1] != "code")  # code may be sent as text
            elif not any(canonical(bare(each)) == canonical(block) for each in said):
                yield f"native-changed at end: {mark[0]}"


def judge(requests: Sequence[Request], account: str = "new") -> tuple[list[str], Counter[str]]:
    """Return the faults of a conversation's requests, and how much thinking was sent back of what could be.

    The counter has "could", blocks whose model can read them and whose prefix, or next block, is in the request, and
    "kept".
    """
    found: list[str] = []
    share: Counter[str] = Counter()
    for number, request in enumerate(requests):
        found += strict_faults(request, account)
        said = _said(request)
        keys, read = {_key(block) for block in said}, {signature_of(block) for block in said}
        spots: set[Any] = set()
        if request.format == "anthropic":
            spots = {(digest, _key(block)) for digest, block in BoundThinking.walk(request)}
            read = set(BoundThinking(account).check(request)[1])
        for made in requests[:number]:
            found += _answer_faults(request, made)
            if (made.format, made.issuer) != (request.format, request.issuer):
                continue
            for place, block in enumerate(made.answer):
                sealed = unseal(signature_of(block))
                rest = made.answer[place:] if request.format == "gemini" else made.answer[place + 1 :]
                key = _key(next((each for each in rest if not is_thought(each)), {}))
                is_bound = request.format == "anthropic" and {request.model, made.model} <= BINDS
                fits = sealed and ((sealed["digest"], key) in spots if is_bound else key in keys)
                if fits and (request.format != "anthropic" or reads(request.model, made.model)):
                    share["could"] += 1
                    share["kept"] += signature_of(block) in read
    return found, share
