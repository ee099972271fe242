"""Whether probes notice mistakes: planted one at a time in a copy of the packages, which is then probed.

    python benchmarks/mutants.py                 # a table; exit code 1 if a mistake was not noticed
    python benchmarks/mutants.py --only noise    # those of which the description has this word

A mistake is noticed by the first probe that fails, or gives other numbers than the record has, in one of its ways. The table says by how much they deviate, in units of the probe's tolerance.
"""

# ruff: noqa: E501 - what is planted stands on a line each

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

SOURCE = Path(__file__).parents[1]
BATCHES, FACTS = "pflcore/engine/batches.py", "pflcore/engine/client.py"
COHORTS, PARTS, TASK = "pflcore/engine/run.py", "pflcore/engine/phases.py", "pflcore/task.py"
TRAINER, RUN, METHOD = "pflcore/engine/client.py", "pflcore/engine/run.py", "pflcore/method.py"
OPTIMIZERS, RESULT = "pflcore/engine/optimizers.py", "pflcore/engine/result.py"
SERVER_VIEW = "pflcore/server_view.py"
EVALUATE, STATE, NEIGHBOURS = (
    "pflcore/engine/evaluation.py",
    "pflcore/engine/state.py",
    "pflcore/operators/neighbours.py",
)
STACKED, STEP, POOLED = (f"pflcore/engine/executors/{name}.py" for name in ("stacked", "vectorised", "pooled"))
DROPOUT, FORWARD = (f"pflcore/engine/{name}.py" for name in ("dropout", "forward"))
DATA, NOISE, SEEDS = "pflcore/data/federation.py", "pflcore/data/noise.py", "pflcore/seeds.py"
PARTITION, STAND_IN, SETTINGS = "pflcore/partitions/_base.py", "pflcore/datasets/_stand_in.py", "pflcore/settings.py"
FRESH, GROUPS, STAGE = "pflcore/data/augmentation.py", "pflcore/groups.py", "pipeline/stages/train.py"
DRAWN = "generator(self.seed, self.stream, round_, client)"
OWN_STATES = "zip(some, self.method.generate(self._server(self.round), some), strict=True)"

# What goes wrong, the file, a text that occurs once in it, and what stands there instead.
MUTANTS = (
    ("last batch of an epoch dropped", BATCHES, "torch.split(shuffled[:used], size)", "(torch.split(shuffled[:used], size)[:-1] or (shuffled[:used],))"),
    ("clipping scales small gradients up", OPTIMIZERS, "(norm / (now + 1e-6)).clamp(max=1.0)", "norm / (now + 1e-6)"),
    ("momentum kept over rounds", OPTIMIZERS, "for name, slope in zip(params, slopes, strict=True)}", "for name, slope in zip(params, slopes, strict=True)}; state = self.__dict__.setdefault('kept', state)"),
    ("momentum dampened", OPTIMIZERS, "torch._foreach_add_(list(state.values()), slopes)", "torch._foreach_add_(list(state.values()), slopes, alpha=0.9)"),
    ("weight decay of the wrong sign", OPTIMIZERS, "_foreach_add(slopes, values, alpha=training", "_foreach_add(slopes, values, alpha=-training"),
    ("same order of batches for all clients", BATCHES, DRAWN, "generator(self.seed, self.stream, round_)"),
    ("same order of batches in each round", BATCHES, DRAWN, "generator(self.seed, self.stream, 1, client)"),
    ("same order in each epoch", BATCHES, "order.permutation(len(rows))).to", DRAWN + ".permutation(len(rows))).to"),
    ("local steps draw with replacement", BATCHES, "order.permutation(len(rows))[:size] for", "order.integers(0, len(rows), size) for"),
    ("a batch of one sample kept under batch norm", BATCHES, "used = self._samples(client) - self._leaves_one_out(client)", "used = self._samples(client)"),
    ("tuning draws the batches of training", PARTS, 'stream="tuning"', 'stream="batches"'),
    ("tuning with momentum", PARTS, "momentum=0.0,", "momentum=trainer.training.momentum,"),
    ("tuning with the learning rate of training", PARTS, "lr=tuning.lr or trainer.training.lr", "lr=trainer.training.lr"),
    ("one tuning step too many", PARTS, "local_steps=tuning.steps,", "local_steps=tuning.steps and tuning.steps + 1,"),
    ("one tuning epoch too few", PARTS, "local_epochs=tuning.epochs,", "local_epochs=tuning.epochs - 1 or 1,"),
    ("same dropout in each step", TRAINER, "self.number(client, step), one_pass", "0, one_pass"),
    ("same dropout in each pass of a step", TRAINER, "step, next(calls))", "step, 0 * next(calls))"),
    ("dropout in tuning that of training", PARTS, "= (TUNING,), {}", "= (), {}"),
    ("the loss after a step counts as divergence", TRAINER, "if not math.isfinite(mean):", "if not mean < 2.5:"),
    ("uniform average", SERVER_VIEW, "return [update.samples / total for", "return [update.samples * 0 + 1 / len(updates) for"),
    ("buffers not averaged", SERVER_VIEW, "for name, one in first.items() if one.is_floating_point()]", "for name, one in first.items() if one.is_floating_point() and 'running' not in name]"),
    ("loss summed over samples", TASK, "labels.flatten(), weights)\n", "labels.flatten(), weights, reduction='sum')\n"),
    ("decay on what is personal only", METHOD, "split(state[\"model\"], trained)", "split(state[\"model\"], {name for name in trained if 'bias' not in name})"),
    ("novel clients train when asked to", RUN, "[client for client in chosen if client not in self.data.novel]", "list(chosen)"),
    ("novel clients are sampled", RUN, "[client for client in range(data.clients) if client not in data.novel]", "list(range(data.clients))"),
    ("personal state not stored", RUN, "self.personal.update(personal)\n        self.round", "self.round"),
    ("same clients in each round", COHORTS, '"sampling", round_)', '"sampling", 1)'),
    ("last update lost", RUN, "_server(round_), self.roles, updates)\n", "_server(round_), self.roles, updates[:-1] or updates)\n"),
    ("weights by test samples", RUN, "len(self.data.train[client])", "len(self.data.test[client])"),
    ("all measured with the state of client 0", RUN, "yield client, self._assemble(client, generated)\n\n    def subject", "yield client, self._assemble(0, generated)\n\n    def subject"),
    ("generated for the wrong client", RUN, OWN_STATES, "zip(some, self.method.generate(self._server(self.round), some[::-1]), strict=True)"),
    ("trained parts of the model taken for received", RUN, "received = self._assemble(client, generated)", "received = self._assemble(client, {**generated, **self.initial})"),
    ("progress off by one", FACTS, "round_ / training.rounds", "(round_ - 1) / training.rounds"),
    ("method told of no momentum", FACTS, "momentum=training.momentum,", "momentum=0.0,"),
    ("mean loss not divided", RESULT, 'numbers["loss"] / numbers["total"]', 'numbers["loss"] / numbers["total"].mean()'),
    ("measured a round late", RUN, "self.evaluation.is_due(round_, self", "self.evaluation.is_due(round_ - 1, self"),
    ("a run goes on one round late", RUN, "self.resumed_from = found.round\n            restore(self.parts", "self.resumed_from = found.round + 1\n            restore(self.parts"),
    ("window one round short", SETTINGS, "round_ >= rounds - self.window", "round_ > rounds - self.window"),
    ("cohorts rounded", SETTINGS, "int(clients * self.sample_rate + 1e-9)", "round(clients * self.sample_rate)"),
    ("measured in training mode", EVALUATE, "trainer.model.eval()\n    made", "trainer.model.train()\n    made"),
    ("scores of clients misaligned", EVALUATE, "for client in range(data.clients)])[:-1]", "for client in range(data.clients)])[:-1] - 1"),
    ("first position of texts for the last", TASK, "hits[..., -1]) if self.is_text", "hits[..., 0]) if self.is_text"),
    ("weight of neighbours inverted", METHOD, "self.neighbours, self.knn,", "self.neighbours, 1 - self.knn,"),
    ("far neighbours weigh more", NEIGHBOURS, "np.exp(squares[:, :1] - squares)", "np.exp(0.1 * (squares - squares[:, :1]))"),
    ("one neighbour too many", NEIGHBOURS, "min(neighbours,", "min(neighbours + 1,"),
    ("neighbours of test samples among test samples", TRAINER, "torch.split(self.data.train[client], size)", "torch.split(self.data.test[client], size)"),
    ("personal state restored to the next client", STATE, "self._packed[start:end] = rows.numpy()", "self._packed[start:end] = rows.numpy()[::-1]"),
    ("momentum of the server forgotten by checkpoints", STATE, 'strip_prefix("extra/", moved))', '{name: t * ("momentum" not in name) for name, t in strip_prefix("extra/", moved).items()})'),
    ("personal states overlap", STATE, "torch.from_numpy(self._packed[client])", "torch.from_numpy(self._packed[0])"),
    ("bytes up and down exchanged", STATE, "self.up + up, self.down + down", "self.up + down, self.down + up"),
    ("labels of other samples", DATA, "Batch(images, self.labels[rows])", "Batch(images, self.labels[(rows + 1) % len(self.labels)])"),
    ("texts predict their own characters", DATA, "Batch(characters[..., :-1], characters[..., 1:])", "Batch(characters[..., :-1], characters[..., :-1])"),
    ("images not divided by their deviation", DATA, ".sub_(self.mean).div_(self.std)", ".sub_(self.mean)"),
    ("same noise in each round", DATA, '"noise", round_)', '"noise", 0)'),
    ("class counts of test samples", DATA, "rows = self.train[client]\n", "rows = self.test[client]\n"),
    ("other corners when images are scaled", DATA, "align_corners=False", "align_corners=True"),
    ("fixed noise twice as strong", NOISE, "np.float32) * std", "np.float32) * std * 2"),
    ("fresh noise not Gaussian", FRESH, "(2 * math.pi * second).cos_()", "(math.pi * second).cos_()"),
    ("order of a stream's ids ignored", SEEDS, "[seed, word, *ids]", "[seed, word, *sorted(ids)]"),
    ("streams of different purpose mixed up", SEEDS, "purpose.encode()", "purpose[:1].encode()"),
    ("buffers generated", GROUPS, "made = (groups.select(generated) - own) & groups.parameters", "made = groups.select(generated) - own"),
    ("dropout does not scale", DROPOUT, "mul_(_LEVELS / (_LEVELS - dropped))", "mul_(1.0)"),
    ("attention in bfloat16 not scaled", FORWARD, ".float() / math.sqrt(q.shape[-1])", ".float()"),
    ("stored numbers those of the whole model", RUN, "stored=count(self.kept)", "stored=count(self.initial)"),
    ("stacked: clients that are done go on", STEP, "torch.where(taken, tensor,", "torch.where(taken | True, tensor,"),
    ("stacked: batch norm sees what fills up", STEP, "mean = (x * counts).sum(over) / count", "mean = x.mean(over)"),
    ("stacked: no momentum", OPTIMIZERS, "_plus(slopes, state, training.momentum) if state", "_plus(slopes, state, 0.0) if state"),
    ("stacked: attention not scaled", FORWARD, "q * float(q.shape[-1] ** -0.5)", "q"),
    ("stacked: layer norm without its bias", STEP, "made if bias is None else made + bias\n\n\ndef _linear", "made\n\n\ndef _linear"),
    ("stacked: padding measured", STACKED, "part[index, : len(rows[index])]", "part[index]"),
    ("stacked: buffers lost", STEP, "_write_back(list(zip(targets, fresh, strict=True)))", "None"),
    ("stacked: same dropout for all", STACKED, "round_, client, at or 0, one_pass)", "round_, clients[0], at or 0, one_pass)"),
    ("pooled: pieces begin anew", POOLED, "begun.pop(piece.job, None), piece.stop", "begun.pop(piece.job, None) and None, piece.stop and 1"),
    ("pooled: outcomes of other workers", POOLED, "Outcome(client, worker.copy(), answer)", "Outcome(client, self.workers[0].copy(), answer)"),
    ("fewest samples off by one", PARTITION, "if reached >= least:", "if reached > least:"),
    ("parts truncated", PARTITION, "total / total[-1] * count + 0.5)", "total / total[-1] * count)"),
    ("novel clients rounded down", PARTITION, "round(share * clients)", "int(share * clients)"),
    ("share of training samples rounded down", PARTITION, "np.floor(held * scheme.train_share + 0.5)", "np.floor(held * scheme.train_share)"),
    ("test samples drawn for training", PARTITION, "train = ~drawn", "train = drawn"),
    ("stand-ins with fewer test samples", STAND_IN, "max(train // 4, 1)", "max(train // 5, 1)"),
    ("stand-ins of one class beside another", STAND_IN, "centres[labels] + spread", "centres[labels - 1] + spread"),
    ("novel clients reported as others", STAGE, '["test", "novel", *', '["novel", "test", *'),
    ("Adam's moments not corrected for their beginning", OPTIMIZERS, "size, scale = lr / (1 - training.beta1**steps)", "size, scale = lr / (1 - training.beta1)"),
    ("Nesterov's step that of plain momentum", OPTIMIZERS, "if training.nesterov else moved\n        torch", "if False else moved\n        torch"),
    ("a schedule one round late", TRAINER, "learning_rate(training, max(0, round_ - 1) + within)", "learning_rate(training, max(0, round_ - 2) + within)"),
    ("a memory of test samples", TRAINER, "torch.split(self.data.train[client], size)", "torch.split(self.data.test[client], size)"),
    ("validation samples drawn by another seed", PARTITION, 'generator(seed, "partition validation")', 'generator(seed + 1, "partition validation")'),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a word in the descriptions of those to plant")
    wanted = parser.parse_args().only
    chosen = [mutant for mutant in MUTANTS if wanted in mutant[0]]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for package in ("pflcore", "pipeline"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(SOURCE / package, Path(folder) / package, ignore=ignored)
        print("| mistake | probe that notices | by | how clearly | seconds |\n|---|---|---|---|---:|")
        for what, name, old, new in chosen:
            path = Path(folder) / name
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{name}: {old!r} occurs {text.count(old)} times"
            path.write_text(text.replace(old, new), encoding="utf-8")
            began = time.monotonic()
            said = _probed(Path(folder))
            missed += said is None
            print(f"| {what} | {said or '**none** | | '} | {time.monotonic() - began:.0f} |", flush=True)
            path.write_text(text, encoding="utf-8")
    print(f"\n{len(chosen) - missed} of {len(chosen)} noticed")
    return bool(missed)


def _probed(folder: Path) -> str | None:
    """What notices that the packages in `folder` are not as they should be."""
    context = multiprocessing.get_context("fork")  # libraries are imported once for all
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(folder, theirs))
    process.start()
    theirs.close()
    try:
        said: str | None = ours.recv()
    except EOFError:
        said = "all | it ends | fails"
    process.join()
    return said


def _probe(folder: Path, pipe: Connection) -> None:
    sys.path[0] = str(folder)  # in place of this folder
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    try:
        pipe.send(_notice(folder))
    except Exception as error:
        pipe.send(f"all | {type(error).__name__} | fails")


def _notice(folder: Path) -> str | None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from pins.cases import CASES
    from pins.pins import changes, numbers_of, read_pins

    known = read_pins("numbers")
    for ways in (False, True):
        for case in CASES:
            try:
                found = changes("numbers", case.name, known[case.name], numbers_of(case, *(case.ways if ways else ())))
            except Exception as error:
                return f"{case.name} | {type(error).__name__} | fails"
            if found:
                return f"{case.name} | {found[0]} | differs"
    return None


if __name__ == "__main__":
    import pyarrow.parquet  # noqa: F401
    import safetensors.torch  # noqa: F401
    import sklearn.neighbors  # noqa: F401
    import torch

    torch.set_num_threads(1)
    sys.exit(main())
