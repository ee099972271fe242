"""Methods with a model beside the global one, and FedNova, against plain loops with ``backward``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from support.tiny import (
    EVERY_ROUND,
    SHAPE,
    assert_states_close,
    backbone,
    facts,
    federation,
    method,
    normalised,
    result_bytes,
    run,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.groups import Roles
from pflcore.method import Federation, Update
from pflcore.methods.fednova import gradient_weight
from pflcore.seeds import generator
from pflcore.settings import Training

SEED = 3
ROUNDS = training(rounds=2, sample_rate=1.0, lr=0.05)
DATA = federation((14, 7), (5, 8))
Model = dict[str, Tensor]


def initial() -> Model:
    return {k: v.clone() for k, v in backbone("convnet").create(SHAPE, DATA.classes, SEED)[0].state_dict().items()}


NET: nn.Module = backbone("convnet").create(SHAPE, DATA.classes, SEED)[0]


def batches(client: int, round_: int) -> Iterator[Tensor]:
    order = generator(SEED, "batches", round_, client)
    for _ in range(ROUNDS.local_epochs):
        rows = DATA.train[client][order.permutation(len(DATA.train[client]))]
        yield from torch.split(rows, ROUNDS.batch_size)


def slope(model: Model, rows: Tensor) -> Model:
    """The gradient of the mean cross-entropy, by ``backward``."""
    net = copy.deepcopy(NET)
    net.load_state_dict(model)
    F.cross_entropy(net(normalised(DATA, rows)), DATA.labels[rows]).backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def accuracy(models: list[Model]) -> list[int]:
    """Correct predictions of each client's model on its test samples."""
    counts = []
    for client, model in enumerate(models):
        NET.load_state_dict(model)
        rows = DATA.test[client]
        counts.append(int((NET(normalised(DATA, rows)).argmax(1) == DATA.labels[rows]).sum()))
    return counts


def plus(model: Model, change: Model, factor: float) -> Model:
    return {name: tensor + factor * change[name] for name, tensor in model.items()}


def average(models: list[Model]) -> Model:
    shares = [len(rows) / sum(map(len, DATA.train)) for rows in DATA.train]
    return {name: sum(s * m[name] for s, m in zip(shares, models, strict=True)) for name in models[0]}  # type: ignore[misc]


def by_hand(train: Callable[[Model, Model, int, int], tuple[Model, Model]]) -> tuple[Model, list[Model]]:
    """The global model and the clients' own after two rounds of a method's local training."""
    w, mine = initial(), [initial() for _ in DATA.train]
    for round_ in (1, 2):
        done = [train(w, mine[client], client, round_) for client in range(2)]
        w, mine = average([model for model, _ in done]), [own for _, own in done]
    return w, mine


def trained(name: str, data: FederatedData = DATA, settings: Training = ROUNDS, **options: object) -> Result:
    return run(
        method(name, **options), backbone("convnet"), data, training=settings, evaluation=EVERY_ROUND, seed=SEED,
        executor="sequential",
    )  # fmt: skip


def check(result: Result, w: Model, mine: list[Model], measured: list[Model]) -> None:
    assert_states_close({name: result.weights[name] for name in w}, w, 1e-5)
    for client, model in enumerate(mine):
        kept = {name: result.weights[f"client.{client}.own/{name}"] for name in model}
        assert_states_close(kept, model, 1e-5)
    assert result.correct[-2:].tolist() == accuracy(measured)


def test_ditto_pulls_its_own_model_towards_what_was_received() -> None:
    def local(received: Model, v: Model, client: int, round_: int) -> tuple[Model, Model]:
        w = received
        for rows in batches(client, round_):
            w = plus(w, slope(w, rows), -ROUNDS.lr)
            pull = {name: tensor + 0.7 * (v[name] - received[name]) for name, tensor in slope(v, rows).items()}
            v = plus(v, pull, -ROUNDS.lr)
        return w, v

    w, mine = by_hand(local)
    check(trained("ditto", lam=0.7), w, mine, mine)


def test_dittos_global_model_is_fedavgs() -> None:
    ditto, fedavg = trained("ditto"), trained("fedavg")
    assert_states_close({name: ditto.weights[name] for name in fedavg.weights}, fedavg.weights)
    assert ditto.cost.sent_up == fedavg.cost.sent_up


def test_pfedme_follows_its_two_loops() -> None:
    def local(received: Model, _: Model, client: int, round_: int) -> tuple[Model, Model]:
        w = theta = received
        for rows in batches(client, round_):
            for _ in range(3):
                pull = {name: tensor + 2.0 * (theta[name] - w[name]) for name, tensor in slope(theta, rows).items()}
                theta = plus(theta, pull, -ROUNDS.lr)
            w = {name: tensor - ROUNDS.lr * 2.0 * (tensor - theta[name]) for name, tensor in w.items()}
        return w, theta

    w, mine = by_hand(local)
    check(trained("pfedme", lam=2.0, inner_steps=3), w, mine, mine)


def test_what_is_also_personal_is_not_pulled_by_pfedme() -> None:
    """Nor by Ditto: such groups follow the gradient of their own model alone, from where they were."""
    kept: dict[tuple[str, int], Model] = {}

    def free(name: str) -> bool:
        return name.startswith("head.")

    def pfedme(received: Model, _: Model, client: int, round_: int) -> tuple[Model, Model]:
        w = theta = {**received, **kept.get(("pfedme", client), {})}
        for rows in batches(client, round_):
            for _ in range(3):
                pull = {
                    name: tensor + (0 if free(name) else 2.0 * (theta[name] - w[name]))
                    for name, tensor in slope(theta, rows).items()
                }
                theta = plus(theta, pull, -ROUNDS.lr)
            w = {
                name: theta[name] if free(name) else tensor - ROUNDS.lr * 2.0 * (tensor - theta[name])
                for name, tensor in w.items()
            }
        kept["pfedme", client] = {name: tensor for name, tensor in w.items() if free(name)}
        return w, theta

    def ditto(received: Model, v: Model, client: int, round_: int) -> tuple[Model, Model]:
        received = {**received, **kept.get(("ditto", client), {})}
        w = received
        for rows in batches(client, round_):
            w = plus(w, slope(w, rows), -ROUNDS.lr)
            pull = {
                name: tensor + (0 if free(name) else 2.0 * (v[name] - received[name]))
                for name, tensor in slope(v, rows).items()
            }
            v = plus(v, pull, -ROUNDS.lr)
        kept["ditto", client] = {name: tensor for name, tensor in w.items() if free(name)}
        return w, v

    for name, local, options in (("pfedme", pfedme, {"inner_steps": 3}), ("ditto", ditto, {})):
        w, mine = by_hand(local)
        result = trained(name, lam=2.0, also_personal=("head",), **options)
        check(result, {key: tensor for key, tensor in w.items() if not free(key)}, mine, mine)
        for client in range(2):
            heads = {key: result.weights[f"client.{client}.{key}"] for key in kept[name, client]}
            assert_states_close(heads, kept[name, client], 1e-5)


def test_pfedmes_server_mixes() -> None:
    one = training(rounds=1, sample_rate=1.0)
    start, whole, part = initial(), trained("pfedme", settings=one), trained("pfedme", settings=one, beta=0.2)
    for name, tensor in start.items():
        expected = 0.8 * tensor + 0.2 * whole.weights[name]
        torch.testing.assert_close(part.weights[name], expected, atol=1e-6, rtol=1e-5)


def test_many_inner_steps_reach_the_proximal_point() -> None:
    """Where the gradient of the objective vanishes. λ is large, for between kinks of the loss there may be none."""
    settings = training(rounds=1, sample_rate=1.0, local_epochs=1, batch_size=100, lr=0.002)
    result = trained("pfedme", settings=settings, lam=100.0, inner_steps=300)
    theta = {name: result.weights[f"client.0.own/{name}"] for name in initial()}
    start, order = initial(), generator(SEED, "batches", 1, 0).permutation(14)
    gradient = slope(theta, DATA.train[0][order])
    for name, tensor in gradient.items():
        torch.testing.assert_close(tensor, 100.0 * (start[name] - theta[name]), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("begun", [0.4, 0.0])
@pytest.mark.parametrize("variant", ["as_written", "as_released"])
def test_apfl_learns_its_weight(variant: str, begun: float) -> None:
    alphas, wanted = [begun, begun], set()

    def mixed(alpha: float, v: Model, w: Model) -> Model:
        return {name: alpha * tensor + (1 - alpha) * w[name] for name, tensor in v.items()}

    def local(received: Model, v: Model, client: int, round_: int) -> tuple[Model, Model]:
        w, alpha = received, alphas[client]
        for rows in batches(client, round_):
            of_w, of_v = slope(w, rows), slope(v, rows)
            toward = slope(mixed(alpha, v, w), rows) if variant == "as_written" else mixed(alpha, of_v, of_w)
            step = {name: alpha * tensor for name, tensor in toward.items()} if variant == "as_written" else of_v
            before = v, w
            w, v = plus(w, of_w, -ROUNDS.lr), plus(v, step, -ROUNDS.lr)
            mine, common = before if variant == "as_written" else (v, w)
            along = sum(float(((mine[name] - common[name]) * toward[name]).sum()) for name in v) + 0.02 * alpha
            wanted.add(alpha - ROUNDS.lr * along)
            alpha = min(1.0, max(0.0, alpha - ROUNDS.lr * along))
        alphas[client] = alpha
        return w, v if variant == "as_written" else mixed(alpha, v, w)

    w, mine = by_hand(local)
    result = trained("apfl", alpha=begun, variant=variant)
    measured = [mixed(alphas[client], own, w) for client, own in enumerate(mine)] if variant == "as_written" else mine
    check(result, w, mine, measured)
    for client, alpha in enumerate(alphas):
        assert float(result.weights[f"client.{client}.own/alpha"]) == pytest.approx(alpha, abs=1e-5)
        assert not begun or alpha != pytest.approx(begun, abs=1e-5)
    assert begun or variant == "as_released" or min(wanted) < 0  # cut off there


@pytest.mark.parametrize("variant", ["as_written", "as_released"])
def test_apfls_weight_ends_at_nothing_and_at_all(variant: str) -> None:
    """Steps this long would go beyond either end."""
    result = trained("apfl", settings=training(sample_rate=1.0, lr=3.0), alpha=0.99, variant=variant)
    low, high = (float(result.weights[f"client.{client}.own/alpha"]) for client in range(2))
    assert 0 <= low < 0.1 and high == 1


def test_apfls_weight_can_be_fixed_and_at_one_is_training_alone() -> None:
    fixed = trained("apfl", alpha=1.0, adaptive=False)
    alone = trained("local", schedule="when_sampled")
    for client in range(2):
        for name in initial():
            torch.testing.assert_close(
                fixed.weights[f"client.{client}.own/{name}"], alone.weights[f"client.{client}.{name}"],
                atol=1e-6, rtol=1e-5,
            )  # fmt: skip
    assert fixed.correct.tolist() == alone.correct.tolist()


def test_what_happens_after_the_last_step_happens_in_every_executor() -> None:
    def train(executor: str) -> Result:
        chosen = method("apfl", variant="as_released")
        return run(chosen, backbone("convnet"), federation((13, 3, 10)), training=ROUNDS, executor=executor)

    reference = train("sequential")
    assert result_bytes(train("pooled")) == result_bytes(reference)
    assert_states_close(train("stacked").weights, reference.weights, 5e-6)


# --- FedNova -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_weight_of_gradients_is_what_sgd_gives_them(steps: int, momentum: float) -> None:
    """With a constant gradient of 1 and a learning rate of 1 the update is that weight."""
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    sgd = torch.optim.SGD([x], lr=1.0, momentum=momentum)
    for _ in range(steps):
        x.grad = torch.ones_like(x)
        sgd.step()
    assert gradient_weight(steps, momentum) == pytest.approx(-float(x.detach()))


def test_fednova_divides_by_steps() -> None:
    fednova, roles = method("fednova"), Roles(frozenset({"x"}), frozenset(), frozenset())
    before = {"x": torch.tensor([1.0])}
    server = fednova.init_server(before, roles, Federation(2, 0))
    updates = [
        Update(0, 30, sent=before, returned={"x": torch.tensor([3.0])}, steps=4),
        Update(1, 10, sent=before, returned={"x": torch.tensor([2.0])}, steps=1),
    ]
    # p = (3/4, 1/4), tau = 3.25, sum of p * change / steps = 3/4 * 2/4 + 1/4 * 1 = 0.625
    after = fednova.update_server(server, roles, updates)
    assert float(after.shared["x"]) == pytest.approx(1 + 3.25 * 0.625)


def test_a_server_keeps_no_constants_beside_its_model() -> None:
    """What it needs of the federation it is told, momentum of clients and number of rounds among it."""
    for name in ("fednova", "fedkd"):
        entry = method(name)
        assert entry.init_server(*facts(entry, backbone("convnet"))).extra == {}
    sizes = [trained(name, settings=training(momentum=0.5)).cost.server for name in ("fednova", "fedavg")]
    assert sizes[0] == sizes[1]


def test_fednova_is_fedavg_when_all_take_the_same_steps() -> None:
    data = federation((10, 10), (5, 5))
    settings = training(rounds=2, sample_rate=1.0, momentum=0.5)
    nova, average_ = (trained(name, data, settings) for name in ("fednova", "fedavg"))
    assert_states_close({name: nova.weights[name] for name in average_.weights}, average_.weights, 1e-5)


def test_fednova_is_not_fedavg_otherwise() -> None:
    with pytest.raises(AssertionError):
        nova, average_ = (trained(name) for name in ("fednova", "fedavg"))
        assert_states_close({name: nova.weights[name] for name in average_.weights}, average_.weights, 1e-3)


def test_fednova_against_a_plain_loop() -> None:
    w = initial()
    for round_ in (1, 2):
        changes, norms = [], []
        for client in range(2):
            mine = w
            for rows in batches(client, round_):
                mine = plus(mine, slope(mine, rows), -ROUNDS.lr)
            norms.append(ROUNDS.local_epochs * math.ceil(len(DATA.train[client]) / ROUNDS.batch_size))
            changes.append({name: (w[name] - mine[name]) / norms[-1] for name in w})
        shares = [14 / 21, 7 / 21]
        tau = sum(share * norm for share, norm in zip(shares, norms, strict=True))
        mean = {name: sum(s * c[name] for s, c in zip(shares, changes, strict=True)) for name in w}
        w = plus(w, mean, -tau)  # type: ignore[arg-type]
    result = trained("fednova")
    assert_states_close({name: result.weights[name] for name in w}, w, 1e-5)
