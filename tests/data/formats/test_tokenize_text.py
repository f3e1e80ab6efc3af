"""Text as a tokenizer's ids or as bytes, and ids that the model does not know."""

import numpy as np
import pytest
import tokenizers

from stepladder.data import open_source, text_corpus
from stepladder.errors import DataError
from stepladder.plan.recipe import DataChoice

TEXTS = [f"words of text number {number} and of others" for number in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some text, and a tokenizer trained on it beside it."""
    made = tmp_path_factory.mktemp("text")
    (made / "text").mkdir()
    for number, text in enumerate(TEXTS):
        (made / "text" / f"{number:02d}.txt").write_text(text)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXTS, vocab_size=300)
    tokenizer.save(str(made / "tokenizer.json"))
    return made


def opened(folder, vocabulary=300, beside="", **choice):
    given = DataChoice(**{"source": f"text:{folder / 'text'}", **choice})
    return open_source(given, length=8, vocabulary=vocabulary, split="train", tokenizer=beside)


def test_ids_are_the_tokenizers_and_documents_begin_where_files_do(folder):
    source = opened(folder, tokenizer=str(folder), packed=True)
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole = [id for text in TEXTS for id in known.encode(text, add_special_tokens=False).ids]
    inputs, _ = source.fetch(np.arange(len(source)))
    ids = inputs["tokens"].flatten().tolist()
    assert len(ids) > 100 and ids == whole[: len(ids)]
    second = len(known.encode(TEXTS[0], add_special_tokens=False).ids)
    assert inputs["positions"].flatten()[second] == 0


def test_the_models_own_is_used_unless_another_or_bytes_are_asked_for(folder):
    beside = str(folder / "tokenizer.json")
    encoded, plain = opened(folder, beside=beside), opened(folder)
    assert len(encoded) < len(plain)
    assert len(opened(folder, beside=beside, tokenizer="bytes")) == len(plain)
    assert len(opened(folder, tokenizer=beside)) == len(encoded)


def test_ids_that_the_model_does_not_know_are_refused(folder):
    size = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    said = f"makes {size} different tokens and the model knows {size - 1}"
    with pytest.raises(DataError, match=said):
        opened(folder, vocabulary=size - 1, tokenizer=str(folder))
    with pytest.raises(DataError, match="text is read as bytes, of which there are 256"):
        opened(folder, vocabulary=64)


def test_a_tokenizer_is_a_file_that_can_be_read_and_is_for_text(folder):
    with pytest.raises(DataError, match=r"data.tokenizer: .*nowhere cannot be read"):
        opened(folder, tokenizer=str(folder / "nowhere"))
    with pytest.raises(DataError, match="says nothing of 'digits', which is not text"):
        opened(folder, tokenizer=str(folder), source="digits")


def test_a_limit_counts_bytes_of_text(folder):
    source = text_corpus(folder / "text", length=4, limit_bytes=60)
    assert bytes(source.tokens.tolist()) == "".join(TEXTS).encode()[:60][:54]
