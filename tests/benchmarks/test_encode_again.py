"""Images that go through JPEG once more change about as much as the first time, and labels not at all."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "benchmarks/encode_again.py"


def encode_again(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, source, target], capture_output=True, text=True)


def jpeg(pixels: Any) -> bytes:
    stored = io.BytesIO()
    Image.fromarray(pixels).save(stored, "JPEG", quality=75)
    return stored.getvalue()


def decoded(images: list[bytes]) -> Any:
    return np.stack([np.asarray(Image.open(io.BytesIO(one)), dtype=np.float64) for one in images])


def test_a_second_encoding_changes_about_as_much_as_the_first(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).normal(128, 24, (20, 32, 32, 1)).clip(0, 255)
    original = np.repeat(grey, 3, axis=3).astype(np.uint8)
    encoded = [jpeg(pixels) for pixels in original]
    (tmp_path / "data").mkdir()
    rows = [{"bytes": one, "path": ""} for one in encoded]
    pq.write_table(pa.table({"img": rows, "label": list(range(20))}), tmp_path / "data/train.parquet")
    done = encode_again(tmp_path / "data", tmp_path / "again/deep")
    copied = pq.read_table(tmp_path / "again/deep/train.parquet")
    once, twice = decoded(encoded), decoded([one["bytes"] for one in copied["img"].to_pylist()])
    first, second = (float(np.sqrt(np.mean((a - b) ** 2))) for a, b in ((once, original), (twice, once)))
    assert 0.6 * first < second < 1.2 * first  # in the blocks of the first it would be a tenth
    assert copied["label"].to_pylist() == list(range(20)) and twice.shape == once.shape
    assert done.stdout == f"train.parquet: 20 images, changed by {second:.1f} of 255\n"


def test_a_folder_without_tables(tmp_path: Path) -> None:
    done = encode_again(tmp_path, tmp_path / "again")
    assert done.returncode == 2 and done.stderr.endswith("no *.parquet\n") and not (tmp_path / "again").exists()
