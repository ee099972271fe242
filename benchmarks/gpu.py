"""Everything that is to be known of a GPU in one command: whether it computes what a CPU does, and how fast.

Needs this repository and torch, numpy, safetensors and filelock, no network and no artifacts. A line per result goes to
``gpu.jsonl`` in the folder, at once; when the last section has ended, or there is no time left, a table of each section
is printed and written to ``gpu.md``. A section that fails, hangs or breaks the device loses itself alone: each runs in
a process of its own, forked from one that has imported everything and never touches the device. Lines of checks have
`ok`; differences are the largest ones between parameters, and between clients' accuracies.

    python benchmarks/gpu.py --deadline 540 --out FOLDER
    python benchmarks/gpu.py --out FOLDER --only w1 w2           # some sections
    python benchmarks/gpu.py --device cpu --quick --out FOLDER   # does it run at all? a minute
    python benchmarks/gpu.py --summary --out FOLDER              # the tables of a command that was killed
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # where nothing is installed

import numpy as np
import torch
from contestants import BATCH, CLASSES, ConvNet, TinyViT, Workload, plain_round
from engine import PlainHypernetwork, synchronize
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pflcore.backbones import BACKBONES, Backbone
from pflcore.client_view import ClientView
from pflcore.data.federation import FederatedData
from pflcore.engine import CheckpointFolder, Result, device_name, select_device, train, use_threads
from pflcore.engine.forward import use_precision
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import Batch
from pflcore.methods import METHODS, Method
from pflcore.methods.simple import FedAvg
from pflcore.settings import Evaluation, Training

LINES = "gpu.jsonl"
USUAL = 540.0  # the deadline that sections' times are made for; they have more of a later one
MARGIN = 3.0  # seconds between a section's own end and its being killed
SHAPE, SEED = (3, 32, 32), 0
WARM, STEADY = 3, 3  # rounds: the first ones fetch memory and record steps
PAIRS = {"fedavg": "convnet", "fedtp": "tiny_vit"}
# What another order of float32 sums may change in a few rounds; CPU and GPU also differ in their functions.
LIMIT, ACROSS = 2e-4, 1e-3
AT_THE_END = Evaluation(every=1, window=0, curve_every=0)


@dataclass(frozen=True)
class Bench:
    """What a section is given: where it runs, how thoroughly, until when, and where its lines go."""

    device: str
    quick: bool
    out: Path
    section: str
    ends: float

    @property
    def left(self) -> float:
        """Seconds that remain, less than 0 afterwards."""
        return self.ends - time.monotonic()

    def limit(self) -> None:
        """End this process a while after its time, should nobody be left to do so. To be called where one begins."""
        signal.alarm(math.ceil(max(0.0, self.left) + 2 * MARGIN))

    def write(self, **facts: Any) -> None:
        """Add a line at once."""
        short = {name: float(f"{one:.4g}") if isinstance(one, float) else one for name, one in facts.items()}
        with (self.out / LINES).open("a") as file:
            file.write(json.dumps({"section": self.section, **short}) + "\n")

    @contextmanager
    def tried(self, **what: Any) -> Iterator[None]:
        """Carry out a part of a section: an exception is a line that begins with `what`, and the next part follows."""
        try:
            yield
        except Exception as error:
            self.write(**what, ok=False, error=first_line(error))

    def place(self) -> torch.device:
        """Return the device, with the flags that runs have on it."""
        device = select_device(self.device)
        use_threads(device, SHAPE)
        return device

    def uneven(self, device: torch.device) -> FederatedData:
        """Return clients of several sizes, so that batches are; the last one's is smaller than a batch."""
        return federation(device, (19, 12, 17, 8, 3) if self.quick else (150, 96, 131, 64, 20))

    def network(self, name: str, **options: float) -> Backbone:
        if name != "tiny_vit":  # which alone has a depth, and dropout
            return BACKBONES.create(name)
        create = partial(small, BACKBONES) if self.quick else BACKBONES.create
        return create(name, depth=2, **options)


def federation(device: torch.device, train_sizes: Sequence[int], test_size: int = 16) -> FederatedData:
    """Return clients with that many random images of 3×32×32, and ten classes."""
    rng = np.random.default_rng(SEED)
    ends = np.cumsum([*train_sizes, *[test_size] * len(train_sizes)])
    parts = np.split(rng.permutation(ends[-1]), ends[:-1])
    images = rng.integers(0, 256, (ends[-1], *SHAPE), np.uint8)
    owned, tested = parts[: len(train_sizes)], parts[len(train_sizes) :]
    labels = rng.integers(0, CLASSES, ends[-1])
    return FederatedData.from_arrays(images, labels, owned, tested, (0.5,) * 3, (0.25,) * 3, CLASSES, device)


def small(registry: Any, name: str, **options: Any) -> Any:
    """Return an entry with the options that its smoke profile has."""
    return registry.create(name, **{**registry.get(name).smoke, **options})


def trained(
    data: FederatedData,
    method: str | Method,
    net: Backbone,
    executor: str = "stacked",
    *,
    rounds: int = 3,
    sample_rate: float = 0.8,
    precision: str = "fp32",
    **more: Any,
) -> Result:
    """Return a short run with momentum, on its device, measured after the last round."""
    size = 8 if max(map(len, data.train)) < 32 else 32
    how = {"local_epochs": 2, "batch_size": size, "lr": 0.02, "momentum": 0.5, "precision": precision}
    training = Training(rounds=rounds, sample_rate=sample_rate, **how)
    method = method if isinstance(method, Method) else small(METHODS, method)
    more |= {"training": training, "evaluation": AT_THE_END, "seed": SEED, "executor": executor}
    return train(data=data, backbone=net, method=method, **more)


@contextmanager
def watched() -> Iterator[SimpleNamespace]:
    """Count replays of recorded steps and collect warnings; what is given is complete after the block."""
    seen, replay = SimpleNamespace(replays=0, warnings=[]), torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        seen.replays += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield seen
    finally:
        torch.cuda.CUDAGraph.replay = replay
        seen.warnings = sorted({str(one.message).splitlines()[0][:160] for one in caught})


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest between tensors of the same names; NaN where names differ or there is one already."""
    if one.keys() != other.keys():
        return float("nan")
    gaps = [(one[name].detach().cpu().double() - other[name].detach().cpu().double()).abs().max() for name in one]
    return float(torch.stack(gaps).max()) if gaps else 0.0


def compare(one: Result, other: Result, limit: float) -> dict[str, Any]:
    """Return the columns of a line that compares two runs."""
    gap = difference(one.weights, other.weights)
    accuracy = float(np.abs(one.correct / one.total - other.correct / other.total).max())
    return {"difference": gap, "accuracy": accuracy, "limit": limit, "ok": gap <= limit}


def machine(bench: Bench) -> None:
    """Write what the numbers were obtained with."""
    device = select_device(bench.device)
    facts = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if device.type == "cuda":
        facts["memory_gb"] = torch.cuda.get_device_properties(device).total_memory / 2**30
    bench.write(device=device_name(device), **facts)


def agree(bench: Bench) -> None:
    """Compare stacked with sequential, recorded with not, twice the same, each with the CPU."""
    device = bench.place()
    for name, net in PAIRS.items():
        model, data = bench.network(net), bench.uneven(device)
        # A GPU draws other numbers than a CPU from the same seed.
        still = bench.network(net, dropout=0.0)
        on_cpu = trained(bench.uneven(torch.device("cpu")), name, still, "sequential")
        for executor in ("sequential", "stacked"):
            line = compare(trained(data, name, still, executor), on_cpu, ACROSS)
            bench.write(method=name, check=f"{executor} = CPU, no dropout", **line)
        alone = trained(data, name, model, "sequential")
        os.environ["PFL_GRAPHS"] = "0"
        launched = trained(data, name, model)
        del os.environ["PFL_GRAPHS"]
        bench.write(method=name, check="stacked, not recorded = sequential", **compare(launched, alone, LIMIT))
        with watched() as seen:
            recorded = trained(data, name, model)
        line = compare(recorded, launched, LIMIT)
        line["ok"] &= (seen.replays > 0) == (device.type == "cuda")
        bench.write(method=name, check="recorded = not", **line, replays=seen.replays, warnings=seen.warnings)
        bench.write(method=name, check="the same twice", **compare(trained(data, name, model), recorded, 0.0))
        for precision in ("tf32", "bf16"):
            with bench.tried(method=name, check=precision):
                pair = (trained(data, name, model, one, precision=precision) for one in ("stacked", "sequential"))
                bench.write(method=name, check=f"{precision}: stacked = sequential", **compare(*pair, 5e-2))


def methods(bench: Bench) -> None:
    """Compare two rounds of every method, stacked and recorded, with one client at a time."""
    data = federation(bench.place(), (6, 4, 3, 6) if bench.quick else (48, 37, 20, 48))
    every = {"rounds": 2, "sample_rate": 1.0}

    def alone(name: str) -> tuple[str, Result]:
        """Train on the first network that has the groups that the method needs."""
        try:
            return "convnet", trained(data, name, small(BACKBONES, "convnet"), "sequential", **every)
        except UserError:
            return "tiny_vit", trained(data, name, small(BACKBONES, "tiny_vit"), "sequential", **every)

    for name in METHODS.names()[:: 7 if bench.quick else 1]:
        if bench.left < 3:
            return bench.write(method=name, error="no time for it and what follows")
        with bench.tried(method=name), watched() as seen:
            net, expected = alone(name)
            line = compare(trained(data, name, small(BACKBONES, net), **every), expected, LIMIT)
            bench.write(method=name, backbone=net, **line, replays=seen.replays)
        if aside := [one for one in seen.warnings if "not recorded" in one]:
            bench.write(method=name, warnings=aside)


def resume(bench: Bench) -> None:
    """End a process that is killed and started again with the bytes of one that is not."""
    for name, net in PAIRS.items():
        with bench.tried(method=name), TemporaryDirectory() as scratch:
            whole, killed = Path(scratch, "undisturbed"), Path(scratch, "killed")
            start(resumable, bench, name, net, whole).join()
            process = start(resumable, bench, name, net, killed)
            while process.is_alive() and not list(killed.glob("round-000003-*")):
                time.sleep(0.002)
            process.kill()
            process.join()
            start(resumable, bench, name, net, killed).join()
            one, other = (folder / "weights.safetensors" for folder in (whole, killed))
            gap = difference(load_file(one), load_file(other))
            bench.write(method=name, difference=gap, ok=one.read_bytes() == other.read_bytes())


def resumable(bench: Bench, name: str, net: str, folder: Path) -> None:
    bench.limit()
    data = bench.uneven(bench.place())
    with CheckpointFolder(folder, "the same", print) as checkpoints:
        result = trained(data, name, bench.network(net), rounds=6, checkpoints=checkpoints, checkpoint_every=0.0)
    if folder.name == "killed" and not result.resumed_from:
        raise RuntimeError("the run began anew")
    weights = {key: tensor.cpu().contiguous() for key, tensor in result.weights.items()}
    save_file(weights, folder / "weights.safetensors")


def resident(bench: Bench) -> None:
    """Compare images on the host, fetched ahead through pinned memory, with images on the device."""
    here = bench.uneven(bench.place())
    there = dataclasses.replace(here, inputs=here.inputs.cpu())
    for name, net in PAIRS.items():
        with watched() as seen:
            runs = [trained(data, name, bench.network(net)) for data in (there, here)]
        facts = {"on_host": not there.resident, "replays": seen.replays, "warnings": seen.warnings}
        bench.write(method=name, **compare(*runs, 0.0), **facts)


class Looks(FedAvg):
    """A method that asks the device for a number in each step, which cannot be recorded."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        one = torch.ones((), device=batch.labels.device).item()
        return super().loss(local, params, batch) * one


def uncapturable(bench: Bench) -> None:
    """Launch steps that cannot be recorded one by one, which a line says, and record those of the next run."""
    device = bench.place()
    data, model = bench.uneven(device), bench.network("convnet")
    expected = trained(data, "fedavg", model, "sequential")
    for method in (Looks(), "fedavg"):
        with watched() as seen:
            line = compare(trained(data, method, model), expected, LIMIT)
        launched = any("not recorded" in one for one in seen.warnings)
        line["ok"] &= (launched if method != "fedavg" else seen.replays > 0) == (device.type == "cuda")
        bench.write(**line, launched=launched, replays=seen.replays, warnings=seen.warnings)


def speed(bench: Bench, name: str) -> None:
    """Write samples per second of W1, the ConvNet under FedAvg, or W2, the tiny ViT under FedTP.

    What matters most comes first: ten clients, then few and many; what there is no time for is left out.
    """
    device, depth = bench.place(), 1 if bench.quick else 8
    samples, epochs = (16, 1) if bench.quick else (512, 2) if name == "W1" else (256, 2)
    net, method = {"W1": ("convnet", "fedavg"), "W2": ("tiny_vit", "fedtp")}[name]
    backbone = BACKBONES.create(net, **({"depth": depth} if net == "tiny_vit" else {}))

    def workload(clients: int) -> Workload:
        return Workload(net, samples, epochs, clients=clients, cohort=clients, method=method)

    loops: dict[str, float] = {}  # samples per second of the plain loop, the same with any number of clients
    for clients in (2,) if bench.quick else (10, 50, 5, 1):
        for precision in ("fp32", "bf16") if bench.quick else ("fp32", "tf32", "bf16"):
            for spread in ("equal", "dirichlet") if clients > 1 else ("equal",):
                if bench.left < 0:
                    return
                what = {"clients": clients, "precision": precision, "sizes": spread}
                with bench.tried(**what):
                    if precision not in loops:
                        few = workload(2 if bench.quick else 5)
                        data = federation(device, sizes(few.clients, samples, "equal"))
                        loops[precision] = few.visits / plain(few, data, depth, precision)
                    held = sizes(clients, samples, spread)
                    with watched() as seen:
                        seconds = rounds_of(workload(clients), federation(device, held), backbone, precision)
                    rate, cuda = sum(held) * epochs / seconds, device.type == "cuda"
                    memory = torch.cuda.max_memory_reserved() / 2**20 if cuda else 0.0
                    line = {"samples_per_s": rate, "to_plain": rate / loops[precision], "round_ms": 1000 * seconds}
                    bench.write(**what, **line, replays=seen.replays, peak_mb=memory)
                    if cuda:
                        torch.cuda.empty_cache()
                        torch.cuda.reset_peak_memory_stats()


def sizes(clients: int, samples: int, spread: str) -> list[int]:
    """Return how many images each client has, `samples` on average: equal, or as Dirichlet(0.3) deals ten classes."""
    if spread == "equal":
        return [samples] * clients
    shares = np.random.default_rng(SEED).dirichlet([0.3] * clients, CLASSES).mean(0)
    return [max(2, round(share * clients * samples)) for share in shares]


class Enough(Exception):
    """Ends a run that is only timed."""


def rounds_of(workload: Workload, data: FederatedData, net: Backbone, precision: str) -> float:
    """Return the median seconds of rounds in the steady state; nothing is measured in between."""
    marks: list[float] = []

    def mark(_: object) -> None:
        synchronize(data.device)
        marks.append(time.perf_counter())
        if len(marks) == WARM + STEADY:
            raise Enough

    how = {"sample_rate": 1.0, "local_epochs": workload.epochs, "batch_size": BATCH, "precision": precision}
    more = {"evaluation": AT_THE_END, "seed": SEED, "executor": "stacked", "on_round": mark}
    with suppress(Enough):
        method, training = METHODS.create(workload.method), Training(rounds=10**6, **how)
        train(data=data, backbone=net, method=method, training=training, **more)
    return statistics.median(np.diff(marks[WARM - 1 :]))


class Slices:
    """Shuffled batches of a client, cut from normalised images on the device: no DataLoader, no host."""

    def __init__(self, data: FederatedData, rows: Tensor) -> None:
        own = rows.to(data.device)
        self.images = data.normalise(data.inputs[own.to(data.inputs.device)].to(data.device))
        self.labels = data.labels[own]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels), device=self.labels.device)
        return ((self.images[part], self.labels[part]) for part in order.split(BATCH))


def plain(workload: Workload, data: FederatedData, depth: int, precision: str) -> float:
    """Return seconds of a round in a loop over clients with an ordinary model, under the flags that ours runs under."""
    model: nn.Module = (ConvNet() if workload.backbone == "convnet" else TinyViT(depth)).to(data.device)
    server = PlainHypernetwork(workload, data.device, depth) if workload.method == "fedtp" else None
    batches, times = [Slices(data, rows) for rows in data.train], []
    autocast = torch.autocast(data.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    with use_precision(precision), autocast:
        for _ in range(3):
            started = time.perf_counter()
            plain_round(model, batches, workload.epochs)
            if server:
                server.step()
            synchronize(data.device)
            times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


# What each does and the seconds that it may take, the most valuable first. All of them fit into the usual deadline,
# even if every single one has to be killed.
SECTIONS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "machine": (machine, 12),
    "agree": (agree, 58),
    "methods": (methods, 70),
    "w1": (partial(speed, name="W1"), 55),
    "w2": (partial(speed, name="W2"), 66),
    "uncapturable": (uncapturable, 15),
    "resume": (resume, 40),
    "resident": (resident, 16),
}


def run_sections(names: Sequence[str], device: str, quick: bool, out: Path, deadline: float) -> None:
    """Run sections one after the other until all are done, or `deadline` seconds have passed.

    Each ends with a line that has its ``status``: done, failed (with the error), killed (it took longer than it may) or
    skipped (there was no time).
    """
    started = time.monotonic()
    for name in names:
        begun, (function, seconds) = time.monotonic(), SECTIONS[name]
        allowed = min(seconds * max(1.0, deadline / USUAL), deadline - (begun - started) - 2 * MARGIN)
        bench = Bench(device, quick, out, name, begun + allowed)
        if allowed < MARGIN:
            bench.write(status="skipped", seconds=0.0)
            continue
        process = start(perform, function, bench)
        try:
            process.join(allowed + MARGIN)
            status = "killed" if process.is_alive() else "failed" if process.exitcode else "done"
        finally:
            with suppress(ProcessLookupError):  # what the section started goes with it, however it ended
                os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        bench.write(status=status, seconds=time.monotonic() - begun)


def start(work: Callable[..., None], *given: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=work, args=given)
    process.start()
    return process


def perform(function: Callable[[Bench], None], bench: Bench) -> None:
    os.setsid()  # with what it starts, so that it can be killed with it
    bench.limit()
    try:
        function(bench)
    except Exception as error:
        traceback.print_exc()
        bench.write(ok=False, error=first_line(error))
        raise SystemExit(1) from None


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]


def summary(out: Path) -> str:
    """Return a table per section of what was written so far, but for a line that was cut, and how many checks held."""
    written = [json.loads(line) for line in (out / LINES).read_text().splitlines() if line.endswith("}")]
    held = [line["ok"] for line in written if "ok" in line]
    parts = [f"{sum(map(bool, held))} of {len(held)} checks held\n"]
    for section in dict.fromkeys(line["section"] for line in written):
        own = [line for line in written if line["section"] == section]
        ends = [f"{line['status']}, {line['seconds']} s" for line in own if "status" in line]
        rows = [{name: line[name] for name in line if name != "section"} for line in own if "status" not in line]
        parts.append(f"## {section} ({ends[0] if ends else 'not ended'})\n")
        if names := list(dict.fromkeys(name for row in rows for name in row)):
            body = ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
            parts.append("\n".join([f"| {' | '.join(names)} |", "|" + "---|" * len(names), *body]) + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.jsonl and gpu.md")
    parser.add_argument("--deadline", type=float, default=USUAL, help="seconds for everything")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="little of everything, on small models")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections; all without it")
    parser.add_argument("--summary", action="store_true", help="only the tables of what is in the folder")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.device == "cpu":
        os.environ.setdefault("PFL_THREADS", "1")  # of steps this short, several threads only wait for each other
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what `timeout` sends; tables are printed all the same
    try:
        if not chosen.summary:
            (chosen.out / LINES).unlink(missing_ok=True)
            names = [name for name in SECTIONS if name in chosen.only]
            run_sections(names, chosen.device, chosen.quick, chosen.out, chosen.deadline)
    finally:
        text = f"{summary(chosen.out)}\n{time.monotonic() - started:.0f} s\n"
        (chosen.out / "gpu.md").write_text(text)
        print(text, end="", flush=True)


if __name__ == "__main__":
    main()
