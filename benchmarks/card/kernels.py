"""What a device can do at most, and where the time of a step goes on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from card.section import Bench
from card.speed import PRECISIONS, workload
from card.training import backbone, federation, place, rounds_of, sizes, stop
from engine import PlainHypernetwork, synchronize
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from pflcore.engine.precision import use_precision


def seconds_of(call: Callable[[], object], device: torch.device, repeat: int = 7) -> float:
    """Median time until all is computed; the first call, which sets libraries up, does not count."""
    times = []
    for _ in range(repeat + 1):
        synchronize(device)
        started = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def ceilings(bench: Bench) -> None:
    """Rates of a large matrix product and of copies."""
    device = place(bench.device)
    side, count = (512, 2**22) if bench.quick else (8192, 2**28)
    for precision in PRECISIONS:
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        one = torch.randn(side, side, device=device).to(kind)
        with bench.tried(what=f"matrix product, {precision}"), use_precision(precision):
            rate = 2 * side**3 / seconds_of(partial(torch.matmul, one, one), device)
            bench.write(what=f"matrix product, {precision}", tflops=rate / 1e12)
    there = torch.zeros(count, device=device)
    target, on_host = torch.empty_like(there), torch.zeros(count // 4)
    bench.write(
        what="copy on the device, read and written",
        gb_per_s=8 * count / seconds_of(lambda: target.copy_(there), device) / 1e9,
    )
    if device.type == "cuda":
        for name, source in (("pageable", on_host), ("pinned", on_host.pin_memory())):
            taken = seconds_of(partial(source.to, device, non_blocking=True), device)
            bench.write(what=f"copy to the device, {name}", gb_per_s=count / taken / 1e9)
        tiny = torch.zeros(1, device=device)
        bench.write(what="a launch", us=1e6 * seconds_of(lambda: [tiny.add_(1) for _ in range(1000)], device) / 1000)


def profiles(bench: Bench) -> None:
    """The kernels that take most of a round of ten clients, and how long the device is busy at all."""
    device = place(bench.device)
    on_gpu = device.type == "cuda"
    for name in ("W1", "W2"):
        for precision in ("fp32",) if bench.quick else ("fp32", "bf16"):
            with bench.tried(workload=name, precision=precision):
                kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
                seen = profile(activities=kinds, acc_events=True)
                wall = _one_round(bench, name, precision, device, seen)
                times = {
                    event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total
                    for event in seen.key_averages()
                    # What was recorded has no operator on the host, and a launch is no work of the device.
                    if not on_gpu or event.device_type == torch.autograd.DeviceType.CUDA
                }
                total = sum(times.values())
                what: dict[str, Any] = {"workload": name, "precision": precision}
                bench.write(**what, kernel="all", share=1.0, busy=total / 1e6 / wall, round_ms=wall * 1000)
                for key in sorted(times, key=times.__getitem__, reverse=True)[:10]:
                    bench.write(**what, kernel=key[:90], share=times[key] / total)


def _one_round(bench: Bench, name: str, precision: str, device: torch.device, seen: profile) -> float:
    """Seconds of a round in the steady state, during which `seen` looks."""
    each, depth = workload(name, 2 if bench.quick else 10, bench.quick)
    marks: list[float] = []

    def after(rounds: int) -> None:
        if rounds == 3:
            seen.start()
            marks.append(time.perf_counter())
        elif marks:
            marks.append(time.perf_counter())
            seen.stop()
            stop()

    data = federation(device, sizes(each.clients, each.samples, "equal"))
    rounds_of(each, data, backbone(each.backbone, depth), precision, after)
    return marks[1] - marks[0]


def hypernetwork(bench: Bench) -> None:
    """FedTP's server step, of 237.6 million parameters: ours and a backward pass per client."""
    device = place(bench.device)
    for clients in (2,) if bench.quick else (5, 50):
        each, depth = workload("W2", clients, bench.quick)
        usual = PlainHypernetwork(each, device, depth)
        ways = {"ours": _descent(usual, clients), "a backward pass per client": usual.step}
        for name, way in ways.items():
            with bench.tried(clients=clients, way=name):
                bench.write(clients=clients, way=name, ms=1000 * seconds_of(way, device, 2 if bench.quick else 5))


def _descent(usual: PlainHypernetwork, clients: int) -> Callable[[], None]:
    params = {name: one.detach().clone() for name, one in usual.params.items()}
    momenta = {name: torch.zeros_like(one) for name, one in params.items()}

    def change(name: str) -> Tensor:
        return usual.change[name].expand(clients, -1, -1)

    return partial(usual.net.descend, params, momenta, range(clients), change, lr=0.01, momentum=0.9, weight_decay=1e-3)
