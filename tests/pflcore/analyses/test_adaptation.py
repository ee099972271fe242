"""Novel clients that tune a part on their own samples, against plain loops with ``backward``."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.mistakes import line_of, refuses
from support.tiny import EXECUTORS, backbone, federation, method, normalised, result_bytes, run, training
from torch.func import functional_call
from torch.nn import functional as F

from pflcore.analyses import adaptation
from pflcore.analyses.adaptation import Adaptation
from pflcore.engine.evaluation import score_client
from pflcore.groups import strip_prefix
from pflcore.seeds import generator
from pflcore.settings import Evaluation

SEED, NOVEL, EPOCHS, LR = 3, 2, 3, 0.1
NETS = {"convnet": backbone("convnet"), "tiny_vit": backbone("tiny_vit", dropout=0.0)}


@pytest.fixture(scope="module")
def data():
    """Classes that can be told apart, if not well, and many test samples: counts tell one model from another."""
    data_ = federation((14, 7, 43), (5, 8, 400))
    patterns = generator(0, "patterns").integers(-60, 61, (data_.classes, *data_.inputs.shape[1:]))
    seen = data_.inputs.numpy().astype(int) + patterns[data_.labels.numpy()]
    return replace(data_, inputs=torch.from_numpy(seen.clip(0, 255).astype(np.uint8)), novel=frozenset({NOVEL}))


@pytest.fixture
def scored(monkeypatch):
    """Mean losses after each epoch, of which the analysis keeps nothing."""
    losses = []

    def score(*args):
        result = score_client(*args)
        losses.append(result[0][2] / result[0][1])
        return result

    monkeypatch.setattr(adaptation, "score_client", score)
    return losses


def adapted(name, data, *parts, net="convnet", options=(), **changes):
    asked = {"epochs": EPOCHS, "lr": LR, **changes.pop("asked", {})}
    analyses = {"adaptation": Adaptation(parts=parts, **asked)} if parts else {}
    settings = {"training": training(sample_rate=1.0), "evaluation": Evaluation(every=1, window=0), "seed": SEED}
    chosen = {"executor": "sequential", **settings, **changes}
    return run(method(name, **dict(options)), NETS.get(net, net), data, analyses=analyses, **chosen)


def counts(result, part):
    """Correct predictions after 0, 1, … epochs."""
    values = {(finding.client, finding.item): finding.values for finding in result.findings["adaptation"]}
    assert (values[NOVEL, f"{part}.total"] == 400).all()
    return values[NOVEL, f"{part}.correct"].astype(int).tolist()


def received(result, data, net):
    """The model before training, and its entries with what training made of the shared ones."""
    model, _ = NETS[net].create(data.shape, data.classes, SEED)
    return model, {name: result.weights.get(name, tensor).clone() for name, tensor in model.state_dict().items()}


def check(result, data, scored, part, tuned, logits):
    """Compare with plain SGD on the tensors in `tuned`; `logits` takes images and whether it is in training."""
    correct, losses = [], []
    for tensor in tuned:
        tensor.requires_grad_()
    sgd, train, test = torch.optim.SGD(tuned, LR), data.train[NOVEL], data.test[NOVEL]
    for epoch in range(EPOCHS + 1):
        order = torch.from_numpy(generator(SEED, "adaptation", epoch, NOVEL).permutation(len(train)))
        for rows in torch.split(train[order], 5) if epoch else ():
            sgd.zero_grad()
            F.cross_entropy(logits(normalised(data, rows), True), data.labels[rows]).backward()
            sgd.step()
        with torch.no_grad():
            predictions = logits(normalised(data, test), False)
        correct.append(int((predictions.argmax(1) == data.labels[test]).sum()))
        losses.append(float(F.cross_entropy(predictions, data.labels[test])))
    assert counts(result, part) == correct
    np.testing.assert_allclose(scored, losses, rtol=2e-6)
    assert np.abs(np.diff(losses)).min() > 2e-5  # every epoch made a difference


@pytest.mark.parametrize(
    "name, part, net, own",
    [
        ("fedavg", "head", "convnet", "head."),
        ("fedper", "personal", "convnet", "head."),
        ("vanilla_attention", "personal", "tiny_vit", "qkv"),
        # A second model begins as a copy of the global one.
        ("ditto", "personal", "convnet", ""),
        ("ditto", "head", "convnet", "head."),
    ],
)
def test_a_part_of_the_model_is_tuned_by_plain_sgd(name, part, net, own, data, scored):
    result = adapted(name, data, part, net=net)
    model, state = received(result, data, net)
    model.load_state_dict(state)
    for entry, parameter in model.named_parameters():
        parameter.requires_grad_(own in entry)
    tuned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    check(result, data, scored, part, tuned, lambda images, training: model.train(training)(images))


@pytest.mark.parametrize("name, net", [("pfedhn", "convnet"), ("fedtp_fedrod", "tiny_vit")])
@pytest.mark.parametrize("part", ["embedding", "hypernetwork"])
def test_gradients_reach_a_fresh_embedding_through_the_hypernetwork(name, net, part, data, scored):
    result = adapted(name, data, part, net=net, options={"layers": 2, "hidden": 6, "embedding": 4})
    model, state = received(result, data, net)
    hyper = {key: tensor.clone() for key, tensor in strip_prefix("server.hyper/", result.weights).items()}
    drawn = generator(SEED, "adaptation embedding", NOVEL).standard_normal((1, 4), np.float32)
    hyper["embedding"], features = torch.from_numpy(drawn), []
    read = "norm" if name == "fedtp_fedrod" else "head"  # by a second classifier
    model.get_submodule(read).register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))

    def linear(layer, x):
        return hyper[f"{layer}.weight"] @ x + hyper[f"{layer}.bias"]

    def logits(images, _):
        hidden = linear("mlp.1", linear("mlp.0", hyper["embedding"][0]).relu())
        heads = {n: linear(f"heads.{n}", hidden).view(t.shape) for n, t in state.items() if f"heads.{n}.bias" in hyper}
        out = functional_call(model, {**state, **heads}, (images,))
        # A second classifier has begun as a copy of the first, and is not tuned.
        return out + F.linear(features[-1], state["head.weight"], state["head.bias"]) if read == "norm" else out

    tuned = [hyper["embedding"]] if part == "embedding" else [*hyper.values()]
    check(result, data, scored, part, tuned, logits)


def test_executors_agree_and_the_run_stays_as_it_is(data):
    net = backbone("tiny_vit")  # with dropout
    first, *others = (adapted("ditto", data, "personal", "all", net=net, executor=each) for each in EXECUTORS)
    for part in ("personal", "all"):
        assert all(counts(other, part) == counts(first, part) for other in others)
    assert result_bytes(adapted("ditto", data, net=net)) == result_bytes(first)


@pytest.mark.parametrize(
    "name, part, net, message",
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
def test_a_part_that_is_not_there_is_an_error_before_training(name, part, net, message, data):
    line = line_of(adapted, name, data, "all", part, net=net, on_round=lambda _: pytest.fail("trained"))
    assert line.startswith("adaptation.parts") and re.search(message, line)
    refuses("novel_share", adapted, "fedavg", federation(), "all")


def test_a_model_that_is_lost_is_never_right(data):
    result = adapted("fedavg", data, "all", "head", asked={"epochs": 2, "lr": 1e30})
    assert counts(result, "all")[1:] == [0, 0] and counts(result, "all")[0] == counts(result, "head")[0] > 0
