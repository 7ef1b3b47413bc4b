"""Items of the Responses API for tests."""

from typing import Any

Item = Any

QUESTION: Item = {"role": "user", "content": "Weather in Oslo and Rome?"}
REASONING: Item = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA" * 20}
CALL_OSLO: Item = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city":"Oslo"}',
    "id": "fc_1",
    "status": "completed",
}
CALL_ROME: Item = CALL_OSLO | {"call_id": "call_2", "arguments": '{"city":"Rome"}', "id": "fc_2"}
ANSWER_OSLO: Item = {"type": "function_call_output", "call_id": "call_1", "output": "-3"}
ANSWER_ROME: Item = {
    "type": "function_call_output",
    "call_id": "call_2",
    "output": [{"type": "input_text", "text": "17"}, {"type": "input_image", "image_url": "data:,", "detail": "low"}],
}
SAID: Item = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Oslo -3, Rome 17.", "annotations": [], "logprobs": []}],
}
EXCHANGE: list[Item] = [QUESTION, REASONING, CALL_OSLO, CALL_ROME, ANSWER_OSLO, ANSWER_ROME, SAID]

OTHERS: list[Item] = [
    {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}]},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"}]},
    {"type": "message", "role": "developer", "content": "Be brief."},
    {"role": "system", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "user", "content": []},
    {"role": "user", "content": {"text": "no list"}},
    {"role": "user", "content": [{"type": "text", "text": "of another API"}, "and no block"]},
    {"role": "user", "content": [{"type": "text", "text": 5}]},
    {"role": "user"},
    {"role": "tool", "content": "of another API", "tool_call_id": "call_1"},
    {"role": "record", "content": "a word of ours"},
    {"role": "user", "type": "unknown", "content": "x"},
    {"role": ["user"], "content": "x"},
    {"type": "custom_tool_call", "call_id": "call_3", "name": "grep", "input": "a b"},
    {"type": "custom_tool_call_output", "call_id": "call_3", "output": "found", "id": "ctco_1"},
    {"type": "function_call", "call_id": "call_4", "name": "f", "arguments": {"not": "text"}},
    {"type": "function_call", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "call_5", "name": "f", "arguments": "no JSON", "namespace": None},
    {"type": "function_call", "call_id": "", "name": "", "arguments": ""},
    {"type": "function_call_output", "call_id": "call_4", "output": None},
    {"type": "function_call_output", "call_id": "call_4", "output": {"a": [1, 1.0, True]}, "status": "completed"},
    {"type": "function_call_output", "call_id": 4, "output": "x"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
    {"id": "msg_2", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "type": "message"},
    {},
    [],
    None,
    "text",
    5,
    {"type": "NUL \x00 and half a pair \ud800", "x": 10**400},
    {"type": "function_call", "call_id": "\x00", "name": "\ud800", "arguments": "\x00", "id": "\udfff"},
    {"type": "function_call_output", "call_id": "\x00\ud800", "output": "\x00\ud800"},
    {"role": "user", "content": "\x00 \ud800 \u2028", "\x00": "\udfff"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "\x00", "annotations": [0.1, -0.0, 1e300]}]},
]
