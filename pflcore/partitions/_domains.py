"""Which clients belong to which domain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pflcore.data.samples import Mask, Samples
from pflcore.errors import UserError
from pflcore.partitions._base import attribute_of


def clients_by_domain(samples: Samples, attribute: str, clients: int, scheme: str) -> Iterator[tuple[Mask, slice]]:
    """For every domain in order: the samples in it, bool [n], and its clients.

    Raises:
        UserError: There is no such attribute, or `clients` is not a multiple of the number of domains.
    """
    domains = attribute_of(samples, attribute, scheme)
    count = len(domains.names)
    if clients % count:
        raise UserError(
            f"partition {scheme!r}: {clients} clients are not a multiple of the {count} values of {attribute!r} in "
            f"{samples.name} ({', '.join(domains.names[:8])}); change clients"
        )
    each = clients // count
    for domain in range(count):
        inside: Mask = np.asarray(domains.values == domain)
        yield inside, slice(domain * each, (domain + 1) * each)
