"""How fast rounds are on a device, beside a plain loop under the same flags."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from card.section import Bench
from card.training import backbone, federation, place, plain, rounds_of, sizes, watched
from engine import Workload

PRECISIONS = ("fp32", "tf32", "bf16")


def workload(name: str, clients: int, quick: bool) -> tuple[Workload, int]:
    """W1, the ConvNet under FedAvg, or W2, the tiny ViT under FedTP; and the Transformer's depth."""
    samples, epochs = (16, 1) if quick else (512, 2) if name == "W1" else (256, 2)
    nets = {"W1": ("convnet", "fedavg"), "W2": ("tiny_vit", "fedtp")}
    return Workload(name, *nets[name], clients, clients, samples, epochs), 1 if quick else 8


def w1(bench: Bench) -> None:
    """Samples per second of the ConvNet."""
    _matrix(bench, "W1")


def w2(bench: Bench) -> None:
    """Samples per second of the Transformer with generated projections."""
    _matrix(bench, "W2")


def _matrix(bench: Bench, name: str) -> None:
    """What matters most comes first: ten clients, then few and many; what there is no time for is left out."""
    device = place(bench.device)
    cohorts = (2,) if bench.quick else (10, 50, 5, 1)
    precisions = ("fp32", "bf16") if bench.quick else PRECISIONS
    loops: dict[str, float] = {}
    for clients in cohorts:
        for precision in precisions:
            for spread in ("equal", "dirichlet") if clients > 1 else ("equal",):
                if bench.left < 0:
                    return
                what = {"clients": clients, "precision": precision, "sizes": spread}
                with bench.tried(**what):
                    if precision not in loops:
                        loops[precision] = _plain_rate(bench, name, precision, device)
                    _measure(bench, name, what, loops[precision], device)


def _plain_rate(bench: Bench, name: str, precision: str, device: torch.device) -> float:
    """Samples per second of the plain loop, which has the same rate with any number of clients."""
    each, depth = workload(name, 2 if bench.quick else 5, bench.quick)
    return each.visits / plain(each, federation(device, sizes(each.clients, each.samples, "equal")), depth, precision)


def _measure(bench: Bench, name: str, what: dict[str, Any], loop: float, device: torch.device) -> None:
    each, depth = workload(name, what["clients"], bench.quick)
    held = sizes(each.clients, each.samples, what["sizes"])
    with watched() as seen:
        seconds = statistics.median(
            rounds_of(each, federation(device, held), backbone(each.backbone, depth), what["precision"])
        )
    rate = sum(held) * each.epochs / seconds
    memory = torch.cuda.max_memory_reserved() / 2**20 if device.type == "cuda" else 0.0
    bench.write(
        **what, samples_per_s=rate, to_plain=rate / loop, round_ms=1000 * seconds, replays=seen.replays, peak_mb=memory
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
