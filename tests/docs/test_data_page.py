"""The page on data: its recipe for writing shards works with the tokenizers people have."""

import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import transformers

from stepladder.data import TokenShards

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
TEXTS = [f"words of text number {number}" for number in range(50)]


@pytest.fixture
def write_shards():
    (body,) = [
        body
        for body in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "def write_shards" in body
    ]
    names: dict = {}
    exec(body, names)
    return names["write_shards"]


@pytest.mark.parametrize("vocabulary", [400, 70_000])
def test_text_becomes_shards_that_hold_its_documents(tmp_path, write_shards, vocabulary):
    bare = tokenizers.ByteLevelBPETokenizer()
    bare.train_from_iterator(TEXTS, vocab_size=400, special_tokens=["<end>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare._tokenizer, eos_token="<end>"
    )

    def encode(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    end = tokenizer.eos_token_id
    dtype = write_shards(
        TEXTS, encode, tmp_path, end=end, vocabulary=vocabulary, tokens_per_shard=100
    )
    assert dtype == ("uint16" if vocabulary == 400 else "uint32")
    assert len(list(tmp_path.iterdir())) > 1
    source = TokenShards(tmp_path, 20, dtype=dtype, document_end=end)
    inputs, _ = source.fetch(np.arange(len(source)))
    ids = inputs["tokens"].flatten().tolist()
    whole = [id for text in TEXTS for id in [*encode(text), end]]
    assert ids == whole[: len(ids)]
    assert tokenizer.decode(ids[: ids.index(end)]) == TEXTS[0]
    assert (inputs["positions"] == 0).sum() > len(source)
