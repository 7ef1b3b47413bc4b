"""Random conversations that several providers and models write, with trims, edits and forks between their requests."""

import base64
import copy
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from support.strict_rules import Block, BoundThinking, Request, seal

from lango_store import Message, Store, ToolCall

PROVIDERS: Final = [
    ("anthropic", "anthropic", "claude-fable-5-2"),
    ("anthropic", "anthropic", "claude-fable-5-1"),
    ("anthropic", "anthropic", "claude-opus-5-5"),
    ("anthropic", "anthropic", "claude-opus-4-5"),
    ("anthropic", "minimax", "minimax-m3"),
    ("openai-responses", "openai", "gpt-6"),
    ("openai-responses", "xai", "grok-5"),
    ("openai", "openai", "gpt-6"),
    ("openai", "deepseek", "deepseek-v4"),
    ("openai", "moonshot", "kimi-k3"),
    ("gemini", "google", "gemini-3-pro"),
    ("gemini", "vertex", "gemini-3-pro"),
]
"""Format, issuer and model; minimax and deepseek stand for servers that repeat ids or give none."""

PICTURES: Final = ("aisdk", "agui", "openai", "anthropic", "gemini", "langchain", "mcp")
OPERATIONS: Final = [
    "none",
    "none",
    "none",
    "none",
    "switch",
    "switch",
    "model",
    "model",
    "trim",
    "compact",
    "redact",
    "edit",
    "delete",
    "fork",
    "drop_sent",
    "system",
    "tools",
    "restart",
    "imported",
    "truncate",
]
TRIMS: Final[list[dict[str, Any]]] = [{}, {}, {"last": 6}, {"last": 5, "step": 4}]


def picture(form: str, serial: int) -> Block:
    """Return a picture in the form of a page, a provider or a framework."""
    data = base64.b64encode(b"\xff\xd8\xff\xfb" + serial.to_bytes(2, "big") * 24).decode()
    uri, kind = f"data:image/jpeg;base64,{data}", "image/jpeg"
    forms: dict[str, Block] = {
        "aisdk": {"type": "file", "mediaType": kind, "url": uri},
        "agui": {"type": "image", "source": {"type": "data", "value": data, "mimeType": kind}},
        "openai": {"type": "image_url", "image_url": {"url": uri}},
        "anthropic": {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}},
        "gemini": {"inline_data": {"mime_type": kind, "data": data.replace("+", "-").replace("/", "_")}},
        "langchain": {"type": "image", "base64": data, "mime_type": kind},
        "mcp": {"type": "image", "data": data, "mimeType": kind},
    }
    return forms[form]


class Talk:
    """One conversation, played round by round. `requests` has the requests so far."""

    def __init__(self, random: Random, store: Store, key: str, system_changes: str = "replace") -> None:
        self.random = random
        self.store = store
        self.conversation = store.open(key)
        self.requests: list[Request] = []
        self.system: Any = "Be kind."
        self.tools: list[Block] = [{"name": "search"}]
        self.options: dict[str, Any] = {}
        self.provider = random.choice(PROVIDERS)
        self.serial = 0
        self.system_changes: Any = system_changes
        self.is_changed = False

    def play(self, rounds: int = 8) -> list[Request]:
        for _ in range(rounds):
            self.change(self.random.choice(OPERATIONS))
            self.ask()
        return self.requests

    def change(self, operation: str) -> None:
        """Change the session or the application, as happens between two questions."""
        random, pick, conversation, serial = self.random, self.random.choice, self.conversation, self.serial
        stored = [each.seq for each in conversation.messages()]
        self.is_changed |= operation not in ("none", "imported", "fork", "restart")
        if operation == "imported":  # an answer as a page or LangChain has it (pi#4526)
            reasoning = pick([{"type": "reasoning", "text": "hm"}, {"type": "reasoning", "reasoning": "hm"}])
            answer = Message.assistant([reasoning, {"type": "text", "text": f"imported {serial}"}])
            conversation.append_messages([Message.user(f"before {serial}"), answer])
        elif operation == "switch":
            self.provider = pick(PROVIDERS)
        elif operation == "model":
            self.provider = pick([each for each in PROVIDERS if each[:2] == self.provider[:2]])
        elif operation == "trim":
            self.options = pick(TRIMS)
        elif operation == "system":
            self.system = f"Be kind. Today is day {serial}."
            if random.random() < 0.3:
                self.system = [{"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}]
        elif operation == "tools":
            self.tools = [*self.tools, {"name": f"tool_{serial}"}]
        elif operation == "compact" and len(stored) > 4:
            conversation.compact(lambda _: Message.system("They talked."))
        elif operation == "fork":
            self.conversation = conversation.fork()
        elif operation == "restart":
            self.conversation = Store(self.store.engine).conversation(conversation.key)
        elif operation == "drop_sent" and stored:
            conversation.edits.drop_sent(before=stored[-1])
        elif operation == "truncate" and len(stored) > 4:
            conversation.truncate(after=stored[-2])
        elif operation in ("redact", "edit", "delete") and stored:
            seqs = [each.seq for each in conversation.messages() if operation != "edit" or each.role == "user"]
            seq = pick(seqs or stored)
            if operation == "edit":
                conversation.edits.update(seq, Message.user(f"edited {serial}"))
            else:
                getattr(conversation.edits, operation)(seq)

    def ask(self) -> None:
        """Append a question, and let the providers answer until no tool is called."""
        random, pick = self.random, self.random.choice
        self.serial += 1
        text: Block = {"type": "text"}
        text["text"] = pick([f"question {self.serial}"] * 25 + [f"half \ud83d of {self.serial}", " "])
        if random.random() < 0.3:
            text["cache_control"] = {"type": "ephemeral"}
        content: Any = [text] if "cache_control" in text else text["text"]
        if random.random() < 0.25:
            content = [text, picture(pick(PICTURES), self.serial)]
        sent = f"[12:00] {content}" if isinstance(content, str) and random.random() < 0.2 else None
        self.conversation.append_message(Message.user(content, sent=sent))
        for _ in range(3):
            self.serial += 1
            if random.random() < 0.1:
                self.provider = pick(PROVIDERS)
            request = self.request()
            before = self.requests[-1] if self.requests and not self.is_changed and not self.options else None
            is_same = before and (before.issuer, before.model) == (request.issuer, request.model)
            request.follows, self.is_changed = before if is_same else None, False
            request.answer = simulated(random, request, self.serial)
            self.requests.append(request)
            self.store_answer(request)
            if not self.run_tools(request.answer):
                return

    def request(self) -> Request:
        format, issuer, model = self.provider
        prompt = self.conversation.history(
            format=format,  # type: ignore[arg-type]
            model=model,
            provider=issuer,
            system=self.system,
            tools=self.tools,
            system_changes=self.system_changes,
            **self.options,
        )
        return Request(format, issuer, model, copy.deepcopy([*prompt]), prompt.system, prompt.tools or (), prompt)

    def store_answer(self, request: Request) -> None:
        fields: dict[str, Any] = {}
        calls: list[Block] = []
        content: Any = copy.deepcopy(request.answer)
        if request.format == "openai":
            fields = {"extra": {"reasoning_content": content[0]["reasoning_content"]}}
            content, calls = content[0]["content"], content[0]["tool_calls"]
        elif request.format == "openai-responses":
            calls = [{**each, "id": each["call_id"]} for each in content if each["type"] == "function_call"]
            content = [each for each in content if each["type"] != "function_call"]
        made = [ToolCall(id=each["id"], name=each["name"], arguments=each["arguments"]) for each in calls]
        answer = Message.assistant(content, tool_calls=made, **fields)
        self.conversation.append_message(answer, request=request.prompt)

    def run_tools(self, answer: list[Block]) -> bool:
        """Append the results of the calls of an answer; return False if it has none."""
        random, pick = self.random, self.random.choice
        calls = list(_calls_of(answer))
        for id, name in calls:
            failed = random.random() < 0.2
            output: Any = f"result {self.serial}"
            if random.random() < 0.15:
                output = [{"type": "text", "text": output}, picture(pick(["anthropic", "mcp"]), self.serial)]
            if random.random() < 0.95:
                result = Message.tool(output, tool_call_id=id or None, name=name, failed=failed)
                self.conversation.append_message(result)
        return bool(calls)


def simulated(random: Random, request: Request, serial: int) -> list[Block]:
    """Return the answer of a provider in its own blocks, each with a text or an input that no other answer has."""
    pick, numbers = random.choice, iter(range(100))
    shape, words = pick(["text", "calls", "calls", "mixed", "native"]), f"answer {serial}" + pick(["", "", "\n"])

    def sealed() -> str:
        return seal(issuer=request.issuer, model=request.model, digest=None, n=f"{serial}.{next(numbers)}")

    def calls(count: int, *fields: str, **more: Any) -> Iterator[Block]:
        for number in range(count):
            loose = ["call_0", ""] * (request.issuer not in ("anthropic", "openai", "xai"))
            id = pick([f"call_{serial}_{number}"] * 4 + loose)
            name = pick(["search", "mcp.read"] if request.format == "gemini" else ["search", "3d_render"])
            yield dict(zip(fields, (id, name, {"n": f"{serial}.{number}"}), strict=True), **more)

    if request.format == "anthropic":
        first, second, third = ({"type": "thinking", "thinking": f"thought {serial}.{n}"} for n in range(3))
        text, uses = (
            {"type": "text", "text": words},
            list(calls(pick([1, 2, 3]), "id", "name", "input", type="tool_use")),
        )
        search = {"type": "server_tool_use", "id": f"srvtoolu_{serial}", "name": "web_search", "input": {"query": "x"}}
        hit = {"type": "web_search_result", "url": "https://a.example", "title": "a", "encrypted_content": "eHg="}
        found = {"type": "web_search_tool_result", "tool_use_id": search["id"], "content": [hit]}
        mixed = [each for pair in zip((first, second, third), uses, strict=False) for each in pair]
        shapes: dict[str, list[Any]] = {
            "text": [first, text],
            "calls": [first, text, *uses],
            "mixed": mixed,
            "native": [first, search, found, text],
        }
        return BoundThinking("old").sign(request, shapes[shape])
    if request.format == "openai-responses":
        reasoning: Block = {"type": "reasoning", "summary": []}
        first, second = ({**reasoning, "id": f"rs_{serial}_{n}", "encrypted_content": sealed()} for n in range(2))
        asked = list(calls(pick([1, 2]), "call_id", "name", "arguments", type="function_call"))
        said: Block = {"type": "output_text", "text": words}
        compaction: Block = {"type": "compaction", "id": f"cmp_{serial}", "encrypted_content": sealed()}
        shapes = {
            "text": [first, said],
            "calls": [first, *asked],
            "mixed": [first, said, second, *asked],
            "native": [compaction, first, said],
        }
        return shapes[shape]
    if request.format == "openai":
        asked = list(calls(pick([1, 2]), "id", "name", "arguments")) if shape in ("calls", "mixed") else []
        return [{"content": words, "reasoning_content": f"thought {serial}", "tool_calls": asked}]
    asked = [{"function_call": each} for each in calls(pick([1, 2, 3]), "id", "name", "args")]
    asked[0]["thought_signature"] = sealed()
    code: list[Block] = [{"executable_code": {"language": "PYTHON", "code": f"code_{serial}()"}}]
    code.append({"code_execution_result": {"outcome": "OUTCOME_OK", "output": f"code_{serial}"}})
    shapes = {"text": [{"text": words}], "calls": asked, "mixed": [{"text": words}, *asked]}
    return shapes.get(shape) or [*code, {"text": words}]


def _calls_of(answer: list[Block]) -> Iterator[tuple[Any, str]]:
    for block in answer:
        call = block.get("function_call") or (block if block.get("type") in ("tool_use", "function_call") else None)
        if call:
            yield call.get("id", call.get("call_id")), call["name"]
        yield from ((each["id"], each["name"]) for each in block.get("tool_calls", []))


def played(random: Random, store: Store, number: int, system_changes: str = "replace") -> list[Request]:
    """Play one conversation and return its requests."""
    return Talk(random, store, f"talk {number}", system_changes).play()
