"""The methods of the room."""

from collections.abc import Sequence
from typing import Any, Literal

from lango_store import window
from lango_store._parts.groups import SessionPart
from lango_store._rooms.prompts import instructions, reading
from lango_store._rooms.prompts.instructions import SystemChanges
from lango_store.content import RESPONSES
from lango_store.window.providers import format_of


class InConversation(SessionPart):
    """Adds the members of the room to `Conversation`."""

    def history(
        self,
        *,
        format: window.Format | None = None,
        model: str | None = None,
        provider: str | None = None,
        system: Any = None,
        tools: Sequence[Any] | None = None,
        system_changes: SystemChanges = "replace",
        last: int | None = None,
        max_tokens: int | None = None,
        step: int | None = None,
        step_tokens: int | None = None,
        from_consolidated: bool = False,
        nested: bool = True,
        unanswered: Literal["close", "keep"] = "close",
    ) -> window.Prompt:
        """Return the end of the window as a prompt in the format of a provider.

        The provider accepts the prompt, whatever the log contains: for example, each call has one result, which
        directly follows the call. `Prompt.repairs` lists what differs from the log. The log does not change. If a limit
        cuts the window, the prompt starts with a user message, if it has one, or with a summary.

        System and developer messages at the start of the window are part of every prompt, except with
        `from_consolidated`.

        For the same arguments, the prompt is the previous one plus the new messages, byte for byte, in any process and
        on both databases, unless

        - a limit or a step moved the start, or had cut the window to a part without a user message that now has one;
        - messages were cut, edited, redacted or compacted, such a change was undone, or `edits.drop_sent` removed
          their `sent`;
        - a result or a user message was stored where this method had added one;
        - `system`, `tools`, the model or the provider changed, or thinking was left out for another reason;
        - two answers follow each other in the format "gemini", where they are parts of one content.

        Args:
            format: "openai" (chat completions), "openai-responses", "anthropic" or "gemini". Defaults to that of the
                model: "anthropic" for Claude, "gemini" for Gemini, otherwise "openai". In "openai-responses", the
                reasoning and other items that `LangoSession` stores as records are parts of the prompt, and no limit
                counts them.
            model: The model that gets the prompt. Its rules decide which thinking the prompt has. Defaults to an
                unknown model, for which the strictest rules of the format are used.
            provider: The provider that gets the prompt, such as `bedrock` or `deepseek`. Thinking of other providers is
                left out. Defaults to the vendor of the format.
            system: Instructions before those of the log: text or, for Anthropic, blocks. Defaults to those of the last
                request whose answer was appended with `request=`.
            tools: The tools, as a list of JSON. Defaults to those of the same request.
            system_changes: If `system` differs from that of the last request: "replace" (default) uses it, and leaves
                out thinking that is bound to the former one; "append" keeps the former one, and adds a message with the
                new one at the end; "error" raises `InstructionsChanged`, also if `tools` differ.
            last: The maximum number of messages, not counting instructions at the start. If these messages are only
                instructions or results of tools, the prompt reaches back to the last message of the user or the model.
                Defaults to no limit.
            max_tokens: The maximum number of tokens, including instructions at the start; if they have more, the prompt
                has nothing else. Needs messages with `tokens`, or a store with a `token_counter`. Defaults to no limit.
            step: With `last`: if the window is longer, start the prompt after a `seq` that is a multiple of this
                number. The start then moves rarely, so that a provider's cache recognizes the prompt. The prompt has up
                to `last + step - 1` messages.
            step_tokens: With `max_tokens`: as `step`, but the start moves at multiples of this many tokens. May not
                exceed `max_tokens`. Needs messages with `tokens`.
            from_consolidated: Leave out the first `last_consolidated` messages of the session. Your application sets
                this number with `update` when a memory outside the store has processed these messages.
            nested: True (default) returns tool calls in OpenAI's nested form. With False, only with the format
                "openai", tool calls are flat and as they are stored, and contents that consist only of text blocks
                become text.
            unanswered: "close" (default) adds messages: for each tool call without a result, a result which says that
                the tool did not finish; and, if no user message follows, a user message after an interrupted answer
                and, for Claude models since 4.6, after an answer at the end. The added messages are not stored, and no
                limit counts them. "keep" adds none.

        Returns:
            A list of dicts, with the attributes `system`, `tools` and `repairs`. Pass it to `append_message` or to
            `RunningTurn.append` as `request=`, together with the answer, so that later prompts keep its thinking. In
            the format "openai", each dict has `role`, `content`, and, if set, `tool_calls`, `tool_call_id` and `name`.
            If a message has `sent`, it is the content.

        Raises:
            InstructionsChanged: `system` or `tools` differ from those of the last request, with
                `system_changes="error"`.
            ValueError: A format, a limit or a step is invalid, or a message has no token count.
        """
        budget = reading.Budget(last, max_tokens, step, step_tokens)
        if format is None:
            format = "openai" if model is None else format_of(model)
        binds = format == "anthropic"
        records = RESPONSES.records if format == RESPONSES.name else ""
        several = from_consolidated or max_tokens is not None or binds or bool(records)
        read = self._context.read_together if several else self._context.read
        excerpt = read(
            reading.history,
            self.key,
            budget,
            from_consolidated=from_consolidated,
            count=self._context.token_counter,
            binds=binds,
            records=records,
        )
        sent = instructions.NOTHING
        if system is not None or tools is not None or excerpt.instructions is not None:
            sent = instructions.settle(self.key, excerpt, system, tools, system_changes)
        prompt = window.prompt(
            [*excerpt.messages, *sent.notes],
            format,
            nested=nested,
            unanswered=unanswered,
            recorded=excerpt.recorded,
            model=model,
            provider=provider,
            system=sent.system,
            tools=sent.tools,
            is_intact=lambda message: sent.is_same and excerpt.is_intact(message),
        )
        prompt.notes = [*sent.records, *sent.notes]
        return prompt
