"""Partitions: exact numbers, statistics, and what is held back."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from support.mistakes import refuses
from support.toy_samples import ROLES, SAMPLES, class_counts, flat, make_samples

from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.federation import FederatedData
from pflcore.data.noise import Noise
from pflcore.data.samples import Attribute, Samples
from pflcore.partitions import PARTITIONS, _assign, partition

WHOLE = dataclasses.replace(SAMPLES, train=np.ones(len(SAMPLES), np.bool_))
# Labels and coarse labels as in CIFAR-100, 500 and 100 images of each class, with one pixel each.
HUNDRED = make_samples(50_000, 10_000, 100)
COARSE = Attribute(HUNDRED.labels % 20, tuple(map(str, range(20))))
HUNDRED = dataclasses.replace(HUNDRED, attributes={"coarse": COARSE})
# Two roles have two samples each, and one has a single one.
RARE = make_samples(5, 0, 1)
RARE = dataclasses.replace(RARE, attributes={"role": Attribute(np.array([0, 0, 1, 1, 2]), ("a", "b", "c"))})


def make(name, samples=SAMPLES, clients=20, seed=0, **options):
    options = {"alpha": 2.0, **options} if name == "quantity" else options
    assignment = partition(PARTITIONS.create(name, **options), samples, clients, seed)
    assignment.check(samples.train)
    assert (assignment.clients, assignment.scheme, assignment.seed) == (clients, name, seed)
    return assignment


@pytest.mark.parametrize("name", PARTITIONS.names())
def test_every_sample_has_one_owner_and_both_sides_the_same_classes(name, tmp_path):
    before = make(name, clients=ROLES)
    assert sorted(flat(before)) == list(range(len(SAMPLES)))
    train, test = class_counts(before.train), class_counts(before.test)
    for counts in zip(train, test, strict=True):
        table = np.array(counts)[:, np.add(*counts) > 0]
        assert table.shape[1] == 1 or chi2_contingency(table).pvalue > 1e-5
    if name in ("pathological", "dirichlet"):  # the same shares cut both
        assert np.abs(train / 5 - test).max() <= 1.2
    np.random.seed(1)
    assert flat(make(name, clients=10, seed=3)) == flat(make(name, clients=10, seed=3)) != flat(make(name, clients=10))
    # What is held back changes nothing else.
    after = make(name, clients=ROLES, validation_share=0.3, novel_share=0.1)
    assert len(after.novel) == 6 and before.novel == ()
    for client in range(ROLES):
        assert np.array_equal(before.test[client], after.test[client])
        remaining, validation = set(after.train[client].tolist()), set(after.validation[client].tolist())
        assert validation and remaining and not remaining & validation
        assert remaining | validation == set(before.train[client].tolist())
    write_assignment(tmp_path / "a.parquet", after)
    read = read_assignment(tmp_path / "a.parquet")
    write_assignment(tmp_path / "b.parquet", read)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    for name in ("scheme", "seed", "clients", "novel", "noise"):
        assert getattr(read, name) == getattr(after, name)
    for split, parts in after.sides().items():
        assert all(np.array_equal(*pair) for pair in zip(parts, read.sides()[split], strict=True))


REFUSED: list[tuple[str, Samples, int, dict, str]] = [
    ("iid", SAMPLES, 0, {}, "clients = 0 must be at least 1"),
    ("iid", SAMPLES, 2500, {}, "500 of 2,500 clients get none of the 2,000 test samples"),
    ("iid", SAMPLES, 4, {"novel_clients": (1, 4)}, "novel_clients: .* no client 4; the 4 clients are counted from 0"),
    ("iid", SAMPLES, 2, {"novel_clients": (0, 1)}, "all clients are novel; at least one has to train"),
    ("domains", SAMPLES, 5, {"novel_domains": ("domain 9",)}, "no domain 'domain 9'; did you mean 'domain [0-4]'"),
    ("iid", WHOLE, 5, {}, "no test samples of its own; set the partition's test_share"),
    ("pathological", SAMPLES, 7, {}, "14 places, not a multiple of the 10 classes"),
    ("pathological", SAMPLES, 10, {"classes_per_client": 11}, "classes_per_client = 11 but toy has only 10 classes"),
    ("dirichlet", SAMPLES, 201, {"alpha": 100.0}, "min_samples = 10 .*10,000 and 2,000 in all"),
    ("dirichlet", SAMPLES, 50, {"alpha": 0.01}, "best of 20 draws gave the poorest client 0.; raise alpha"),
    ("domain_dirichlet", SAMPLES, 20, {"alpha": 0.01, "min_samples": 99}, "each of 4 clients"),
    ("domains", SAMPLES, 7, {}, "7 clients are not a multiple of the 5 values of 'domain' .*domain 0, domain 1"),
    ("domains", SAMPLES, 5, {"attribute": "camera"}, "no attribute 'camera' .*coarse, domain, role"),
    ("natural", SAMPLES, 61, {}, "61 clients, but toy has 60 values of 'role'"),
    ("natural", RARE, 3, {"test_share": 0.5}, "1 of 3 clients get none of the 2 test .*; raise min_samples"),
    ("dirichlet", RARE, 4, {"sizes": "equal", "test_share": 0.5}, "none of the 1 test .* of toy; use fewer clients"),
    ("pachinko", SAMPLES, 5, {"attribute": "domain"}, "in two values of 'domain'"),
    ("coarse_classes", SAMPLES, 7, {}, "7 clients are not a multiple of the 5 coarse classes"),
    ("coarse_classes", SAMPLES, 15, {"fine": "single"}, "fine = 'single' .* 2, not 3"),
]


def test_novel_clients_are_drawn_named_or_those_of_a_domain():
    drawn = make("iid", clients=10, novel_share=0.2).novel
    named = make("iid", clients=10, novel_share=0.2, novel_clients=(7, 3)).novel
    assert len(drawn) == 2 and set(named) == {*drawn, 3, 7} and list(named) == sorted(named)
    # Five domains of three clients each.
    far = {"novel_domains": ("domain 4", "domain 1"), "novel_clients": (0,)}
    for name in ("domains", "domain_dirichlet"):
        assert make(name, clients=15, **far).novel == (0, 3, 4, 5, 12, 13, 14)


def test_what_a_scheme_cannot_do(monkeypatch):
    monkeypatch.setattr(_assign, "MAX_SHARES", 1)  # as few draws as there may be
    for name, samples, clients, options, words in REFUSED:
        refuses(rf"^[^\n]*{name}[^\n]*{words}", make, name, samples, clients, **options)


def test_a_split_gives_every_sample_a_client_that_there_is(monkeypatch):
    scheme, count = PARTITIONS.create("iid"), len(SAMPLES)
    for owners, words in (
        (np.arange(count) % 4, r"split returned client 3; the 3 clients are counted from 0"),
        (np.full(count, -2), "split returned client -2"),
        (np.zeros(count), f"an integer for each of {count:,} samples, not float64 of shape"),
        (np.zeros(2, int), r"not int64 of shape \(2,\)"),
        (None, "not NoneType"),
    ):
        monkeypatch.setattr(type(scheme), "split", lambda *_, owners=owners: owners)
        refuses(f"^partition 'iid': .*{words}", partition, scheme, SAMPLES, 3, 0)


def test_coarse_classes_gives_everyone_five_classes_in_equal_parts_or_one():
    assignment = make("coarse_classes", HUNDRED, 100)
    train, test = class_counts(assignment.train, HUNDRED), class_counts(assignment.test, HUNDRED)
    assert ((train > 0).sum(1) == 5).all() and set(train[train > 0]) == {100} and set(test[test > 0]) == {20}
    assert all(set(COARSE.values[rows]) == {client // 5} for client, rows in enumerate(assignment.train))
    train = class_counts(make("coarse_classes", HUNDRED, 100, fine="single").train, HUNDRED)
    assert ((train > 0).sum(1) == 1).all() and ((train > 0).sum(0) == 1).all() and set(train[train > 0]) == {500}


@pytest.mark.parametrize("variant", ["as_written", "as_released", "as_released_pfedhn"])
def test_pathological_variants(variant):
    each, holders = 10, 5
    assignment = make("pathological", HUNDRED, 50, classes_per_client=each, variant=variant)
    for parts, per_class in ((assignment.train, 500), (assignment.test, 100)):
        counts = class_counts(parts, HUNDRED)
        assert ((counts > 0).sum(0) == holders).all() and ((counts > 0).sum(1) == each).all()
        unused, shares = per_class - counts.sum(0), counts[counts > 0] / per_class
        others = holders if variant == "as_released_pfedhn" else holders - 1
        low, high = 0.4 / (0.4 + 0.6 * others), 0.6 / (0.6 + 0.4 * others)
        assert low <= shares.min() + 1 / per_class and shares.max() <= high + 1 / per_class and shares.std() > 0.002
        if variant == "as_written":
            assert (unused == 0).all()
        elif variant == "as_released":
            assert (unused >= 0).all() and (unused < holders).all() and unused.any()
        else:  # one share more than there are holders, and truncation
            assert (unused / per_class >= low).all() and (unused / per_class <= high + holders / per_class).all()


def test_dirichlet_stops_giving_to_full_clients_and_quantity_skews_sizes_alone():
    # A client below an equal part gets at most one more class, so it ends below an equal part plus one class.
    counts = class_counts(make("dirichlet", clients=10, alpha=0.1).train)
    full = counts[:, :-1].sum(1) >= 1000
    assert counts.sum(1).max() < 1000 + 1000 and full.any() and (counts[full, -1] == 0).all()
    counts = class_counts(make("quantity", clients=10, alpha=0.5).train)
    assert counts.sum(1).max() > 5 * counts.sum(1).min() and counts.sum(1).min() >= 10
    assert all(chisquare(row).pvalue > 1e-4 for row in counts)


def test_equal_sizes_have_the_same_classes_for_training_and_test():
    uneven = np.repeat([0, 1, 2], [60, 30, 10])
    labels = np.concatenate([np.repeat(uneven, 10), np.repeat(uneven, 2)])
    names, pixels = ("a", "b", "c", "without samples"), np.zeros((1200, 1, 1, 1), np.uint8)
    samples = Samples(pixels, labels, np.arange(1200) < 1000, "toy", names, (0.5,), (1.0,), "here")
    assignment = make("dirichlet", samples, 8, sizes="equal", alpha=0.4)
    train, test = class_counts(assignment.train, samples), class_counts(assignment.test, samples)
    assert set(train.sum(1)) == {125} and np.abs(train / 5 - test).max() < 1.5 and set(test.sum(1)) == {25}
    assert not test[train == 0].any()
    assert sorted(flat(assignment)) == list(range(1200)) and (train[:, 0] / 125).std() > 0.2
    larger = make("dirichlet", samples, 100, sizes="equal", alpha=0.4)
    assert {len(rows) for rows in larger.train} == {10} and {len(rows) for rows in larger.test} == {2}


def test_pachinko_pools_and_draws_in_two_stages():
    assignment = make("pachinko", HUNDRED, 100, alpha=0.3)
    assert {len(rows) for rows in assignment.rows()} == {600} and len(flat(assignment)) == 60_000
    shares = np.array([len(rows) for rows in assignment.train]) / 600
    assert 0.77 < shares.min() < shares.max() < 0.90 and abs(shares.mean() - 5 / 6) < 1e-9
    # Of a client's heaviest coarse class all five fine classes occur, since beta = 10 is nearly even.
    counts = class_counts(assignment.rows(), HUNDRED).reshape(100, 5, 20)
    coarse = counts.sum(1)
    assert (coarse.max(1) / 600).mean() > 0.25
    assert ((counts[np.arange(100), :, coarse.argmax(1)] > 0).sum(1) == 5).mean() > 0.9


def test_drawing_all_at_once_is_drawing_one_by_one():
    """Against the process as published: (coarse, fine) one sample at a time, exhausted classes removed.

    The second client gets what is left, so that all chance is in the first one's draw.
    """
    supply, groups = np.array([2, 3, 1, 6]), np.array([0, 0, 1, 1])
    mixes = np.array([[0.6, 0.1, 0.05, 0.25], [0.25, 0.25, 0.25, 0.25]])

    def one_by_one(rng):
        remaining, counts = supply.copy(), np.zeros((2, 4), int)
        for client in rng.permutation(2):
            for _ in range(6):
                fits = remaining > 0
                outer = np.array([mixes[client][groups == g].sum() * fits[groups == g].any() for g in (0, 1)])
                inner = mixes[client] * fits * (groups == rng.choice(2, p=outer / outer.sum()))
                fine = rng.choice(4, p=inner / inner.sum())
                remaining[fine] -= 1
                counts[client, fine] += 1
        return counts

    slow = np.array([one_by_one(np.random.default_rng(seed)) for seed in range(1000)])
    streams = map(np.random.default_rng, range(1000, 2000))
    fast = np.array([_assign.draw_counts(supply, mixes, groups, rng) for rng in streams])
    for client, label in np.ndindex(2, 4):
        times = np.array([np.bincount(counts[:, client, label], minlength=7) for counts in (slow, fast)])
        times = times[:, times.sum(0) > 40]
        assert times.shape[1] == 1 or chi2_contingency(times).pvalue > 1e-4, (client, label, times)


def test_domains_and_roles_are_clients():
    domain, role = (SAMPLES.attributes[name].values for name in ("domain", "role"))
    assert all(set(domain[rows]) == {client // 3} for client, rows in enumerate(make("domains", clients=15).rows()))
    for client, rows in enumerate(make("natural", clients=60).rows()):
        assert set(role[rows]) == {client} and len(rows) == (role == client).sum()
    drawn = [set(role[rows]) for rows in make("natural", clients=10).rows()]
    assert all(len(values) == 1 for values in drawn) and len(set.union(*drawn)) == 10
    # FedPerfix on Office-Home.
    assignment = make("domain_dirichlet", WHOLE, alpha=1.0, min_samples=134, test_share=0.15, test_draw="stratified")
    assert assignment.own_split and min(map(len, assignment.rows())) >= 134
    assert all(set(domain[rows]) == {client // 4} for client, rows in enumerate(assignment.rows()))
    train, test = class_counts(assignment.train), class_counts(assignment.test)
    assert (test[train + test > 1] >= 1).all() and (np.abs(test - 0.15 * (train + test)) <= 0.95).all()


def test_noise_grows_from_client_to_client():
    labels = np.arange(500) % 2
    grey = np.full((500, 3, 32, 32), 128, np.uint8)
    samples = Samples(grey, labels, np.arange(500) < 400, "grey", ("a", "b"), (0.49,) * 3, (0.2,) * 3, "here")
    released, written = (make("noise", samples, 5, variant=name) for name in ("as_released", "as_written"))
    assert released.noise == Noise((0.0, 5.0, 10.0, 15.0, 20.0), True, 0)
    # Drawn anew in each round, the same for an image in any batch, and black where it is below the mean.
    data = FederatedData.from_samples(samples, released, torch.device("cpu"))
    last = data.train[4]
    first_round, second_round, repeated = (data.batch(last, round_).inputs for round_ in (1, 2, 1))
    assert torch.equal(first_round, repeated) and not torch.equal(first_round, second_round)
    assert torch.equal(data.batch(last[3:4], 1).inputs, first_round[3:4]) and (data.inputs == 128).all()
    assert first_round.min() == 0 and 0.4 < float((first_round == 0).float().mean()) < 0.6
    # Written into the images once; rounding adds 1/12 of variance.
    data = FederatedData.from_samples(samples, written, torch.device("cpu"))
    assert data.noise is None
    for client, rows in enumerate(data.train):
        assert abs(float((data.inputs[rows].double() - 128).std()) - 5 * client) < 0.15 + 0.1 * (client == 1)


def test_shares_of_clients_are_exact_and_nested():
    assignment = make("dirichlet", alpha=0.5, min_samples=256, test_share=0.25)
    total = class_counts(assignment.rows()).sum(1)
    assert assignment.own_split and total.min() >= 256 and len(flat(assignment)) == len(SAMPLES)
    assert (np.abs([len(rows) for rows in assignment.test] - total / 4) <= 0.5).all()
    assignment, complete = make("domains", clients=5, train_limit=743), make("domains", clients=5)
    for limited_rows, all_rows in zip(assignment.train, complete.train, strict=True):
        assert len(limited_rows) == 743 and set(limited_rows) < set(all_rows)
        assert chisquare(np.bincount(SAMPLES.labels[limited_rows], minlength=10)).pvalue > 1e-4
    assert [rows.tolist() for rows in assignment.test] == [rows.tolist() for rows in complete.test]
    parts = [make("dirichlet", clients=5, train_share=share).train for share in (0.1, 0.25, 1.0)]
    for tenth, quarter, all_rows in zip(*parts, strict=True):
        assert (len(tenth), len(quarter)) == (int(0.1 * len(all_rows) + 0.5), int(0.25 * len(all_rows) + 0.5))
        assert set(tenth) < set(quarter) < set(all_rows)
    # Of a limit and a share the smaller one counts.
    limited, combined = (make("dirichlet", clients=5, train_limit=20, train_share=share) for share in (1.0, 0.25))
    assert flat(combined) == flat(limited)
    assert {len(rows) for rows in make("dirichlet", clients=5, train_share=1e-6).train} == {1}


def test_of_texts_the_last_part_is_held_back_because_their_samples_overlap():
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(47, dtype=np.uint8), 4).copy()
    roles = Attribute(np.repeat([1, 0], [30, 14]), ("Ann", "Bob"))
    names = tuple(map(str, range(47)))
    samples = Samples(windows, windows[:, -1].astype(np.int64), np.ones(44, bool), "toy", names, (), (), "here")
    samples = dataclasses.replace(samples, attributes={"role": roles})
    assignment = make("natural", samples, 2, test_share=0.2, validation_share=0.25)
    assert [(min(rows), max(rows)) for rows in assignment.test] == [(41, 43), (24, 29)]
    assert [(min(rows), max(rows)) for rows in assignment.validation] == [(38, 40), (18, 23)]
    assert list(map(len, assignment.train)) == [8, 18]


def test_classes_are_held_back_in_proportion_and_samples_with_equal_chances():
    before, after = make("dirichlet"), make("dirichlet", validation_share=0.25)
    for rows_before, part in zip(before.train, after.validation, strict=True):
        assert len(part) == int(len(rows_before) * 0.25 + 0.5)
        counts, drawn = (np.bincount(SAMPLES.labels[rows], minlength=10) for rows in (rows_before, part))
        assert (np.abs(drawn - counts * len(part) / len(rows_before)) < 1).all()
    small = make_samples(30, 10)  # clients hold one sample of a class
    times = np.zeros(len(small))
    for seed in range(400):
        times[np.concatenate(make("iid", small, 3, seed, validation_share=0.2).validation)] += 1
    share = times[small.train] / 400
    assert share.mean() == pytest.approx(0.2) and np.abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 400)
    for least_or_most, held_back in ((0.01, 1), (0.99, 9)):
        validation = make("iid", small, 3, validation_share=least_or_most).validation
        assert [len(rows) for rows in validation] == [held_back] * 3
