"""Partitions: every scheme's promises, and the exact rules of each."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency
from support.toy_samples import ROLES, SAMPLES, class_counts, flat

from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, Partition, _base, partition
from pflcore.partitions._base import part_sizes, redraw


@pytest.fixture(params=PARTITIONS.names())
def scheme(request: pytest.FixtureRequest) -> Partition:
    return PARTITIONS.create(request.param, **{"quantity": {"alpha": 2.0}}.get(request.param, {}))


def test_the_registry_holds_the_schemes() -> None:
    assert {
        *("iid", "pathological", "dirichlet", "pachinko", "coarse_classes", "domains", "domain_dirichlet", "natural"),
        *("noise", "quantity"),
    } <= set(PARTITIONS.names())


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


def test_iid_sizes_differ_by_at_most_one() -> None:
    assignment = partition(PARTITIONS.create("iid"), SAMPLES, 7, 0)
    assert {len(rows) for rows in assignment.train} == {1428, 1429}
    assert {len(rows) for rows in assignment.test} == {285, 286}
    assert class_counts(assignment.train).min() > 100


@pytest.mark.parametrize(("clients", "each", "holders"), [(100, 2, 20), (50, 2, 10), (10, 3, 3), (20, 10, 20)])
def test_pathological_holders(clients: int, each: int, holders: int) -> None:
    for seed in range(5):
        assignment = partition(PARTITIONS.create("pathological", classes_per_client=each), SAMPLES, clients, seed)
        for parts in (assignment.train, assignment.test):
            held = class_counts(parts) > 0
            assert (held.sum(0) == holders).all()
            assert (held.sum(1) == each).all()


def test_pathological_shares_lie_within_their_bounds() -> None:
    train = class_counts(partition(PARTITIONS.create("pathological"), SAMPLES, 50, 0).train)
    shares = train[train > 0] / 1000
    assert shares.min() >= 0.4 / (0.4 + 9 * 0.6) - 1e-3
    assert shares.max() <= 0.6 / (0.6 + 9 * 0.4) + 1e-3
    assert shares.std() > 0.005  # not simply equal


@pytest.mark.parametrize(
    ("clients", "each", "message"),
    [
        (
            7,
            2,
            "pathological: 7 clients with 2 classes each make 14 places, not a multiple of the 10 classes of toy; "
            "change clients or classes_per_client",
        ),
        (10, 11, "pathological.classes_per_client = 11 but toy has only 10 classes"),
    ],
)
def test_pathological_refuses(clients: int, each: int, message: str) -> None:
    with pytest.raises(UserError) as error:
        partition(PARTITIONS.create("pathological", classes_per_client=each), SAMPLES, clients, 0)
    assert str(error.value) == message


def test_dirichlet_gives_everyone_enough() -> None:
    for seed in range(5):
        assignment = partition(PARTITIONS.create("dirichlet", alpha=0.3), SAMPLES, 20, seed)
        assert min(map(len, assignment.train)) >= 10 and min(map(len, assignment.test)) >= 10


def test_dirichlet_stops_giving_to_full_clients() -> None:
    # A client below an equal part gets at most one more class, so it ends below an equal part plus one class.
    assignment = partition(PARTITIONS.create("dirichlet", alpha=0.1), SAMPLES, 10, 0)
    assert max(map(len, assignment.train)) < 1000 + 1000
    before_last = class_counts(assignment.train)[:, :-1].sum(1)
    last = class_counts(assignment.train)[:, -1]
    assert (before_last >= 1000).any() and (last[before_last >= 1000] == 0).all()


def test_dirichlet_names_the_best_that_it_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_base, "_WORK", 20 * 500)
    with pytest.raises(UserError) as error:
        partition(PARTITIONS.create("dirichlet", alpha=0.01), SAMPLES, 50, 0)
    assert str(error.value) == (
        "dirichlet: cannot give each of 50 clients min_samples = 10 training and test samples of toy (10 classes) at "
        "alpha = 0.01 (the best of 20 draws gave the poorest client 0); raise alpha, or lower min_samples or clients"
    )


def test_dirichlet_knows_at_once_what_is_impossible() -> None:
    with pytest.raises(UserError) as error:
        partition(PARTITIONS.create("dirichlet", alpha=100.0), SAMPLES, 201, 0)
    assert str(error.value) == (
        "dirichlet: cannot give each of 201 clients min_samples = 10 training and test samples of toy (10 classes) at "
        "alpha = 100 (there are 10,000 and 2,000 in all); lower min_samples or clients"
    )


def test_a_client_without_samples_is_refused() -> None:
    with pytest.raises(UserError) as error:
        partition(PARTITIONS.create("iid"), SAMPLES, 2500, 0)
    assert str(error.value) == (
        "partition 'iid': 500 of 2,500 clients get none of the 2,000 test samples of toy; use fewer clients"
    )
    with pytest.raises(UserError) as error:
        partition(PARTITIONS.create("iid"), SAMPLES, 0, 0)
    assert str(error.value) == "partition 'iid': clients = 0 must be at least 1"


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_parts_are_within_one_sample_of_their_share(count: int) -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(40, 0.2))
    shares[-3:] = 0
    sizes = part_sizes(count, shares)
    assert sizes.sum() == count and sizes.min() >= 0 and (sizes[-3:] == 0).all()
    assert np.abs(sizes - shares / shares.sum() * count).max() <= 1


def test_a_client_with_one_sample_too_few_is_drawn_again() -> None:
    draws = iter([np.array([[0.4, 0.6]]), np.array([[0.5, 0.5]]), np.array([[0.6, 0.4]])])
    shares = redraw(lambda: next(draws), [np.array([10])], least=5, most=3, complaint="no")
    assert shares.tolist() == [[0.5, 0.5]]
