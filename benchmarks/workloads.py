"""Workloads of peers.py and other benchmarks: ordinary PyTorch modules, their data, and a plain training loop.

The data is a folder that peers.py writes: ``images.npy`` and ``labels.npy`` have all samples, ``train.npy`` the rows of
each client, ``test.npy`` the rows of the pooled test set. Samples are mapped, not read, so processes share them.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

BATCH, RATE, CLASSES = 64, 0.01, 10
MEAN, STD = 0.5, 0.25
# Images per forward pass of the peers' evaluation; larger ones were slower on CPUs, as activations exceed the caches.
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
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """A ViT with 8 blocks, patches of 4x4 pixels and a class token, 2,645,898 parameters."""

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
        return self.head(self.blocks(self.dropout(tokens + self.position))[:, 0])


MODELS: dict[str, Callable[[], nn.Module]] = {"convnet": ConvNet, "tiny_vit": TinyViT}


@dataclass(frozen=True)
class Workload:
    """A backbone, the clients with their samples and epochs per round, and the size of the pooled test set.

    With 0 epochs a round measures the models of all clients. If clients need more images than there are, some images
    have several owners.
    """

    backbone: str
    samples: int
    epochs: int
    tests: int = 0
    clients: int = 50
    cohort: int = 5
    method: str = "fedavg"

    @property
    def visits(self) -> int:
        """The number of samples trained on, or measured, in a round."""
        return self.cohort * self.samples * self.epochs or self.clients * self.samples


WORKLOADS = {
    "W1": Workload("convnet", samples=1000, epochs=5, tests=10_000),
    "W2": Workload("tiny_vit", samples=64, epochs=1, tests=1000),
    "W3": Workload("convnet", samples=20, epochs=5, tests=10_000, clients=10_000, cohort=100),
}


class Data:
    """The federation in a folder that peers.py wrote."""

    def __init__(self, folder: Path) -> None:
        # Mode "c" (copy on write), since PyTorch warns about read-only memory; nothing writes to it.
        self.images, self.labels = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("images", "labels"))
        self.train, self.test = (np.load(folder / f"{name}.npy") for name in ("train", "test"))

    def tensors(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the normalised images and the labels of the given rows."""
        images = torch.from_numpy(self.images[rows]).float().div_(255).sub_(MEAN).div_(STD)
        return images, torch.from_numpy(self.labels[rows])


def loader(tensors: tuple[Tensor, Tensor], training: bool) -> DataLoader[tuple[Tensor, ...]]:
    """Return an ordinary DataLoader of an in-memory dataset."""
    return DataLoader(TensorDataset(*tensors), BATCH if training else TEST_BATCH, shuffle=training)


def fit(model: nn.Module, batches: Iterable[Any], epochs: int) -> None:
    """Train a client's model with a loop as in tutorials."""
    model.train()
    sgd = torch.optim.SGD(model.parameters(), RATE)
    for _ in range(epochs):
        for images, labels in batches:
            sgd.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            sgd.step()


def plain_round(model: nn.Module, clients: Iterable[Iterable[Any]], epochs: int) -> None:
    """Train a copy of the model on the batches of each client, then load the mean of the copies into the model."""
    states = []
    for batches in clients:
        local = copy.deepcopy(model)
        fit(local, batches, epochs)
        states.append(local.state_dict())
    model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[Any]) -> float:
    """Return the share of right predictions (0 to 1)."""
    model.eval()
    hits = [model(images).argmax(1) == labels for images, labels in batches]
    return float(torch.cat(hits).float().mean())
