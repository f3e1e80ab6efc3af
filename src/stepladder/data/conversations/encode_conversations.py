"""Encoding a conversation: its token ids, and which of them are an answer.

A tokenizer's own chat template writes the text, in transformers' sandbox. The answers are found in
that text: by `{% generation %}` in the template, or else as what each answer adds to the template's
text of the turns before it. Without a template an instruction is its prompt, a new line and its
answer, a conversation one line a turn, and every answer ends with the tokenizer's end token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.data.formats.data_files import read_bytes
from stepladder.data.formats.optional_packages import import_optional
from stepladder.data.formats.tokenize_text import BYTES, open_tokenizer
from stepladder.errors import DataError

from .read_conversations import KNOWN_ROLES, Conversation, Turn

FIELD = "data.tokenizer"
SETTINGS, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
Span = tuple[int, int]  # characters of the text


@dataclass(frozen=True)
class ConversationEncoder:
    """A tokenizer, with the chat template that came with it."""

    tokenizer: Any = None  # of the tokenizers library; None: bytes
    template: str = ""
    special: tuple[tuple[str, str], ...] = ()  # such as ("eos_token", "</s>")

    @classmethod
    def open(cls, name: str, vocabulary: int) -> ConversationEncoder:
        """The encoder of a tokenizer.json or its folder, or of bytes."""
        if name == BYTES:
            return cls()
        tokenizer = open_tokenizer(name, vocabulary)
        path = Path(name).expanduser()
        folder = path if path.is_dir() else path.parent
        settings = read_settings(folder / SETTINGS)
        special = {key: token_text(value) for key, value in settings.items() if "_token" in key}
        return cls(tokenizer, read_template(folder, settings), tuple(sorted(special.items())))

    @property
    def end(self) -> str:
        """What ends an answer where no template says it."""
        return dict(self.special).get("eos_token") or "\n"

    def encode(self, conversation: Conversation) -> tuple[np.ndarray, np.ndarray]:
        """The ids, and whether each belongs to an answer."""
        text, spans = self.write(conversation)
        ids, firsts, ends = self.tokens(text)
        answers = np.zeros(len(ids), bool)
        learned = spans[conversation.known_answers :]
        for (
            begin,
            end,
        ) in learned:  # a token that begins with the space before belongs to the answer
            answers |= (ends > begin) & (firsts < end)
        return ids, answers

    def check_roles(self, conversation: Conversation) -> None:
        """Refuse a role that nobody knows: a misspelt answer would not be learned."""
        for turn in conversation.turns:
            if turn.role not in KNOWN_ROLES and turn.role not in self.template:
                who = "the chat template" if self.template else "anybody"
                problem = f"{conversation.where} has the role '{turn.role}', unknown to {who}"
                raise DataError("data.source", problem, f"Use {', '.join(KNOWN_ROLES)}.")

    def write(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """The text, and where its answers stand."""
        self.check_roles(conversation)
        if self.template:
            return self.write_by_template(conversation)
        text, spans = "", []
        for turn in conversation.turns:
            before = "" if conversation.instruction else f"{turn.role}:"
            between = "" if conversation.instruction else " "  # what a tokenizer joins to a word
            after = self.end if turn.is_answer else "\n"
            begin = len(text) + len(before)
            text = f"{text}{before}{between}{turn.content}{after}"
            if turn.is_answer:
                spans.append((begin, len(text)))
        return text, spans

    def write_by_template(self, conversation: Conversation) -> tuple[str, list[Span]]:
        turns = conversation.turns
        try:
            if MARKED.search(self.template):
                return self.marked_text(turns)
            text, spans = self.text(turns), []
            for number, turn in enumerate(turns):
                if turn.is_answer:
                    before = self.text(turns[:number], opens_answer=True)
                    after = self.text(turns[: number + 1])
                    if not (text.startswith(before) and text.startswith(after)):
                        raise DataError(*self.unfit(conversation))
                    spans.append((len(before), len(after)))
            return text, spans
        except DataError:
            raise
        except Exception as refused:  # whatever a template raises, or jinja of it
            problem = f"{conversation.where} does not suit the chat template ({refused})"
            raise DataError(FIELD, problem, "Mend the line, or the template.") from refused

    def unfit(self, conversation: Conversation) -> tuple[str, str, str]:
        problem = f"the chat template writes earlier turns anew in {conversation.where}"
        return FIELD, problem, "Put {% generation %} around answers in it, or give one answer."

    def text(self, turns: Sequence[Turn], *, opens_answer: bool = False) -> str:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        if not messages:
            return ""
        return self.writer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opens_answer
        )

    def marked_text(self, turns: Sequence[Turn]) -> tuple[str, list[Span]]:
        """By a template that marks its answers."""
        render = import_optional(
            "transformers.utils.chat_template_utils", field=FIELD, install="stepladder[hf]"
        ).render_jinja_template
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        texts, spans = render(
            conversations=[messages],
            chat_template=self.template,
            return_assistant_tokens_mask=True,
            **dict(self.special),
        )
        return texts[0], [(begin, end) for begin, end in spans[0]]

    @cached_property
    def writer(self) -> Any:
        """What transformers makes of the tokenizer: it knows how templates are called."""
        library = import_optional("transformers", field=FIELD, install="stepladder[hf]")
        known = {key: text for key, text in self.special if key in ("bos_token", "eos_token")}
        return library.PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer, chat_template=self.template, **known
        )

    def tokens(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids, and the characters at which each begins and ends."""
        if self.tokenizer is None:
            each = [letter.encode(errors="replace") for letter in text]
            ids = np.frombuffer(b"".join(each), np.uint8).astype(np.int32)
            firsts = np.repeat(np.arange(len(each)), [len(one) for one in each])
            return ids, firsts, firsts + 1
        found = self.tokenizer.encode(text, add_special_tokens=False)
        places = np.array(found.offsets, np.int64).reshape(-1, 2)
        return np.array(found.ids, np.int32), places[:, 0], places[:, 1]


def read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        held = json.loads(read_bytes(path, FIELD))
    except ValueError as broken:
        raise DataError(FIELD, f"'{path}' is not JSON ({broken})", "Mend it.") from broken
    return held if isinstance(held, dict) else {}


def read_template(folder: Path, settings: dict[str, Any]) -> str:
    """The chat template: a file of its own, or in the settings; empty: none."""
    if (folder / TEMPLATE).is_file():
        return read_bytes(folder / TEMPLATE, FIELD).decode(errors="replace")
    found = settings.get("chat_template") or ""
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default") or ""
    return str(found)


def token_text(value: Any) -> str:
    """A special token, which settings write as a text or as an object with one."""
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")
