"""The card of an exported model: what it is, what it was trained on, how good it is, how to load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.methods import METHODS
from pipeline.compile.serialise import to_yaml
from pipeline.spec.run import Run, describe_component


@dataclass(frozen=True)
class Card:
    """What is told of an exported model.

    Attributes:
        run: With what was chosen for it, if it was tuned; so `run_id` may not be its own.
        timm: The call of timm that builds the network, if that alone does.
        samples: The dataset's facts.
        measured, here: Correct predictions and predictions on the client's test samples, by the run and by the model.
        obtained: On what the run was trained.
        beside: Entries of the weights that are not the network's.
    """

    run: Run
    run_id: str
    client: int
    spec: str
    plain: bool
    timm: tuple[str, Mapping[str, Any]] | None
    samples: Samples
    training_samples: int
    measured: tuple[int, int]
    here: tuple[int, int]
    obtained: str
    beside: list[str]


def card(told: Card) -> str:
    """The card as Markdown."""
    return "\n\n".join(_paragraphs(told)) + "\n"


def _paragraphs(told: Card) -> Iterator[str]:
    run, samples, method = told.run, told.samples, METHODS.get(told.run.method)
    yield f"# {run.method}: the model of client {told.client} on {run.dataset}"
    about = (method.__doc__ or "").split("\n\n")[0].strip()
    yield f"{about} {f'({method.citation}.)' if method.citation else ''}".strip()
    correct, total = told.measured
    yield (
        f"Accuracy on this client's {samples.name} test samples: **{100 * correct / total:.2f} %** ({correct} of "
        f"{total}), measured by run `{told.run_id}` of `{told.spec}` on {told.obtained}. " + _again(told)
    )
    yield "## Load it"
    yield from _loading(told)
    yield "## Data and settings"
    yield (
        f"{told.training_samples:,} training samples of client {told.client} out of {run.clients}, dealt by "
        f"{describe_component(run.record['partition'])} under seed {run.seed}. Data: {samples.source}. Licence of the "
        f"data: {DATASETS.get(run.dataset).licence}."
    )
    yield "Classes, in the order of the logits: " + ", ".join(samples.class_names) + "."
    yield f"```yaml\n{to_yaml(run.record)}```"


def _again(told: Card) -> str:
    if told.here == told.measured:
        return "The exported model is right on as many."
    return f"The exported model is right on {told.here[0]} where it was exported: sums round differently there."


def _loading(told: Card) -> Iterator[str]:
    yield f"`predict` and the lines below take {_samples(told.samples)}, and give logits."
    if told.timm:
        yield from _with_timm(told, *told.timm)
    if not told.plain:
        rest = (
            f", and beside the network's entries {', '.join(f'`{name}`' for name in told.beside)}"
            if told.beside
            else ""
        )
        yield (
            "The network by itself is **not** what was measured: the method predicts by more than that. "
            f"`model.safetensors` has the network{rest}."
        )
    yield "In the study that it comes from:"
    yield _python("import pfl", f'model = pfl.open().model("{told.run_id}", client={told.client})')


def _with_timm(told: Card, name: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    samples = told.samples
    words = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    yield "With timm:"
    size = samples.size
    scaled = [f'images = torch.nn.functional.interpolate(images, ({size}, {size}), mode="bilinear")'] if size else []
    yield _python(
        "import timm, torch",
        "from safetensors.torch import load_file",
        f'model = timm.create_model("{name}", {words}).eval()',
        'model.load_state_dict(load_file("model.safetensors"))',
        f"mean = torch.tensor({list(samples.mean)}).view(-1, 1, 1)",
        f"std = torch.tensor({list(samples.std)}).view(-1, 1, 1)",
        f"images = ({_example(samples)} / 255 - mean) / std",
        *scaled,
        "logits = model(images)",
    )


def _samples(samples: Samples) -> str:
    if not samples.is_images:
        return f"texts (n, {samples.shape[0]}) of character numbers, int64"
    return f"images (n, {', '.join(map(str, samples.inputs.shape[1:]))}) of bytes, 0 to 255, uint8"


def _example(samples: Samples) -> str:
    shape = ", ".join(map(str, samples.inputs.shape[1:] if samples.is_images else samples.shape))
    return f"torch.zeros(5, {shape}, dtype=torch.{'uint8' if samples.is_images else 'int64'})"


def _python(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])
