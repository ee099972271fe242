"""Partitions: exact numbers, statistics, what is held back, and the same assignment as ever."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from support import assignments
from support.recorded import recorded
from support.toy_samples import ROLES, SAMPLES, class_counts, flat, make_samples

from pflcore.artifacts import read_table
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.federation import FederatedData
from pflcore.data.noise import Noise
from pflcore.data.samples import Attribute, Samples
from pflcore.datasets import DATASETS, stand_in
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, Partition, _deal, partition
from pflcore.partitions._deal import draw_counts, part_sizes
from pflcore.partitions.coarse_classes import coarse_of_classes

# --- partitions ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=PARTITIONS.names())
def scheme(request: pytest.FixtureRequest) -> Partition:
    return PARTITIONS.create(request.param, **{"quantity": {"alpha": 2.0}}.get(request.param, {}))


def test_an_entry_documents_itself(scheme: Partition) -> None:
    first = (type(scheme).__doc__ or "").splitlines()[0]
    assert 10 < len(first) < 90 and first.endswith(".")
    assert scheme.citation
    assert set(scheme.smoke) <= set(type(scheme).__dataclass_fields__)
    PARTITIONS.create(scheme.name, **scheme.smoke)


@pytest.mark.parametrize("clients", [5, 20, 60])
def test_every_sample_has_exactly_one_owner(scheme: Partition, clients: int) -> None:
    if scheme.name == "natural" and clients < ROLES:
        return  # some values go to nobody then
    assignment = partition(scheme, SAMPLES, clients, 0)
    assert assignment.clients == clients and assignment.scheme == scheme.name and assignment.seed == 0
    assignment.check(len(SAMPLES), SAMPLES.train)
    assert sorted(flat(assignment)) == list(range(len(SAMPLES)))


def test_training_and_test_distributions_of_a_client_agree(scheme: Partition) -> None:
    assignment = partition(scheme, SAMPLES, 20, 0)
    train, test = class_counts(assignment.train), class_counts(assignment.test)
    for own in zip(train, test, strict=True):
        table = np.array(own)[:, np.add(*own) > 0]
        assert table.shape[1] == 1 or chi2_contingency(table).pvalue > 1e-4
    if scheme.name in ("pathological", "dirichlet", "domain_dirichlet"):
        # The same shares cut both; a domain's classes are not exactly five to one themselves.
        assert np.abs(train / 5 - test).max() <= (1.2 if scheme.name != "domain_dirichlet" else 12)


def test_the_seed_alone_decides(scheme: Partition) -> None:
    np.random.seed(1)
    first = flat(partition(scheme, SAMPLES, 10, 3))
    np.random.seed(2)
    np.random.random(5)
    assert flat(partition(scheme, SAMPLES, 10, 3)) == first
    assert flat(partition(scheme, SAMPLES, 10, 4)) != first


def test_pathological_shares_lie_within_their_bounds() -> None:
    train = class_counts(partition(PARTITIONS.create("pathological"), SAMPLES, 50, 0).train)
    shares = train[train > 0] / 1000
    assert shares.min() >= 0.4 / (0.4 + 9 * 0.6) - 1e-3
    assert shares.max() <= 0.6 / (0.6 + 9 * 0.4) + 1e-3
    assert shares.std() > 0.005  # not simply equal


def test_dirichlet_stops_giving_to_full_clients() -> None:
    # A client below an equal part gets at most one more class, so it ends below an equal part plus one class.
    assignment = partition(PARTITIONS.create("dirichlet", alpha=0.1), SAMPLES, 10, 0)
    assert max(map(len, assignment.train)) < 1000 + 1000
    before_last = class_counts(assignment.train)[:, :-1].sum(1)
    last = class_counts(assignment.train)[:, -1]
    assert (before_last >= 1000).any() and (last[before_last >= 1000] == 0).all()


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_parts_are_within_one_sample_of_their_share(count: int) -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(40, 0.2))
    shares[-3:] = 0
    sizes = part_sizes(count, shares)
    assert sizes.sum() == count and sizes.min() >= 0 and (sizes[-3:] == 0).all()
    assert np.abs(sizes - shares / shares.sum() * count).max() <= 1


# --- partition schemes -----------------------------------------------------------------------------------------------


MADE = make_samples()


def cifar100_like(train: int = 50_000, test: int = 10_000) -> Samples:
    """Labels and coarse labels as in CIFAR-100, 500 and 100 images of each class, with one pixel each."""
    base = make_samples(train, test, 100)
    names = tuple(f"coarse {number}" for number in range(20))
    return dataclasses.replace(base, attributes={"coarse": Attribute(base.labels % 20, names)})


def make(name: str, samples: Samples, clients: int, seed: int = 0, **options: object) -> Assignment:
    assignment = partition(PARTITIONS.create(name, **options), samples, clients, seed)
    assignment.check(len(samples), samples.train)
    return assignment


def failure(name: str, samples: Samples, clients: int, **options: object) -> str:
    with pytest.raises(UserError) as error:
        make(name, samples, clients, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


WHOLE = dataclasses.replace(MADE, train=np.ones(len(MADE), np.bool_))


@pytest.mark.parametrize(
    ("name", "samples", "clients", "options", "words"),
    [
        ("iid", MADE, 0, {}, ["clients = 0", "at least 1"]),
        ("iid", MADE, 2500, {}, ["500 of 2,500 clients", "2,000 test samples"]),
        ("iid", WHOLE, 5, {}, ["no test samples of its own", "test_share"]),
        ("pathological", MADE, 7, {}, ["14 places", "10 classes"]),
        ("pathological", MADE, 10, {"classes_per_client": 11}, ["classes_per_client = 11", "only 10 classes"]),
        ("dirichlet", MADE, 201, {"alpha": 100.0}, ["201 clients", "min_samples = 10", "10,000 and 2,000 in all"]),
        ("quantity", MADE, 500, {}, ["quantity", "min_samples = 10", "alpha = 0.5", "10,000 and 2,000 in all"]),
        ("dirichlet", MADE, 50, {"alpha": 0.01}, ["best of 20 draws", "poorest client 0", "raise alpha"]),
        ("domain_dirichlet", MADE, 20, {"alpha": 0.01, "min_samples": 99}, ["domain_dirichlet", "each of 4 clients"]),
        ("domains", MADE, 7, {}, ["7 clients", "5 values of 'domain'", "domain 0, domain 1"]),
        ("domains", MADE, 5, {"attribute": "camera"}, ["no attribute 'camera'", "coarse, domain, role"]),
        ("natural", MADE, 61, {}, ["61 clients", "60 values of 'role'"]),
        ("natural", MADE, 2, {"min_samples": 100}, ["0 values of 'role' with at least 100"]),
        ("pachinko", MADE, 5, {"attribute": "domain"}, ["two values of 'domain'"]),
        ("coarse_classes", MADE, 7, {}, ["7 clients", "5 coarse classes"]),
        ("coarse_classes", MADE, 15, {"fine": "single"}, ["fine = 'single'", "2, not 3"]),
    ],
)
def test_what_a_scheme_cannot_do(
    name: str,
    samples: Samples,
    clients: int,
    options: dict[str, object],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_deal, "_WORK", 1)  # as few draws as there may be
    message = failure(name, samples, clients, **options)
    assert name in message and [word for word in words if word not in message] == []


def test_what_one_draw_lacks_another_has() -> None:
    draws = iter([None, np.array([[0.4, 0.6]]), np.array([[0.5, 0.5]]), np.array([[0.6, 0.4]])])
    scheme = PARTITIONS.create("quantity", min_samples=5)
    assert scheme.redraw(MADE, [np.array([10])], 2, lambda: next(draws)).tolist() == [[0.5, 0.5]]  # type: ignore[attr-defined]


def test_a_class_without_samples_has_no_coarse_class() -> None:
    samples = make_samples(90, 20)
    assert coarse_of_classes(samples, "coarse", "any").tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    named = dataclasses.replace(samples, class_names=(*samples.class_names, "zebra"))
    with pytest.raises(UserError, match="no sample of class 'zebra'"):
        coarse_of_classes(named, "coarse", "any")


# --- the paper's exact numbers -------------------------------------------------------------------------------------


def test_coarse_classes_gives_everyone_five_classes_in_equal_parts() -> None:
    samples = cifar100_like()
    held = make("coarse_classes", samples, 100)
    train, test = class_counts(held.train, samples), class_counts(held.test, samples)
    assert (train.sum(1) == 500).all() and (test.sum(1) == 100).all()
    assert ((train > 0).sum(1) == 5).all() and set(train[train > 0]) == {100} and set(test[test > 0]) == {20}
    for client, rows in enumerate(held.train):
        assert set(samples.attributes["coarse"].values[rows]) == {client // 5}


def test_coarse_classes_with_one_fine_class_each() -> None:
    samples = cifar100_like()
    train = class_counts(make("coarse_classes", samples, 100, fine="single").train, samples)
    assert ((train > 0).sum(1) == 1).all() and ((train > 0).sum(0) == 1).all() and set(train[train > 0]) == {500}


@pytest.mark.parametrize(
    ("samples", "clients", "each", "holders"),
    [
        (make_samples(50_000, 10_000), 100, 2, 20),
        (make_samples(50_000, 10_000), 50, 2, 10),
        (cifar100_like(), 100, 10, 10),
        (cifar100_like(), 50, 10, 5),
    ],
)
@pytest.mark.parametrize("variant", ["as_written", "as_released", "as_released_pfedhn"])
def test_pathological_variants(samples: Samples, clients: int, each: int, holders: int, variant: str) -> None:
    held = make("pathological", samples, clients, classes_per_client=each, variant=variant)
    for parts, per_class in ((held.train, 50_000 // samples.classes), (held.test, 10_000 // samples.classes)):
        counts = class_counts(parts, samples)
        assert ((counts > 0).sum(0) == holders).all() and ((counts > 0).sum(1) == each).all()
        lost = per_class - counts.sum(0)
        if variant == "as_written":
            assert (lost == 0).all()
        elif variant == "as_released":
            assert (lost >= 0).all() and (lost < holders).all() and lost.any()
        else:  # one share more than there are holders, and truncation
            unused = lost / per_class
            low, high = 0.4 / (0.4 + 0.6 * holders), 0.6 / (0.6 + 0.4 * holders) + holders / per_class
            assert (unused >= low).all() and (unused <= high).all()


# --- statistics ----------------------------------------------------------------------------------------------------


def test_pachinko_pools_and_draws_in_two_stages() -> None:
    samples = cifar100_like()
    held = make("pachinko", samples, 100, alpha=0.3)
    totals = np.array([len(rows) for rows in held.rows()])
    assert (totals == 600).all() and len(flat(held)) == 60_000
    shares = np.array([len(rows) for rows in held.train]) / totals
    assert 0.77 < shares.min() < shares.max() < 0.90 and abs(shares.mean() - 5 / 6) < 1e-9
    # Of a client's heaviest coarse class all five fine classes occur, since beta = 10 is nearly even.
    counts = class_counts(held.rows(), samples)
    coarse = counts.reshape(100, 5, 20).sum(1)
    assert (coarse.max(1) / 600).mean() > 0.25
    heaviest = counts.reshape(100, 5, 20)[np.arange(100), :, coarse.argmax(1)]
    assert ((heaviest > 0).sum(1) == 5).mean() > 0.9


def test_drawing_all_at_once_is_drawing_one_by_one() -> None:
    """Against the process as published: (coarse, fine) one sample at a time, exhausted classes removed."""
    supply, groups = np.array([2, 3, 1, 6]), np.array([0, 0, 1, 1])
    mixes = np.array([[0.6, 0.1, 0.05, 0.25], [0.25, 0.25, 0.25, 0.25]])

    def one_by_one(rng: np.random.Generator) -> np.ndarray:
        left, counts = supply.copy(), np.zeros((2, 4), int)
        for client in rng.permutation(2):
            for _ in range(6):
                weights = mixes[client] * (left > 0)
                outer = np.array([mixes[client][groups == g].sum() * (left[groups == g].sum() > 0) for g in (0, 1)])
                group = rng.choice(2, p=outer / outer.sum())
                inner = weights * (groups == group)
                fine = rng.choice(4, p=inner / inner.sum())
                left[fine] -= 1
                counts[client, fine] += 1
        return counts

    def at_once(rng: np.random.Generator) -> np.ndarray:
        # In one process a group keeps the weight of its exhausted members; here it is what the members have left.
        return draw_counts(supply, mixes, groups, rng)

    draws = 1000
    slow = np.array([one_by_one(np.random.default_rng(i)) for i in range(draws)])
    fast = np.array([at_once(np.random.default_rng(i + draws)) for i in range(draws)])
    for client in range(2):
        for label in range(4):
            a, b = (np.bincount(x[:, client, label], minlength=7) for x in (slow, fast))
            some = (a + b) > 40
            scaled = a[some] + b[some]
            assert chisquare(b[some], scaled * b[some].sum() / scaled.sum()).pvalue > 1e-4, (client, label, a, b)


def test_quantity_skews_sizes_and_nothing_else() -> None:
    held = make("quantity", MADE, 10, alpha=0.5)
    sizes = np.array([len(rows) for rows in held.train])
    assert sizes.max() > 5 * sizes.min() and sizes.min() >= 10
    for counts in class_counts(held.train):
        assert chisquare(counts).pvalue > 1e-4


# --- domains, roles ------------------------------------------------------------------------------------------------


def test_domains_are_clients() -> None:
    domain = MADE.attributes["domain"].values
    held = make("domains", MADE, 5)
    for client, rows in enumerate(held.rows()):
        assert set(domain[rows]) == {client} and len(rows) == (domain == client).sum()
    for client, rows in enumerate(make("domains", MADE, 15).rows()):
        assert set(domain[rows]) == {client // 3}


@pytest.mark.matrix
def test_domain_dirichlet_is_fedperfix_office_home() -> None:
    samples = dataclasses.replace(MADE, train=np.ones(len(MADE), np.bool_))
    held = make("domain_dirichlet", samples, 20, alpha=1.0, min_samples=134, test_share=0.15, test_draw="stratified")
    assert held.own_split and min(map(len, held.rows())) >= 134
    for client, rows in enumerate(held.rows()):
        assert set(samples.attributes["domain"].values[rows]) == {client // 4}
    train, test = class_counts(held.train, samples), class_counts(held.test, samples)
    several = train + test > 1
    assert (test[several] >= 1).all() and (train[several] >= 1).all()
    assert (np.abs(test - 0.15 * (train + test)) <= 0.95).all()


def test_natural_clients_are_values() -> None:
    role = MADE.attributes["role"].values
    for client, rows in enumerate(make("natural", MADE, 60).rows()):
        assert set(role[rows]) == {client} and len(rows) == (role == client).sum()
    some = [set(role[rows]) for rows in make("natural", MADE, 10).rows()]
    assert all(len(values) == 1 for values in some) and len(set.union(*some)) == 10


# --- noise ---------------------------------------------------------------------------------------------------------


def images(noise_to: float, variant: str) -> tuple[Samples, Assignment]:
    samples = stand_in(DATASETS.create("cifar10"), 400, 100)
    grey = dataclasses.replace(samples, inputs=np.full_like(samples.inputs, 128))
    return grey, make("noise", grey, 5, sigma_max=noise_to, variant=variant)


def test_noise_grows_from_client_to_client_and_survives_the_artifact(tmp_path: Path) -> None:
    samples, held = images(20.0, "as_written")
    write_assignment(tmp_path / "a.parquet", held)
    again = read_assignment(tmp_path / "a.parquet")
    assert again.noise == held.noise == Noise((0.0, 5.0, 10.0, 15.0, 20.0), False, 0)
    data = FederatedData.from_samples(samples, again, torch.device("cpu"))
    assert data.noise is None
    for client, (train, test) in enumerate(zip(data.train, data.test, strict=True)):
        for rows in (train, test):
            spread = (data.inputs[rows].double() - 128).std()
            assert abs(float(spread) - 5 * client) < 0.15 + 0.1 * (client == 1)  # rounding adds 1/12 of variance
    other, _ = images(20.0, "as_written")
    again_data = FederatedData.from_samples(other, again, torch.device("cpu"))
    assert torch.equal(data.inputs, again_data.inputs)


def test_released_noise_is_drawn_anew_and_blackens_what_is_below_the_mean() -> None:
    samples, held = images(20.0, "as_released")
    before = samples.inputs.copy()
    data = FederatedData.from_samples(samples, held, torch.device("cpu"))
    assert np.array_equal(data.inputs.numpy(), before) and data.noise is not None
    last = data.train[4]
    first_round, second_round, again = (data.batch(last, round_).inputs for round_ in (1, 2, 1))
    assert torch.equal(first_round, again) and not torch.equal(first_round, second_round)
    assert first_round.min() == 0 and 0.4 < float((first_round == 0).float().mean()) < 0.6
    # A batch of one image gets the same noise as that image among others.
    assert torch.equal(data.batch(last[3:4], 1).inputs, first_round[3:4])
    dark = dataclasses.replace(samples, inputs=np.zeros_like(before))
    clean = FederatedData.from_samples(dark, held, torch.device("cpu")).batch(data.train[0])
    assert float(clean.inputs.max()) == 0  # no noise for client 0, but normalised black is below zero


# --- options of every scheme ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [None, "stratified"])
def test_a_test_share_is_drawn_from_all_samples_of_a_client(draw: str | None) -> None:
    held = make("dirichlet", MADE, 20, alpha=0.5, min_samples=256, test_share=0.25, test_draw=draw)
    train, test = class_counts(held.train), class_counts(held.test)
    total = (train + test).sum(1)
    assert held.own_split and total.min() >= 256 and len(flat(held)) == len(MADE)
    assert (np.abs(test.sum(1) - total / 4) <= (5 if draw else 0.5)).all()
    off = np.abs(test - (train + test) / 4)
    assert off.max() <= 0.75 if draw else off.max() > 2
    mixed = np.concatenate(held.test)
    assert MADE.train[mixed].any() and not MADE.train[mixed].all()


def test_a_train_limit_keeps_a_random_part() -> None:
    held, whole = (make("domains", MADE, 5, train_limit=743), make("domains", MADE, 5))
    assert {len(rows) for rows in held.train} == {743}
    for few, all_ in zip(held.train, whole.train, strict=True):
        assert set(few) < set(all_)
        assert chisquare(np.bincount(MADE.labels[few], minlength=10)).pvalue > 1e-4
    assert [rows.tolist() for rows in held.test] == [rows.tolist() for rows in whole.test]


def test_shares_of_training_samples_are_nested() -> None:
    shares = (0.1, 0.25, 0.999, 1.0)
    held = [make("dirichlet", MADE, 5, train_share=share) for share in shares]
    for client, whole in enumerate(held[-1].train):
        parts = [set(one.train[client].tolist()) for one in held]
        assert [len(part) for part in parts] == [int(share * len(whole) + 0.5) for share in shares]
        assert parts[0] < parts[1] < parts[2] < parts[3]
        assert all(one.test[client].tolist() == held[-1].test[client].tolist() for one in held)
    # What is left of a limit is what is left of a share of that size, and of both the smaller one counts.
    limited = make("dirichlet", MADE, 5, train_limit=20)
    assert all(set(few) < set(many) for few, many in zip(limited.train, held[1].train, strict=True))
    both = make("dirichlet", MADE, 5, train_limit=20, train_share=0.25)
    assert flat(both) == flat(limited)
    assert {len(rows) for rows in make("dirichlet", MADE, 5, train_share=1e-6).train} == {1}


# --- validation share ------------------------------------------------------------------------------------------------


OPTIONS = {"quantity": {"alpha": 2.0}}


def assigned(name: str, clients: int = 20, seed: int = 0, **options: object) -> Assignment:
    return partition(PARTITIONS.create(name, **{**OPTIONS.get(name, {}), **options}), SAMPLES, clients, seed)


@pytest.mark.parametrize("name", PARTITIONS.names())
def test_what_is_held_back_changes_nothing_else(name: str, tmp_path: Path) -> None:
    before, after = assigned(name, ROLES), assigned(name, ROLES, validation_share=0.3, novel_share=0.1)
    after.check(len(SAMPLES), SAMPLES.train)
    assert len(after.novel) == 6 and before.novel == ()
    for client in range(ROLES):
        assert np.array_equal(before.test[client], after.test[client])
        train, held_back = set(after.train[client].tolist()), set(after.validation[client].tolist())
        assert held_back and train and not train & held_back
        assert train | held_back == set(before.train[client].tolist())
    write_assignment(tmp_path / "a.parquet", after)
    assert read_assignment(tmp_path / "a.parquet").novel == after.novel


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_classes_are_held_back_in_proportion(share: float) -> None:
    before, after = assigned("dirichlet"), assigned("dirichlet", validation_share=share)
    for whole, part in zip(before.train, after.validation, strict=True):
        assert len(part) == int(len(whole) * share + 0.5)
        own, drawn = (Counter(SAMPLES.labels[rows].tolist()) for rows in (whole, part))
        for label, count in own.items():  # no class is more than a sample away from its exact part
            assert abs(drawn[label] - count * len(part) / len(whole)) < 1
        assert drawn.keys() <= own.keys()


def test_every_sample_is_as_likely_to_be_held_back() -> None:
    scheme, small = PARTITIONS.create("iid", validation_share=0.2), make_samples(30, 10)
    drawn = np.zeros(len(small))
    for seed in range(400):  # clients hold one sample of a class
        drawn[np.concatenate(partition(scheme, small, 3, seed).validation)] += 1
    share = drawn[small.train] / 400
    assert share.mean() == pytest.approx(0.2)
    assert np.abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 400)


@pytest.mark.parametrize(("share", "held_back"), [(0.01, 1), (0.99, 9)])
def test_at_least_one_and_never_all(share: float, held_back: int) -> None:
    scheme = PARTITIONS.create("iid", validation_share=share)
    assignment = partition(scheme, make_samples(30, 10), 3, 0)
    assert [len(rows) for rows in assignment.validation] == [held_back] * 3
    assert [len(rows) for rows in assignment.train] == [10 - held_back] * 3


def test_the_artifact_tells_the_three_apart(tmp_path: Path) -> None:
    written = assigned("noise", validation_share=0.2)
    write_assignment(tmp_path / "a", written)
    read = read_assignment(tmp_path / "a")
    assert isinstance(read.noise, Noise) and read.sides().keys() == {"train", "test", "validation"}
    for split, parts in written.sides().items():
        assert all(np.array_equal(*pair) for pair in zip(parts, read.sides()[split], strict=True))
    table, _ = read_table(tmp_path / "a", "partition/2")
    assert set(table["split"].to_pylist()) == {"train", "test", "validation"}
    write_assignment(tmp_path / "b", assigned("noise"))
    assert "validation" not in str(read_table(tmp_path / "b", "partition/2"))
    assert read_assignment(tmp_path / "b").validation == []


# --- assignments -----------------------------------------------------------------------------------------------------


def test_assignments_are_those_of_the_table() -> None:
    found = list(assignments.rows())
    known = recorded(assignments.FILE)
    assert found == known, sorted(set(found) ^ set(known))
    assert len({name for name, *_ in assignments.CASES} & set(PARTITIONS.names())) >= 10
    assert len({digest for *_, digest in found}) == len(assignments.CASES)
