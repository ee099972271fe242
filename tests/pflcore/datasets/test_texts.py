"""Texts as features of a sentence encoder: a stand-in for it where the library is not needed, a miniature elsewhere."""

import json
import socket
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from support.mistakes import line_of

from pflcore.datasets import DATASETS
from pflcore.files import digest_of

TABLE = pd.DataFrame(
    {
        "text": ["a banana", "bee", "an ant, a cat", "dodo"],
        "label": ["fruit", "animal", "animal", "animal"],
        "client": [7, 11, 7, 11],
        "split": ["train", "train", "test", "train"],
        "year": [1, 2, 3, 4],
    }
)
WORDS = ["[PAD]", "[UNK]", "a", "b", "c"]


class Counting:
    """An encoder that counts the letters of a text, and among them those that are a."""

    def __init__(self, folder, **_):
        self.folder = folder

    def encode(self, texts):
        return np.array([[len(text), text.count("a")] for text in texts], np.float32)


@pytest.fixture
def stand_in(monkeypatch):
    module = ModuleType("sentence_transformers")
    module.__spec__, module.SentenceTransformer = ModuleSpec(module.__name__, None), Counting
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def load(tmp_path, monkeypatch):
    (tmp_path / "encoder").mkdir()
    monkeypatch.chdir(tmp_path)
    return lambda **options: DATASETS.create("text_table", **{"encoder": "encoder", **options}).load(tmp_path)


def test_a_text_becomes_what_the_encoder_makes_of_it(tmp_path, load, stand_in):
    TABLE.to_csv(tmp_path / "a.csv", index=False)
    samples = load(split="split", attribute_columns=("client",))
    assert samples.inputs.tolist() == [[8, 4], [3, 0], [13, 4], [4, 0]] and samples.standardise
    assert samples.class_names == ("animal", "fruit") and samples.labels.tolist() == [1, 0, 0, 0]
    assert samples.train.tolist() == [True, True, False, True]
    client = samples.attributes["client"]
    assert client.names == ("7", "11") and client.values.tolist() == [0, 1, 0, 1]
    assert samples.source == "a.csv, encoded by encoder"
    lines = ["a line\n" * 10**5, "a\n"] * 2  # longer than what the reader of CSV files reads at once
    TABLE.assign(text=lines).to_csv(tmp_path / "a.csv", index=False)
    assert load().inputs[:2].tolist() == [[7 * 10**5, 10**5], [2, 1]]


WRONG = [
    ({"text": "words"}, "a.csv: needs one column 'words', has text, label"),
    ({"text": "year"}, "a.csv: column 'year' is int64; it must have texts"),
    ({"text": "label"}, "text_table.text = 'label' is the column of something else"),
    ({"encoder": None}, "text_table.encoder is null; name the folder of a sentence encoder"),
    ({"encoder": "sentence/encoder"}, "sentence/encoder: no such file or folder; put it there and run `pfl compile`"),
    ({"content": "sha256:0"}, "encoder: was changed after the spec was compiled; run `pfl compile`"),
]


def test_texts_are_refused(tmp_path, load, stand_in, monkeypatch):
    TABLE.to_csv(tmp_path / "a.csv", index=False)
    for options, words in WRONG:
        assert words in line_of(load, **options)
    monkeypatch.setattr("pflcore.datasets.user_texts.find_spec", lambda _: None)
    assert line_of(load).endswith("needs sentence-transformers; pip install 'pfl-pipeline[text]'")


def write_encoder(folder):
    """Write an encoder of five words, a Transformer of one layer whose outputs are averaged; return the Transformer."""
    import tokenizers
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(WORDS, range(5), strict=True)), "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    body = transformers.BertModel(transformers.BertConfig(vocab_size=5, max_position_embeddings=16, **sizes))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    for part in (body, fast):
        part.save_pretrained(folder / "plain")
    modules = [Transformer(str(folder / "plain")), Pooling(8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "encoder"))
    return body.eval()


def test_an_encoder_of_the_library_is_read_from_its_folder_alone(tmp_path, load, monkeypatch):
    """The mean of a Transformer's outputs, by any number of workers, without a network and the folder's code."""
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    body, folder = write_encoder(tmp_path), tmp_path / "encoder"
    table = pd.DataFrame({"text": ["a b c", "c", "b a"] * 200, "label": [0, 1, 1] * 200})
    table.to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("asks the network"))
    inputs = []
    for workers in "13":
        monkeypatch.setenv("PFL_WORKERS", workers)
        inputs.append(load(content=f"sha256:{digest_of(folder)}").inputs)
    assert inputs[0].tobytes() == inputs[1].tobytes() and inputs[0].shape == (600, 8)
    with torch.no_grad():
        outputs = body(torch.tensor([[3, 2]])).last_hidden_state
    np.testing.assert_allclose(inputs[0][2], outputs[0].mean(0), atol=1e-5)
    parts = json.loads((folder / "modules.json").read_text())
    (folder / "mine.py").write_text("raise SystemExit('ran')\n")
    (folder / "modules.json").write_text(json.dumps([parts[0], {**parts[1], "type": "mine.Pooling"}]))
    assert line_of(load).startswith(f"{folder}: cannot be read (")
