"""Partitions beyond the common ones: exact numbers, statistics, and the options that all schemes share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from support.toy_samples import class_counts, flat, make_samples

from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.federation import FederatedData
from pflcore.data.noise import Noise
from pflcore.data.samples import Attribute, Samples
from pflcore.datasets import DATASETS, stand_in
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition
from pflcore.partitions._mixes import draw_counts

SAMPLES = make_samples()


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
    assert failure("coarse_classes", samples, 40, fine="single") == (
        "coarse_classes.fine = 'single' needs as many clients per coarse class as it has fine classes: 5, not 2"
    )
    assert failure("coarse_classes", samples, 30) == (
        "coarse_classes: 30 clients are not a multiple of the 20 coarse classes of toy"
    )


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
    held = make("quantity", SAMPLES, 10, alpha=0.5)
    sizes = np.array([len(rows) for rows in held.train])
    assert sizes.max() > 5 * sizes.min() and sizes.min() >= 10
    for counts in class_counts(held.train):
        assert chisquare(counts).pvalue > 1e-4
    assert failure("quantity", SAMPLES, 500, min_samples=10).startswith(
        "quantity: cannot give each of 500 clients min_samples = 10 of toy at alpha = 0.5 (there are 10,000 and 2,000"
    )


# --- domains, roles ------------------------------------------------------------------------------------------------


def test_domains_are_clients() -> None:
    domain = SAMPLES.attributes["domain"].values
    held = make("domains", SAMPLES, 5)
    for client, rows in enumerate(held.rows()):
        assert set(domain[rows]) == {client} and len(rows) == (domain == client).sum()
    for client, rows in enumerate(make("domains", SAMPLES, 15).rows()):
        assert set(domain[rows]) == {client // 3}
    assert failure("domains", SAMPLES, 7) == (
        "partition 'domains': 7 clients are not a multiple of the 5 values of 'domain' in toy "
        "(domain 0, domain 1, domain 2, domain 3, domain 4); change clients"
    )
    assert failure("domains", SAMPLES, 5, attribute="camera") == (
        "partition 'domains': toy has no attribute 'camera' (it has coarse, domain, role); use another one"
    )


@pytest.mark.matrix
def test_domain_dirichlet_is_fedperfix_office_home() -> None:
    samples = dataclasses.replace(SAMPLES, train=np.ones(len(SAMPLES), np.bool_))
    assert failure("domain_dirichlet", samples, 20) == (
        "partition 'domain_dirichlet': toy has no test samples of its own; set the partition's test_share"
    )
    held = make("domain_dirichlet", samples, 20, alpha=1.0, min_samples=134, test_share=0.15, test_draw="stratified")
    assert held.own_split and min(map(len, held.rows())) >= 134
    for client, rows in enumerate(held.rows()):
        assert set(samples.attributes["domain"].values[rows]) == {client // 4}
    train, test = class_counts(held.train, samples), class_counts(held.test, samples)
    several = train + test > 1
    assert (test[several] >= 1).all() and (train[several] >= 1).all()
    assert (np.abs(test - 0.15 * (train + test)) <= 0.95).all()
    text = failure("domain_dirichlet", samples, 20, alpha=0.01, min_samples=599, test_share=0.15)
    assert text.startswith("domain_dirichlet: cannot give each of the 4 clients 0 to 3 min_samples = 599 of their")


def test_natural_clients_are_values() -> None:
    role = SAMPLES.attributes["role"].values
    for client, rows in enumerate(make("natural", SAMPLES, 60).rows()):
        assert set(role[rows]) == {client} and len(rows) == (role == client).sum()
    some = [set(role[rows]) for rows in make("natural", SAMPLES, 10).rows()]
    assert all(len(values) == 1 for values in some) and len(set.union(*some)) == 10
    assert failure("natural", SAMPLES, 61).startswith(
        "natural: 61 clients, but toy has 60 values of 'role' with at least 1 samples on each side (of 60 in all)"
    )
    assert "has 0 values of 'role' with at least 100" in failure("natural", SAMPLES, 2, min_samples=100)


def test_an_attribute_that_does_not_group_classes_is_refused() -> None:
    assert failure("pachinko", SAMPLES, 5, attribute="domain").endswith(
        "of toy is in two values of 'domain'; it needs an attribute that groups classes"
    )


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
    held = make("dirichlet", SAMPLES, 20, alpha=0.5, min_samples=256, test_share=0.25, test_draw=draw)
    train, test = class_counts(held.train), class_counts(held.test)
    total = (train + test).sum(1)
    assert held.own_split and total.min() >= 256 and len(flat(held)) == len(SAMPLES)
    assert (np.abs(test.sum(1) - total / 4) <= (5 if draw else 0.5)).all()
    off = np.abs(test - (train + test) / 4)
    assert off.max() <= 0.75 if draw else off.max() > 2
    mixed = np.concatenate(held.test)
    assert SAMPLES.train[mixed].any() and not SAMPLES.train[mixed].all()


def test_a_train_limit_keeps_a_random_part() -> None:
    held, whole = make("domains", SAMPLES, 5, train_limit=743), make("domains", SAMPLES, 5)
    assert {len(rows) for rows in held.train} == {743}
    for few, all_ in zip(held.train, whole.train, strict=True):
        assert set(few) < set(all_)
        assert chisquare(np.bincount(SAMPLES.labels[few], minlength=10)).pvalue > 1e-4
    assert [rows.tolist() for rows in held.test] == [rows.tolist() for rows in whole.test]


def test_shares_of_training_samples_are_nested() -> None:
    shares = (0.1, 0.25, 0.999, 1.0)
    held = [make("dirichlet", SAMPLES, 5, train_share=share) for share in shares]
    for client, whole in enumerate(held[-1].train):
        parts = [set(one.train[client].tolist()) for one in held]
        assert [len(part) for part in parts] == [int(share * len(whole) + 0.5) for share in shares]
        assert parts[0] < parts[1] < parts[2] < parts[3]
        assert all(one.test[client].tolist() == held[-1].test[client].tolist() for one in held)
    # What is left of a limit is what is left of a share of that size, and of both the smaller one counts.
    limited = make("dirichlet", SAMPLES, 5, train_limit=20)
    assert all(set(few) < set(many) for few, many in zip(limited.train, held[1].train, strict=True))
    both = make("dirichlet", SAMPLES, 5, train_limit=20, train_share=0.25)
    assert flat(both) == flat(limited)
    assert {len(rows) for rows in make("dirichlet", SAMPLES, 5, train_share=1e-6).train} == {1}


@pytest.mark.parametrize("name", PARTITIONS.names())
def test_novel_clients_on_top_of_any_scheme(name: str, tmp_path: Path) -> None:
    options = {"quantity": {"alpha": 2.0}}.get(name, {})
    held, plain = (make(name, SAMPLES, 20, **options, novel_share=share) for share in (0.1, 0.0))
    assert len(held.novel) == 2 and plain.novel == ()
    assert flat(held) == flat(plain)  # holding some back changes nobody's samples
    assert held.novel != make(name, SAMPLES, 20, seed=1, **options, novel_share=0.1).novel
    write_assignment(tmp_path / "a.parquet", held)
    assert read_assignment(tmp_path / "a.parquet").novel == held.novel
