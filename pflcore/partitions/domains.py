"""Partitions by an attribute of the samples: one or several clients per domain, or one value per client."""

from __future__ import annotations

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._assign import ResampledPartition, assign_by_class, assign_parts, class_counts, get_attribute
from pflcore.partitions._base import Partition, Sides
from pflcore.registry import did_you_mean


@PARTITIONS.register
class Domains(Partition):
    """One domain per client; clients with the same domain share it at random.

    Domain ``d`` goes to clients ``d * k`` to ``d * k + k - 1``, where ``k`` is clients / domains. FedBN's small setting
    on digits, which pFedLA's accuracies suggest, adds ``train_limit: 743``.
    """

    name = "domains"
    citation = "Li et al., FedBN, ICLR 2021; as in Liang et al., Personalized Federated Learning with Local Attention"
    example = ("digits5", 5)

    attribute: str = option("domain", help="The attribute of the dataset that holds the domain.")
    novel_domains: tuple[str, ...] = option((), later=True, help="Domains whose clients are novel: they never train.")

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        domains = get_attribute(samples, self.attribute, self.name)
        owners = np.full(len(samples), -1)
        group_size, remainder = divmod(clients, len(domains.names))
        if remainder:
            values = f"{len(domains.names)} values of {self.attribute!r} in {samples.name}"
            problem = f"{clients} clients are not a multiple of the {values} ({', '.join(domains.names[:8])})"
            raise UserError(f"partition {self.name!r}: {problem}; change clients")
        for domain in range(len(domains.names)):
            domain_sides = [side[domains.values[side] == domain] for side in sides]
            domain_owners = self.share(samples, domain_sides, group_size, rng)
            owners = np.where(domain_owners >= 0, domain_owners + domain * group_size, owners)
        return owners

    def novel(self, samples: Samples, clients: int, seed: int) -> set[int]:
        """Return the novel clients, with those of novel domains. Raises :class:`UserError` for an unknown domain."""
        names = list(get_attribute(samples, self.attribute, self.name).names)
        group_size = clients // len(names)
        for domain in self.novel_domains:
            if domain not in names:
                message = f"novel_domains: {samples.name} has no domain {domain!r}{did_you_mean(domain, names)}"
                raise UserError(f"partition {self.name!r}: {message}")
        novel = [client for client in range(clients) if names[client // group_size] in self.novel_domains]
        return super().novel(samples, clients, seed).union(novel)

    def share(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        """Return owners [n], counted from 0, for the samples of one domain; -1 elsewhere, as in :meth:`split`."""
        return assign_parts(samples, sides, np.ones(clients), rng)


@PARTITIONS.register
class DomainDirichlet(ResampledPartition, Domains):
    """Several clients per domain, which share its classes in proportions drawn from Dir(alpha).

    In each domain, all shares are drawn again until its clients have ``min_samples``. FedPerfix's setting on
    Office-Home is 16 clients with ``alpha: 1.0, min_samples: 134, test_share: 0.15, test_draw: stratified``.
    """

    name = "domain_dirichlet"
    citation = "Sun et al., FedPerfix, ICCV 2023, section 4.1; released code"
    example = ("digits5", 15)

    alpha: float = ResampledPartition.concentration(1.0)
    min_samples: int = ResampledPartition.minimum()
    attribute: str = option("domain", help="The attribute of the dataset that holds the domain.")

    def share(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        counts = [class_counts(samples, rows) for rows in sides]
        weights = np.full(clients, self.alpha)
        shares = self.resample(samples, counts, clients, lambda: rng.dirichlet(weights, samples.classes))
        return assign_by_class(samples, sides, shares, rng)


@PARTITIONS.register
class Natural(Partition):
    """One value of an attribute per client, such as a role in a play or a user of a device.

    If there are more values than clients, one value per client is drawn at random among those with enough samples.
    """

    name = "natural"
    citation = "Caldas et al., LEAF: A Benchmark for Federated Settings, 2018"
    example = ("shakespeare", 8)

    attribute: str = option("role", help="The attribute of the dataset whose values are the clients.")
    min_samples: int = option(
        1,
        help="Fewest samples of a chosen value, on each side of the dataset's split, or, with test_share, in all.",
        ge=1,
    )

    def split(self, samples: Samples, sides: Sides, clients: int, rng: np.random.Generator) -> Rows:
        values = get_attribute(samples, self.attribute, self.name)
        counts = [np.bincount(values.values[rows], minlength=len(values.names)) for rows in sides]
        enough = np.flatnonzero(np.min(counts, axis=0) >= self.min_samples)
        if len(enough) < clients:
            problem = f"{clients:,} clients, but {samples.name} has {len(enough):,} values of {self.attribute!r}"
            minimum = f"at least {self.min_samples} samples on each side (of {len(values.names):,} in all)"
            raise UserError(f"natural: {problem} with {minimum}; use fewer clients")
        chosen = np.sort(rng.choice(enough, clients, replace=False))
        client_of = np.full(len(values.names), -1)
        client_of[chosen] = np.arange(clients)
        return client_of[values.values]
