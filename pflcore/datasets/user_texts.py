"""A user's own texts, as the features that a frozen sentence encoder makes of them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from pflcore.data.preparation import track
from pflcore.data.samples import Inputs, Samples, as_floats
from pflcore.data.workers import parallel_map
from pflcore.datasets import DATASETS
from pflcore.datasets._files import reading
from pflcore.datasets.user_arrays import UserTable
from pflcore.errors import UserError
from pflcore.files import find_unchanged
from pflcore.memory import worker_count
from pflcore.options import option

_CHUNK = 256  # texts that are encoded together, in batches of similar lengths


@DATASETS.register
class TextTable(UserTable):
    """Your own texts in a CSV or Parquet file, encoded once by a frozen sentence encoder; no code needed.

    A row has a text and its label. The sample is the embedding of the text, an array of floats, so any backbone for
    features fits. The encoder is a folder that sentence-transformers has saved, in the project; nothing is downloaded,
    and no code in the folder runs. The content of its files is part of a run's identity. Texts that are longer than the
    encoder reads are cut. It needs the extra `text`, but not for generated samples.
    """

    name = "text_table"
    citation = "none: the user's own texts"
    smoke: ClassVar[dict[str, Any]] = {"encoder": None}

    text: str = option("text", help="The column of the texts.")
    encoder: str | None = option(
        None, help="The folder of the encoder, such as encoders/all-MiniLM-L6-v2; null: for generated samples alone."
    )
    content: str | None = option(None, later=True, help="The SHA-256 of the encoder, noted when a spec is compiled.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text in self.other_columns:
            raise UserError(f"{self.name}.text = {self.text!r} is the column of something else; name that of the texts")

    def load(self, folder: Path) -> Samples:
        if self.encoder is None:
            raise UserError(f"{self.name}.encoder is null; name the folder of a sentence encoder")
        encoder = find_unchanged(self.encoder, self.content)
        if find_spec("sentence_transformers") is None:
            raise UserError(f"dataset {self.name}: needs sentence-transformers; pip install 'pfl-pipeline[text]'")
        path = self.find(folder)
        table = self.read(path, (self.text,))
        columns, train = self.metadata(table, (self.text,), path)
        texts = table[self.text]
        if texts.type not in (pa.string(), pa.large_string()):
            raise UserError(f"{path}: column {self.text!r} is {texts.type}; it must have texts")
        inputs = _encode(texts.to_pylist(), encoder)
        return self.assemble(path, inputs, train, columns, f", encoded by {encoder.name}")


def _encode(texts: list[str], encoder: Path) -> Inputs:
    """Return the embeddings of texts, float32 [n, d]. A GPU is used if there is one and `$PFL_DEVICE` allows it.

    Safetensors alone are read, and no code of the folder is run.
    """
    import torch

    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
    from sentence_transformers import SentenceTransformer

    device = os.environ.get("PFL_DEVICE") or "auto"
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chunks = [texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK)]
    workers = min(worker_count(), len(chunks)) if device == "cpu" else 1
    advance, threads = track(f"encoding by {encoder.name}", len(texts)), torch.get_num_threads()
    options = {"model_kwargs": {"use_safetensors": True}, "trust_remote_code": False, "local_files_only": True}
    results = []
    with reading(encoder, "put a folder there that sentence-transformers has saved as safetensors"):
        model = SentenceTransformer(str(encoder), device=device, **options)
        torch.set_num_threads(1)
        try:
            for embeddings in parallel_map(model.encode, chunks, workers):
                results.append(embeddings)
                advance(len(embeddings))
        finally:
            torch.set_num_threads(threads)
    return as_floats(np.concatenate(results), str(encoder))
