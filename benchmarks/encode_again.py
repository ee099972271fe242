"""A copy of image tables in Parquet whose images have been through JPEG once more: what did the first time cost?

    python benchmarks/encode_again.py data/cifar10 again/cifar10        # and how far pixels are from those before
    PFL_DATA=again pfl run fedofa/table1_jpeg --cell 'FedAvg, CIFAR-10, 50' --seed 0     # in a clone without results/

Where the original is not at hand, a second encoding says how much accuracy one costs. JPEG works in blocks of eight by
eight pixels, and what has been rounded in them once is hardly rounded again; so images are moved by half a block first,
their edges repeated. They are stored as PNG, which loses nothing.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

HALF = 4  # of a block, in pixels


def again(pixels: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """An image [H, W, 3] after JPEG of a quality of 1 to 95, by blocks that begin in the middle of usual ones."""
    height, width, _ = pixels.shape
    stored = io.BytesIO()
    Image.fromarray(np.pad(pixels, ((HALF, HALF), (HALF, HALF), (0, 0)), mode="edge")).save(
        stored, "JPEG", quality=quality
    )
    return np.asarray(Image.open(stored))[HALF : HALF + height, HALF : HALF + width]


def copy(source: Path, target: Path, column: str, quality: int) -> tuple[int, float]:
    """Copy a table with its images encoded again; how many there are, and the root of their mean square change."""
    table = pq.read_table(source)
    encoded, squares = list[bytes](), list[float]()
    for one in table[column]:
        before = np.asarray(Image.open(io.BytesIO(one["bytes"].as_py())).convert("RGB"))
        after = again(before, quality)
        squares.append(float(np.mean((after.astype(np.float64) - before) ** 2)))
        stored = io.BytesIO()
        Image.fromarray(after).save(stored, "PNG")
        encoded.append(stored.getvalue())
    images = pa.StructArray.from_arrays([pa.array(encoded, pa.binary())], names=["bytes"])
    place = table.schema.get_field_index(column)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.set_column(place, column, images), target)
    return len(encoded), float(np.sqrt(np.mean(squares)))


def main() -> None:
    """Copy every table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with *.parquet")
    parser.add_argument("target", type=Path)
    parser.add_argument("--column", default="img")
    parser.add_argument("--quality", type=int, default=75)
    given = parser.parse_args()
    files = sorted(given.source.glob("*.parquet"))
    if not files:
        parser.error(f"{given.source}: no *.parquet")
    for path in files:
        images, change = copy(path, given.target / path.name, given.column, given.quality)
        print(f"{path.name}: {images:,} images, changed by {change:.1f} of 255")


if __name__ == "__main__":
    main()
