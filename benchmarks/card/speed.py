"""How fast rounds are on a device, beside a plain loop under the same flags, alone and with other runs beside them."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from card.section import Bench
from card.training import SHAPE, backbone, federation, place, plain, rounds_of, sizes, stop, watched
from engine import Workload

from pflcore.engine.evaluation import Scores
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.engine.phases import make_trainer
from pflcore.methods import METHODS
from pflcore.settings import Training

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


def side_by_side(bench: Bench) -> None:
    """Samples per second of several runs of ten clients together, each in a process of its own."""
    fork, seconds = multiprocessing.get_context("fork"), 0.3 if bench.quick else 4.0
    for name in ("W1",) if bench.quick else ("W1", "W2"):
        for count in (1, 2) if bench.quick else (1, 2, 5, 10):
            if bench.left < 3 * seconds:
                return
            ends = [fork.Pipe() for _ in range(count)]
            runs = [fork.Process(target=_beside, args=(bench, name, seconds, theirs)) for _, theirs in ends]
            for run in runs:
                run.start()
            with bench.tried(workload=name, runs=count):
                both = [(ours, run) for (ours, _), run in zip(ends, runs, strict=True)]
                for pair in both:
                    _told(*pair, bench.left)  # it is warm
                for ours, _ in both:
                    ours.send("go")
                rates = [_told(*pair, bench.left) for pair in both]
                bench.write(workload=name, runs=count, samples_per_s=sum(rates), slowest=min(rates), fastest=max(rates))
            for run in runs:
                run.join(1)
                run.kill()


def _told(ours: Connection, run: BaseProcess, seconds: float) -> float:
    if ours not in wait([ours, run.sentinel], max(0.0, seconds)):
        raise RuntimeError(f"a run says nothing, its exit status is {run.exitcode}")
    return float(ours.recv())


def _beside(bench: Bench, name: str, seconds: float, parent: Connection) -> None:
    each, depth = workload(name, 2 if bench.quick else 10, bench.quick)
    bench.limit()
    begun: list[float] = []

    def after(rounds: int) -> None:
        if rounds == 3:
            parent.send(0.0)
            parent.recv()
            begun.append(time.perf_counter())
        elif begun and (passed := time.perf_counter() - begun[0]) > seconds:
            parent.send((rounds - 3) * each.visits / passed)
            stop()

    data = federation(place(bench.device), sizes(each.clients, each.samples, "equal"))
    rounds_of(each, data, backbone(each.backbone, depth), "fp32", after)


def evaluation(bench: Bench) -> None:
    """Images per second when every client's own model is measured, stacked and one at a time."""
    device = place(bench.device)
    clients, images = (4, 16) if bench.quick else (100, 100)
    for name, net in (("ConvNet", "convnet"), ("ViT", "tiny_vit")):
        data = federation(device, [2] * clients, images)
        model, groups = backbone(net, 1 if bench.quick else 8).create(SHAPE, 10, 0)
        trainer = make_trainer(model.to(device), groups, data, METHODS.create("local"), Training(), 0)
        state = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
        for label, executor in (("stacked", Stacked(trainer, 64)), ("sequential", Sequential(trainer))):
            with bench.tried(model=name, executor=label):
                times = [_timed(executor, state, clients) for _ in range(4)]
                bench.write(model=name, executor=label, images_per_s=clients * images / statistics.median(times[1:]))


def _timed(executor: Stacked | Sequential, state: dict[str, torch.Tensor], clients: int) -> float:
    started = time.perf_counter()
    scores: Scores = executor.score_each((client, state) for client in range(clients))  # ends on the host
    assert len(scores.column("total")) == clients
    return time.perf_counter() - started
