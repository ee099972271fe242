"""Texts as features of a sentence encoder: a stand-in for it where the library is not needed, a miniature elsewhere."""

import json
import socket
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
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


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_text_becomes_what_the_encoder_makes_of_it(tmp_path, load, stand_in, suffix):
    (TABLE.to_csv if suffix == "csv" else TABLE.to_parquet)(tmp_path / f"a.{suffix}", index=False)
    samples = load(split="split", attribute_columns=("client",))
    assert samples.inputs.tolist() == [[8, 4], [3, 0], [13, 4], [4, 0]] and samples.standardise
    assert samples.class_names == ("animal", "fruit") and samples.labels.tolist() == [1, 0, 0, 0]
    assert samples.train.tolist() == [True, True, False, True]
    client = samples.attributes["client"]
    assert client.names == ("7", "11") and client.values.tolist() == [0, 1, 0, 1]
    assert samples.source == f"a.{suffix}, encoded by encoder"


WRONG = [
    ({}, {"text": "words"}, "a.csv: needs one column 'words', has text, label"),
    ({}, {"text": "year"}, "a.csv: column 'year' is int64; it must be texts"),
    ({"text": ["a", None, "b", None]}, {}, "a.csv: 2 of 4 rows lack 'text', the first is row 1; fill or drop them"),
    ({}, {"text": "label"}, "text_table.text = 'label' is the column of something else"),
    ({}, {"encoder": None}, "text_table.encoder is null; name the folder of a sentence encoder"),
    (
        {},
        {"encoder": "sentence/encoder"},
        "sentence/encoder: no such file or folder; put it there and run `pfl compile`",
    ),
    ({}, {"content": "sha256:0"}, "encoder: was changed after the spec was compiled; run `pfl compile`"),
]


@pytest.mark.parametrize("change, options, words", WRONG)
def test_texts_are_refused(tmp_path, load, stand_in, change, options, words):
    TABLE.assign(**change).to_csv(tmp_path / "a.csv", index=False)
    assert words in line_of(load, **options)


def test_a_missing_library_is_named_with_its_extra(load, monkeypatch):
    monkeypatch.setattr("pflcore.datasets.own_texts.find_spec", lambda _: None)
    said = "dataset text_table: needs sentence-transformers; pip install 'pfl-pipeline[text]'"
    assert line_of(load) == said


def write_encoder(folder):
    """Write an encoder of five words, a Transformer of one layer whose outputs are averaged."""
    import tokenizers
    import transformers
    from sentence_transformers import SentenceTransformer, models

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(WORDS, range(5), strict=True)), "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=5, max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder / "plain")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder / "plain")
    body = models.Transformer(str(folder / "plain"), max_seq_length=16)
    SentenceTransformer(modules=[body, models.Pooling(8)], device="cpu").save(str(folder / "encoder"))
    return transformers.BertModel.from_pretrained(folder / "plain").eval()


@pytest.mark.filterwarnings("default")
def test_an_encoder_of_the_library_is_read_from_its_folder_alone(tmp_path, load, monkeypatch):
    """The mean of a Transformer's outputs, by any number of workers, without a network and the folder's code."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    body = write_encoder(tmp_path)
    texts = ["a b c", "c", "b a"] * 200
    pd.DataFrame({"text": texts, "label": [0, 1, 1] * 200}).to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("asks the network"))
    found = []
    for workers in "13":
        monkeypatch.setenv("PFL_WORKERS", workers)
        found.append(load(content=f"sha256:{digest_of(tmp_path / 'encoder')}").inputs)
    assert found[0].tobytes() == found[1].tobytes() and found[0].shape == (600, 8)
    with torch.no_grad():
        outputs = body(torch.tensor([[3, 2]])).last_hidden_state
    np.testing.assert_allclose(found[0][2], outputs[0].mean(0), atol=1e-5)
    assert all(one.isfinite().all() for one in load_file(tmp_path / "encoder/model.safetensors").values())
    parts = json.loads((tmp_path / "encoder/modules.json").read_text())
    (tmp_path / "encoder/mine.py").write_text("raise SystemExit('ran')\n")
    (tmp_path / "encoder/modules.json").write_text(json.dumps([parts[0], {**parts[1], "type": "mine.Pooling"}]))
    assert line_of(load).startswith(f"{tmp_path / 'encoder'}: cannot be read (")
