"""Novel clients that tune a part on their own samples, against plain loops with ``backward``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import EXECUTORS, backbone, federation, method, result_bytes, run, training
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from pflcore.analyses import adaptation
from pflcore.analyses.adaptation import Adaptation
from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.engine.analysis import Analysis
from pflcore.engine.evaluation import SplitScores, score_client
from pflcore.errors import UserError
from pflcore.seeds import generator
from pflcore.settings import Evaluation

SEED = 3
NOVEL = 2
EPOCHS = 3
LR = 0.1
LAST = Evaluation(every=1, window=0)
ROUNDS = training(rounds=2, sample_rate=1.0)
Model = dict[str, Tensor]


def learnable(*sizes: Sequence[int], novel: int = NOVEL) -> FederatedData:
    """Classes that can be told apart, if not well, so that predictions depend on images."""
    data = federation(*sizes)
    patterns = generator(0, "patterns").integers(-60, 61, (data.classes, *data.inputs.shape[1:]))
    seen = data.inputs.numpy().astype(int) + patterns[data.labels.numpy()]
    inputs = torch.from_numpy(seen.clip(0, 255).astype(np.uint8))
    return dataclasses.replace(data, inputs=inputs, novel=frozenset({novel}))


# Many test samples, so that the counts of every epoch tell one model from another.
DATA = learnable((14, 7, 43), (5, 8, 400))


# Mean losses after each epoch of the last run of one part, of which the analysis keeps nothing.
LOSSES: list[float] = []


@pytest.fixture(autouse=True)
def losses(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(*given: Any) -> SplitScores:
        found = score_client(*given)
        LOSSES.append(found[0][2] / found[0][1])
        return found

    LOSSES.clear()
    monkeypatch.setattr(adaptation, "score_client", score)


def adapted(name: str, *parts: str, net: str = "convnet", data: FederatedData = DATA, **changes: Any) -> Result:
    analyses = tuning(*parts, epochs=EPOCHS, lr=LR)
    options = changes.pop("options", {})
    chosen = backbone(net, dropout=0.0) if net == "tiny_vit" else backbone(net)
    settings = {"training": ROUNDS, "evaluation": LAST, "seed": SEED, "executor": "sequential", **changes}
    return run(method(name, **options), chosen, data, analyses=analyses, **settings)


def tuning(*parts: str, **options: Any) -> dict[str, Analysis]:
    """The analysis, under its name."""
    return {"adaptation": Adaptation(parts=parts, **options)}


def counts(result: Result, part: str, client: int = NOVEL) -> list[int]:
    """Correct predictions after 0, 1, … epochs."""
    of = {(one.client, one.item): one.values for one in result.findings["adaptation"]}
    assert (of[client, f"{part}.total"] == len(DATA.test[client])).all()
    return of[client, f"{part}.correct"].astype(int).tolist()


def received(result: Result, net: str = "convnet") -> tuple[nn.Module, Model]:
    """The model before training, and its entries with what training made of the shared ones."""
    chosen = backbone(net, dropout=0.0) if net == "tiny_vit" else backbone(net)
    model, _ = chosen.create(DATA.shape, DATA.classes, SEED)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return model, {name: result.weights.get(name, tensor).clone() for name, tensor in state.items()}


def pictures(rows: Tensor) -> Tensor:
    return (DATA.inputs[rows].float() / 255 - DATA.mean) / DATA.std


def check(result: Result, part: str, tuned: Sequence[Tensor], logits: Callable[[Tensor, bool], Tensor]) -> None:
    """Compare with plain SGD on the tensors in `tuned`; `logits` takes images and whether it is in training."""
    correct, losses = [], []
    for tensor in tuned:
        tensor.requires_grad_()
    sgd = torch.optim.SGD(tuned, LR)
    for epoch in range(EPOCHS + 1):
        order = generator(SEED, "adaptation", epoch, NOVEL).permutation(len(DATA.train[NOVEL]))
        for rows in torch.split(DATA.train[NOVEL][torch.from_numpy(order)], ROUNDS.batch_size) if epoch else ():
            sgd.zero_grad()
            F.cross_entropy(logits(pictures(rows), True), DATA.labels[rows]).backward()
            sgd.step()
        rows = DATA.test[NOVEL]
        with torch.no_grad():
            made = logits(pictures(rows), False)
        correct.append(int((made.argmax(1) == DATA.labels[rows]).sum()))
        losses.append(float(F.cross_entropy(made, DATA.labels[rows])))
    assert counts(result, part) == correct
    np.testing.assert_allclose(LOSSES, losses, rtol=2e-6)
    assert np.abs(np.diff(losses)).min() > 2e-5  # every epoch made a difference


# --- parts of a model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part", "net", "own"),
    [
        ("fedavg", "head", "convnet", "head."),
        ("fedper", "personal", "convnet", "head."),
        ("vanilla_attention", "personal", "tiny_vit", "qkv"),
        # A second model begins as a copy of the global one.
        ("ditto", "personal", "convnet", ""),
        ("ditto", "head", "convnet", "head."),
    ],
)
def test_a_part_of_the_model_is_tuned_by_plain_sgd(name: str, part: str, net: str, own: str) -> None:
    result = adapted(name, part, net=net)
    model, state = received(result, net)
    model.load_state_dict(state)
    for entry, parameter in model.named_parameters():
        parameter.requires_grad_(own in entry)
    tuned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    check(result, part, tuned, lambda images, training: model.train(training)(images))


# --- hypernetworks --------------------------------------------------------------------------------------------------


def fresh(result: Result) -> Tensor:
    width = result.weights["server.hyper/embedding"].shape[1]
    drawn = generator(SEED, "adaptation embedding", NOVEL).standard_normal((1, width), np.float32)
    return torch.from_numpy(drawn)


def generated(hyper: Model, targets: dict[str, tuple[int, ...]], layers: int) -> Model:
    """What a multilayer perceptron with a head per target makes of the only row of its embedding."""
    hidden = hyper["embedding"][0]
    for layer in range(layers):
        hidden = hyper[f"mlp.{layer}.weight"] @ (hidden.relu() if layer else hidden) + hyper[f"mlp.{layer}.bias"]
    return {
        name: (hyper[f"heads.{name}.weight"] @ hidden + hyper[f"heads.{name}.bias"]).view(shape)
        for name, shape in targets.items()
    }


@pytest.mark.parametrize(("name", "net"), [("pfedhn", "convnet"), ("fedtp_fedrod", "tiny_vit")])
@pytest.mark.parametrize("part", ["embedding", "hypernetwork"])
def test_gradients_reach_a_fresh_embedding_through_the_hypernetwork(name: str, net: str, part: str) -> None:
    result = adapted(name, part, net=net, options={"layers": 2, "hidden": 6, "embedding": 4})
    model, state = received(result, net)
    hyper = {
        key.removeprefix("server.hyper/"): tensor.clone()
        for key, tensor in result.weights.items()
        if key.startswith("server.hyper/")
    }
    hyper["embedding"] = fresh(result)
    targets = {key: tuple(tensor.shape) for key, tensor in state.items() if f"heads.{key}.weight" in hyper}
    assert targets
    features: list[Tensor] = []
    read = "norm" if "fedrod" in name else "head"  # by a second classifier
    model.get_submodule(read).register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))

    def logits(images: Tensor, _: bool) -> Tensor:
        out: Tensor = functional_call(model, {**state, **generated(hyper, targets, 2)}, (images,))
        # A second classifier has begun as a copy of the first, and is not tuned.
        return out + F.linear(features[-1], state["head.weight"], state["head.bias"]) if "fedrod" in name else out

    check(result, part, [hyper["embedding"]] if part == "embedding" else [*hyper.values()], logits)


# --- any method -----------------------------------------------------------------------------------------------------


def test_executors_agree_and_the_run_stays_as_it_is() -> None:
    net = backbone("tiny_vit")  # with dropout
    plain: dict[str, Any] = {"training": ROUNDS, "evaluation": LAST, "seed": SEED}
    asked = {**plain, "analyses": tuning("personal", "all", epochs=2)}
    one, *others = (run(method("ditto"), net, DATA, executor=each, **asked) for each in EXECUTORS)
    for part in ("personal", "all"):
        assert all(counts(other, part) == counts(one, part) for other in others)
    assert result_bytes(run(method("ditto"), net, DATA, executor="sequential", **plain)) == result_bytes(one)


@pytest.mark.parametrize(
    ("name", "part", "net", "message"),
    [
        ("fedavg", "personal", "convnet", "method fedavg are measured with no part 'personal'.*: head, all$"),
        ("ditto", "hypernetwork", "convnet", "no part 'hypernetwork'; what can be tuned: head, personal, all$"),
        ("fedtp", "personal", "tiny_vit", "no part 'personal'.*: embedding, hypernetwork, head, all$"),
        # Its previous model is beside the model, but decides nothing.
        ("moon", "personal", "convnet", "no part 'personal'"),
        # Its predictions are made without the classifier.
        ("fedproto", "head", "convnet", "no part 'head'; what can be tuned: personal, all$"),
        ("fedavg", "body", "convnet", "must be one of 'embedding', "),
    ],
)
def test_a_part_that_is_not_there_is_an_error_before_training(name: str, part: str, net: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        adapted(name, "all", part, net=net, on_round=lambda _: pytest.fail("trained"))
    assert str(error.value).startswith("adaptation.parts") and "\n" not in str(error.value)
    with pytest.raises(UserError, match="novel_share"):
        adapted("fedavg", "all", data=federation())


def test_a_model_that_is_lost_is_never_right() -> None:
    analyses = tuning("all", "head", epochs=2, lr=1e30)
    result = run(method("fedavg"), backbone("convnet"), DATA, evaluation=LAST, analyses=analyses, executor="sequential")
    assert counts(result, "all")[1:] == [0, 0] and counts(result, "all")[0] == counts(result, "head")[0] > 0
