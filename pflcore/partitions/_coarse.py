"""The coarse class of every class."""

from __future__ import annotations

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.errors import UserError
from pflcore.partitions._base import attribute_of


def coarse_of_classes(samples: Samples, attribute: str, scheme: str) -> Rows:
    """int64 [classes]: the coarse class of each class, as the samples' attribute says.

    Raises:
        UserError: There is no such attribute, a class is in two coarse classes, or has no samples at all.
    """
    values = attribute_of(samples, attribute, scheme).values
    coarse = np.full(samples.classes, -1)
    coarse[samples.labels] = values
    wrong = coarse[samples.labels] != values
    if wrong.any():
        name = samples.class_names[samples.labels[int(wrong.argmax())]]
        raise UserError(
            f"partition {scheme!r}: class {name!r} of {samples.name} is in two values of {attribute!r}; it needs an "
            "attribute that groups classes"
        )
    if (coarse < 0).any():
        name = samples.class_names[int((coarse < 0).argmax())]
        raise UserError(f"partition {scheme!r}: {samples.name} has no sample of class {name!r}")
    return coarse
