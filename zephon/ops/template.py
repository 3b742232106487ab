"""Chat templates: Jinja with a ``generation`` block, rendered to parts of text.

Marks travel through the template as noncharacters, which no text may contain: one opens a supervised span, one closes
it, and one is put inside every spelling of a special token in a message, so that after the template only the
template's own spellings are special tokens.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from zephon.errors import ConfigError
from zephon.ops.chat_parts import ChatPart, ContentParts, Unrenderable
from zephon.ops.tokenizers import Tokenizer
from zephon.types import Json

_OPEN, _CLOSE, _ORDINARY, _BOS, _EOS = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3", "\ufdd4"
_MARKS = re.compile("[\ufdd0-\ufdd4]")


class _Generation(jinja2.ext.Extension):
    """``{% generation %} what the model learns {% endgeneration %}``."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja wants it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


class Renderer:
    """A template with a tokenizer's special tokens.

    Args:
        template: Jinja source.
        tokenizer: whose special tokens the template may spell.
        variables: further variables of the template.

    Raises:
        ConfigError: the template has a syntax error, or no tokenizer token can be found.
    """

    def __init__(self, template: str, tokenizer: Tokenizer, variables: Json) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            undefined=jinja2.ChainableUndefined,
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = self._no_clock
        self._dates = re.findall(r"set\s+(\w+)\s*=\s*strftime_now", template)
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template is not Jinja: {error.message} (line {error.lineno})",
                remedy="repair the template",
            ) from error
        self.has_tags = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
        spellings = special_tokens(tokenizer)
        by_id = {token: spelling for spelling, token in reversed(spellings.items())}
        self._ids = dict(spellings)
        self._variables = dict(variables)
        for name, token, mark in (("bos_token", tokenizer.bos_id, _BOS), ("eos_token", tokenizer.eos_id, _EOS)):
            if token is not None:
                spelling = by_id.get(token, mark)
                self._ids[spelling] = token
                self._variables[name] = spelling
        longest = sorted(self._ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest))) if longest else None
        inner = [re.escape(spelling) for spelling in longest if len(spelling) > 1]
        self._inside = re.compile("|".join(inner)) if inner else None

    def check_clock(self) -> None:
        """Raises ConfigError where the template asks for today's date of a short chat."""
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        with contextlib.suppress(Unrenderable):
            self._render(chat, None, prompt=False)

    def by_tags(self, chat: Sequence[Json], tools: object) -> list[ChatPart]:
        """Spans from ``{% generation %}``."""
        text = self._render(chat, tools, prompt=False)
        parts: list[ChatPart] = []
        at, span, inside = 0, 0, False
        for mark in re.finditer(f"[{_OPEN}{_CLOSE}]", text):
            self._cut(text[at : mark.start()], inside, span, parts)
            if (mark.group() == _OPEN) == inside:
                raise Unrenderable("generation blocks inside each other")
            inside, at = not inside, mark.end()
            span += inside
        self._cut(text[at:], False, span, parts)
        return parts

    def by_difference(self, chat: Sequence[Json], tools: object) -> list[ChatPart]:
        """Spans from what each assistant message adds to the text before it."""
        whole = self._plain(chat, tools, prompt=False)
        parts: list[ChatPart] = []
        at = span = 0
        for i, message in enumerate(chat):
            if message["role"] != "assistant":
                continue
            before, after = self._before(chat, i, tools), self._plain(chat[: i + 1], tools, prompt=False)
            if not (whole.startswith(after) and after.startswith(before) and len(before) >= at):
                raise Unrenderable(
                    f"with message {i} the text before it changes, so that no difference is its own; "
                    "mark spans with {% generation %} in the template"
                )
            span += 1
            self._cut(whole[at : len(before)], False, 0, parts)
            self._cut(whole[len(before) : len(after)], True, span, parts)
            at = len(after)
        self._cut(whole[at:], False, 0, parts)
        return parts

    def _before(self, chat: Sequence[Json], i: int, tools: object) -> str:
        """The text in front of message i, with the assistant's header where the template gives one."""
        prompted = self._plain(chat[:i], tools, prompt=True)
        after = self._plain(chat[: i + 1], tools, prompt=False)
        return prompted if after.startswith(prompted) else self._plain(chat[:i], tools, prompt=False)

    def _plain(self, chat: Sequence[Json], tools: object, *, prompt: bool) -> str:
        return re.sub(f"[{_OPEN}{_CLOSE}]", "", self._render(chat, tools, prompt=prompt))

    def _render(self, chat: Sequence[Json], tools: object, *, prompt: bool) -> str:
        try:
            return self._template.render(
                messages=self._ordinary(list(chat)),
                tools=self._ordinary(tools) if tools else None,
                add_generation_prompt=prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise Unrenderable(f"{type(error).__name__}: {error}") from error

    def _no_clock(self, *_: object) -> None:
        names = self._dates or ["date_string"]
        raise ConfigError(
            "the chat template asks for today's date (strftime_now)",
            follows="the same document would be another one tomorrow",
            remedy=f'give it a date that stays: chat_template_kwargs={{"{names[0]}": "26 Jul 2024"}}, if the template asks '
            "whether that is defined; else put the date into a template of your own",
        )

    def _ordinary(self, value: Any) -> Any:
        """Messages in which no spelling of a special token is left whole."""
        if isinstance(value, str):
            if _MARKS.search(value):
                raise Unrenderable("a message holds a noncharacter (U+FDD0 to U+FDD4)")
            inside = self._inside
            return inside.sub(lambda m: m.group()[0] + _ORDINARY + m.group()[1:], value) if inside else value
        if isinstance(value, dict):
            message = {self._ordinary(k): self._ordinary(v) for k, v in value.items()}
            if isinstance(message.get("content"), list) and "role" in message:
                message["content"] = ContentParts(message["content"])
            return message
        if isinstance(value, (list, tuple)):
            return [self._ordinary(item) for item in value]
        return value

    def _cut(self, text: str, learned: bool, span: int, parts: list[ChatPart]) -> None:
        at = 0
        for special in self._special.finditer(text) if self._special else ():
            self._text(text[at : special.start()], learned, span, parts)
            parts.append(ChatPart("", self._ids[special.group()], learned, span))
            at = special.end()
        self._text(text[at:], learned, span, parts)

    def _text(self, text: str, learned: bool, span: int, parts: list[ChatPart]) -> None:
        text = text.replace(_ORDINARY, "")
        if text:
            parts.append(ChatPart(text, None, learned, span))


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Spelling to id of the tokens that the definition calls special."""
    if not tokenizer.definition:
        return {}
    added = json.loads(tokenizer.definition).get("added_tokens", [])
    return {token["content"]: int(token["id"]) for token in added if token.get("special")}


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
