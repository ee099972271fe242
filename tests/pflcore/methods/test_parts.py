"""FedRep, FedBABU, LG-FedAvg, Per-FedAvg and chosen personal groups, against rounds written out by hand."""

from __future__ import annotations

import pytest
import torch
from support.by_hand import SEED, Rounds, State, losses
from support.tiny import backbone, federation, method, result_bytes, run, training
from torch import Tensor

from pflcore.errors import UserError
from pflcore.method import Batch
from pflcore.methods.per_fedavg import split_batch
from pflcore.seeds import generator
from pflcore.settings import Training

ROUNDS = training(rounds=2, sample_rate=1.0, local_epochs=3, lr=0.05, momentum=0.5, weight_decay=0.01)
BODY_BYTES = sum(tensor.nbytes for name, tensor in Rounds().x.items() if not name.startswith("head."))


def tuned(hand: Rounds, client: int, names: list[str] | None, lr: float, steps: int | None, epochs: int) -> float:
    """The loss after plain SGD on a client's own samples, in the batches that follow the last round."""
    rows = hand.passes(client, "tuning", hand.settings.rounds, epochs)
    if steps:
        order, own = generator(SEED, "tuning", hand.settings.rounds, client), hand.data.train[client]
        rows = [own[order.permutation(len(own))[: hand.settings.batch_size]] for _ in range(steps)]
    hand.lend(hand.x, hand.own[client])
    named = dict(hand.model.named_parameters())
    sgd = torch.optim.SGD([named[name] for name in names or named], lr)
    for batch in rows:
        hand.model.zero_grad()
        hand.cross_entropy(batch).backward()
        sgd.step()
    return hand.loss(client, hand.state())


@pytest.mark.parametrize(
    ("own", "epochs", "local_steps", "clip"),
    [("head.", 1, None, None), ("head. fc", 2, None, 0.3), ("head.", 1, 5, 0.3)],
)
def test_fedrep(own: str, epochs: int, local_steps: int | None, clip: float | None) -> None:
    """First the head, then the body; of local steps each has its share by epochs."""
    settings = Training(**{**vars(ROUNDS), "clip": clip, "local_steps": local_steps, "weight_decay": 0.0})
    hand = Rounds("convnet", settings)
    mine = [name for name in hand.parameters() if name.startswith(tuple(own.split()))]
    body = [name for name in hand.parameters() if name not in mine]
    hand.own = [{name: hand.x.pop(name) for name in mine}] * 3

    def descend(steps: list[Tensor], names: list[str]) -> None:
        moved = [hand.model.get_parameter(name) for name in names]
        sgd = torch.optim.SGD(moved, settings.lr, momentum=0.5)
        for rows in steps:
            hand.model.zero_grad()
            hand.cross_entropy(rows).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(moved, clip)
            sgd.step()

    def client(i: int, round_: int) -> State:
        rows, data = hand.rows(i, round_), hand.data.train[i]
        first = epochs * len(rows) // 3  # of three epochs
        if local_steps:
            order = generator(SEED, "batches", round_, i)
            rows = [data[order.permutation(len(data))[:5]] for _ in range(local_steps)]
            first = epochs * -(-len(data) // 5)
        hand.lend(hand.x, hand.own[i])
        descend(rows[:first], mine)
        descend(rows[first:], body)
        hand.own[i] = {name: hand.state()[name] for name in mine}
        return hand.state()

    hand.average(client, "uniform")
    hand.check(hand.run(method("fedrep", head_epochs=epochs, also_personal=("fc",) if "fc" in own else ())))


def test_joint_training_is_fedper_and_heads_can_be_tuned_before_they_are_measured() -> None:
    words = r"^fedrep: method\.head_epochs = 1 of training\.local_epochs = 1 leaves no local step"
    with pytest.raises(UserError, match=words):
        run(method("fedrep", head_epochs=1.0), backbone("convnet"), training=training(local_epochs=1))
    hand = Rounds("convnet", ROUNDS, own="head.")
    joint, fedper = hand.run(method("fedrep", schedule="joint", averaging="samples")), hand.run(method("fedper"))
    assert result_bytes(joint) == result_bytes(fedper)
    plain, after = (hand.run(method("fedrep", head_epochs=1, finetune_epochs=epochs)) for epochs in (0, 2))
    assert plain.cost.sent_up == BODY_BYTES
    assert all(torch.equal(after.weights[name], plain.weights[name]) for name in plain.weights)  # nothing is kept
    hand.x = {name: plain.weights[name] for name in hand.x}
    hand.own = [{name: plain.weights[f"client.{i}.{name}"] for name in own} for i, own in enumerate(hand.own)]
    losses(after, [tuned(hand, i, hand.parameters(head=True), ROUNDS.lr, None, 2) for i in range(3)])


@pytest.mark.parametrize(("parts", "steps", "lr"), [("all", None, 0.2), ("head", 3, None)])
def test_fedbabu(parts: str, steps: int | None, lr: float | None) -> None:
    """It trains the body and tunes a copy, without momentum and decay; its head is neither trained nor sent."""
    hand = Rounds("convnet", ROUNDS, own="head.")
    hand.average(lambda i, round_: hand.train(i, round_, moved=hand.parameters(head=False)), "uniform")
    options = {"finetune_parts": parts, "finetune_steps": steps, "finetune_epochs": 2, "finetune_lr": lr}
    names = hand.parameters(head=True) if parts == "head" else None
    measured = [tuned(hand, i, names, lr or ROUNDS.lr, steps, 2) for i in range(3)]
    for executor in ("sequential", "stacked"):
        result = hand.run(method("fedbabu", **options), executor)
        hand.check(result, measured=False)
        losses(result, measured)
    assert result.cost.sent_up == result.cost.sent_down == BODY_BYTES


def test_lg_fedavg() -> None:
    hand, shared = Rounds("convnet", ROUNDS), ("fc", "head")
    hand.own = [{name: t for name, t in hand.initial.items() if not name.startswith(shared)} for _ in range(3)]
    hand.x = {name: tensor for name, tensor in hand.initial.items() if name.startswith(shared)}
    hand.average(hand.train, "uniform")
    result = hand.run(method("lg_fedavg", shared=shared))
    hand.check(result)
    assert result.cost.sent_up == sum(tensor.nbytes for tensor in hand.x.values())


@pytest.mark.parametrize(("alpha", "momentum"), [(None, 0.5), (0.3, 0.0)])
def test_per_fedavg(alpha: float | None, momentum: float) -> None:
    """Steps by the gradient after a step; of a batch of one sample both halves are it."""
    settings = training(rounds=2, sample_rate=1.0, momentum=momentum, weight_decay=0.01)
    hand = Rounds("convnet", settings, federation((14, 6, 1), (5, 8, 4)))
    inner = alpha or settings.lr

    def ahead(w: State, rows: Tensor) -> State:
        return w | {n: w[n] - inner * slope for n, slope in hand.slopes(w, rows).items()}

    def client(i: int, round_: int) -> State:
        hand.lend(hand.x)
        sgd = torch.optim.SGD(hand.model.parameters(), settings.lr, momentum, weight_decay=0.01)
        for rows in hand.rows(i, round_):
            first, second = (rows, rows) if len(rows) == 1 else (rows[: len(rows) // 2], rows[len(rows) // 2 :])
            w = hand.state()
            slopes = hand.slopes(ahead(w, first), second)
            hand.lend(w)
            for name, parameter in hand.model.named_parameters():
                parameter.grad = slopes[name]
            sgd.step()
        return hand.state()

    hand.average(client)
    batches = [(own, generator(SEED, "tuning", 2, i)) for i, own in enumerate(hand.data.train)]
    models = [ahead(hand.x, own[order.permutation(len(own))[:5]]) for own, order in batches]
    for executor in ("sequential", "stacked"):
        hand.check(hand.run(method("per_fedavg", alpha=alpha), executor), models=models)


@pytest.mark.parametrize(
    ("size", "fewest", "first", "second"), [(1, 1, 1, 1), (5, 1, 2, 3), (1, 2, 1, 1), (3, 2, 3, 3), (5, 2, 2, 3)]
)
def test_halves_of_a_batch(size: int, fewest: int, first: int, second: int) -> None:
    """Batch norm gets no half of one sample."""
    one, other = split_batch(Batch(torch.arange(size), torch.arange(size)), fewest)
    assert one.labels.tolist() == list(range(first)) == one.inputs.tolist()
    assert other.labels.tolist() == list(range(size - second, size)) == other.inputs.tolist()


@pytest.mark.parametrize(
    ("groups", "same", "net"),
    [
        (("norm",), "fedbn", "tiny_vit"),
        (("attention.qkv",), "vanilla_attention", "tiny_vit"),
        ((), "fedavg", "convnet"),
    ],
)
def test_special_cases_have_names(groups: tuple[str, ...], same: str, net: str) -> None:
    """FedBN alone has another mean: its clients count alike."""
    averaging = "uniform" if same == "fedbn" else None
    chosen = run(method("personal_groups", groups=groups, averaging=averaging), backbone(net))
    also = run(method("fedavg", also_personal=groups, averaging=averaging), backbone(net))
    assert result_bytes(chosen) == result_bytes(run(method(same), backbone(net))) == result_bytes(also)
