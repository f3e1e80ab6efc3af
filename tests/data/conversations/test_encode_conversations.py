"""Which tokens of a conversation are answers, with and without a chat template."""

import json

import pytest

from stepladder.data.conversations.encode_conversations import ConversationEncoder
from stepladder.data.conversations.read_conversations import Conversation, Turn
from stepladder.errors import DataError

tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")

TURNS = (
    Turn("system", "be brief"),
    Turn("user", "two and two?"),
    Turn("assistant", "four"),
    Turn("user", "and one?"),
    Turn("assistant", "five it is"),
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "A:{% generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}Q: {{ message.content }}\n{% endif %}{% endfor %}"
)
LAST_ONLY = (  # as templates that leave out the thinking of earlier answers
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% if loop.last and message.role == 'assistant' %} (thought){% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["two and two? four and one? five it is"] * 9, vocab_size=300)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "</s>", "<s>"])
    tokenizer.save(str(made / "tokenizer.json"))
    return made


def opened(folder, template="", **settings):
    special = {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}
    table = {**special, **settings, **({"chat_template": template} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(table))
    return ConversationEncoder.open(str(folder / "tokenizer.json"), 512)


def answers(encoder, turns, **how):
    """The text of each stretch of answer tokens, read back by the tokenizer itself."""
    ids, learned = encoder.encode(Conversation(tuple(turns), "line 1", **how))
    stretches, open_now = [], False
    for token, one in zip(ids.tolist(), learned.tolist(), strict=True):
        if one and not open_now:
            stretches.append([])
        open_now = one
        if one:
            stretches[-1].append(token)
    if encoder.tokenizer is None:
        return [bytes(one).decode() for one in stretches]
    return [encoder.tokenizer.decode(one, skip_special_tokens=False) for one in stretches]


def test_the_answers_of_a_chat_template_are_what_they_add_to_the_turns_before(folder):
    encoder = opened(folder, CHATML)
    pytest.importorskip("transformers", reason="needs the package transformers")
    assert answers(encoder, TURNS) == ["four<|im_end|>\n", "five it is<|im_end|>\n"]
    whole = encoder.tokenizer.decode(
        encoder.encode(Conversation(TURNS, "line 1"))[0].tolist(), skip_special_tokens=False
    )
    assert whole.startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n")


def test_a_template_that_marks_its_answers_is_believed(folder):
    pytest.importorskip("transformers", reason="needs the package transformers")
    assert answers(opened(folder, MARKED), TURNS) == [" four</s>", " five it is</s>"]


def test_several_templates_have_a_default_and_a_file_of_its_own_comes_first(folder):
    several = [{"name": "tools", "template": "T"}, {"name": "default", "template": CHATML}]
    assert opened(folder, several).template == CHATML
    (folder / "chat_template.jinja").write_text(MARKED)
    assert opened(folder, CHATML).template == MARKED
    (folder / "chat_template.jinja").unlink()


def test_without_a_template_an_answer_ends_with_the_end_token(folder):
    assert answers(opened(folder), TURNS) == [" four</s>", " five it is</s>"]
    assert answers(opened(folder), TURNS[1:3], instruction=True) == ["four</s>"]
    assert answers(ConversationEncoder.open("bytes", 256), TURNS[1:3]) == [" four\n"]


def test_letters_of_several_bytes_do_not_move_the_answer():
    turns = (Turn("user", "zwölf · 2?"), Turn("assistant", "größer als 20"))
    assert answers(ConversationEncoder.open("bytes", 256), turns) == [" größer als 20\n"]


def test_a_template_that_rewrites_earlier_turns_is_refused(folder):
    pytest.importorskip("transformers", reason="needs the package transformers")
    encoder = opened(folder, LAST_ONLY)
    with pytest.raises(DataError, match=r"writes earlier turns anew in line 1\. Put \{% gener"):
        encoder.encode(Conversation(TURNS, "line 1"))
    assert answers(encoder, TURNS[:3]) == [" four (thought)"]


def test_a_template_that_raises_is_named_with_the_line(folder):
    pytest.importorskip("transformers", reason="needs the package transformers")
    strict = "{{ raise_exception('only users may begin') }}"
    with pytest.raises(DataError, match="does not suit the chat template .only users may begin"):
        opened(folder, strict).encode(Conversation(TURNS, "line 1"))


@pytest.mark.parametrize("template", ["", CHATML])
def test_a_role_that_nobody_knows_is_named_with_its_line(folder, template):
    turns = (*TURNS[:2], Turn("asistant", "four"), *TURNS[3:])
    with pytest.raises(DataError, match="line 1 has the role 'asistant', unknown to"):
        opened(folder, template).encode(Conversation(turns, "line 1"))


def test_a_template_may_name_a_role_of_its_own(folder):
    pytest.importorskip("transformers", reason="needs the package transformers")
    encoder = opened(folder, "{# critic #}" + CHATML)
    turns = (Turn("critic", "be brief"), *TURNS[1:3])
    assert answers(encoder, turns) == ["four<|im_end|>\n"]


def test_a_tokenizer_that_cuts_and_fills_its_texts_takes_them_whole_here(folder, tmp_path):
    cutting = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    cutting.enable_truncation(4)
    cutting.enable_padding(length=6)
    cutting.save(str(tmp_path / "tokenizer.json"))
    whole = opened(folder).encode(Conversation(TURNS, "line 1"))[0]
    encoder = ConversationEncoder.open(str(tmp_path), 512)
    found = encoder.encode(Conversation(TURNS, "line 1"))[0]
    assert len(found) >= len(whole) > 6


def test_settings_that_are_not_json_are_refused(folder):
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match="tokenizer_config.json' is not JSON"):
        ConversationEncoder.open(str(folder), 512)
