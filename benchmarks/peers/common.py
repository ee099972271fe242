"""What the contestants share: the workloads, the models as ordinary modules, the data, and the result line.

The data is a folder that run.py writes: ``images.npy`` and ``labels.npy`` hold all samples, ``train.npy`` the rows of
each client, ``test.npy`` the rows of the pooled test set. Samples are mapped, not read, so that processes share them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

BATCH, RATE, CLASSES = 64, 0.01, 10
MEAN, STD = 0.5, 0.25
# Images per forward pass of the peers' evaluation; on CPUs larger ones were slower, as activations leave the caches.
TEST_BATCH = 128


class ConvNet(nn.Sequential):
    """Two convolutions and three linear layers, 121,182 parameters."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(800, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
        )


class Block(nn.Module):
    """A pre-norm Transformer block: 8 heads of 64 for tokens of 128, and an MLP of 256."""

    def __init__(self, width: int = 128, heads: int = 8, head: int = 64, hidden: int = 256, drop: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * heads * head, bias=False)
        self.out = nn.Sequential(nn.Linear(heads * head, width), nn.Dropout(drop))
        self.mlp = nn.Sequential(
            *(nn.Linear(width, hidden), nn.GELU(), nn.Dropout(drop)), *(nn.Linear(hidden, width), nn.Dropout(drop))
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed


class TinyViT(nn.Module):
    """8 blocks over patches of 4x4 pixels and a class token, 2,645,898 parameters."""

    def __init__(self, depth: int = 8, width: int = 128, patch: int = 4, drop: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (32 // patch) ** 2 + 1, width))
        self.dropout = nn.Dropout(drop)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], 1)
        logits: Tensor = self.head(self.blocks(self.dropout(tokens + self.position))[:, 0])
        return logits


@dataclass(frozen=True)
class Workload:
    """A model, what each of the clients holds and does in a round, and the size of the pooled test set.

    Where clients need more images than there are, several hold the same ones.
    """

    model: Callable[[], nn.Module]
    backbone: str
    samples: int
    epochs: int
    tests: int
    clients: int = 50
    cohort: int = 5

    @property
    def visits(self) -> int:
        """Samples that local training sees in a round."""
        return self.cohort * self.samples * self.epochs


WORKLOADS = {
    "W1": Workload(ConvNet, "convnet", samples=1000, epochs=5, tests=10_000),
    "W2": Workload(TinyViT, "tiny_vit", samples=64, epochs=1, tests=1000),
    "W3": Workload(ConvNet, "convnet", samples=20, epochs=5, tests=10_000, clients=10_000, cohort=100),
}


class Data:
    """The federation in a folder that run.py wrote."""

    def __init__(self, folder: Path) -> None:
        # "c" because PyTorch warns of memory that it must not write; nobody does.
        self.images, self.labels = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("images", "labels"))
        self.train, self.test = (np.load(folder / f"{name}.npy") for name in ("train", "test"))

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """The normalised training images of a client, and their labels."""
        return self._tensors(self.train[number])

    def pooled(self) -> tuple[Tensor, Tensor]:
        """The normalised test images, and their labels."""
        return self._tensors(self.test)

    def _tensors(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(self.images[rows]).float().div_(255).sub_(MEAN).div_(STD)
        return images, torch.from_numpy(self.labels[rows])


def loader(tensors: tuple[Tensor, Tensor], training: bool) -> DataLoader[tuple[Tensor, ...]]:
    """The usual loader of an in-memory dataset."""
    return DataLoader(TensorDataset(*tensors), BATCH if training else TEST_BATCH, shuffle=training)


def fit(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]], epochs: int) -> None:
    """A client's local training, as tutorials write it."""
    model.train()
    sgd = torch.optim.SGD(model.parameters(), RATE)
    for _ in range(epochs):
        for images, labels in batches:
            sgd.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            sgd.step()


@torch.no_grad()
def accuracy(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> float:
    """The share of right predictions."""
    model.eval()
    hits = [model(images).argmax(1) == labels for images, labels in batches]
    return float(torch.cat(hits).float().mean())


def arguments(**more: str) -> argparse.Namespace:
    """What run.py passes to a contestant; `more` are options of its own and their defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    for name, default in more.items():
        parser.add_argument(f"--{name}", default=default)
    return parser.parse_args()


def report(version: str, rounds: Iterable[float], evaluations: Iterable[float], accuracy: float) -> None:
    """The result as the last line of stdout: seconds of each steady round and evaluation, and the final accuracy."""
    result = {"version": version, "rounds": list(rounds), "evaluations": list(evaluations), "accuracy": accuracy}
    print(json.dumps(result), flush=True)
