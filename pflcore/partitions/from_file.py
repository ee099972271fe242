"""A partition that somebody else has made: who holds which samples stands in a file."""

from __future__ import annotations

from typing import Any, ClassVar

from pflcore.data.assignment import Assignment
from pflcore.data.samples import Samples
from pflcore.errors import UserError
from pflcore.files import find_unchanged
from pflcore.options import describe_options, option
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import Partition
from pflcore.partitions.iid import Iid


@PARTITIONS.register
class FromFile(Iid):
    """A split from a CSV file of one's own, a line ``sample,client,split`` per sample.

    Split is train, test or validation. The file says all, so the other options do not go with it, and the seed changes
    nothing. A sample is its row in the dataset, counted from 0; those that the file does not name are not used. The
    file lies in ``specs/`` and is part of the run: another content is another run. ``pfl export-split`` makes such a
    file of any partition.
    """

    citation = "such as those of PFLlib: Zhang et al., JMLR 2025"
    smoke: ClassVar[dict[str, Any]] = {"path": None}

    path: str | None = option(None, help="The file, such as specs/mnist/split.csv; null deals evenly, for miniatures.")
    content: str | None = option(None, later=True, help="The SHA-256 of the file, noted when a spec is compiled.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is None:
            return
        for one in describe_options(Partition):
            if getattr(self, one.name) != one.default:
                raise UserError(f"{self.name}.{one.name} does not go with a file, which says all about the split")

    def dealt(self, samples: Samples, clients: int, seed: int) -> Assignment | None:
        """Return what the file says, if there is one; raise :class:`UserError` where it does not fit."""
        if self.path is None:
            return None
        from pflcore.data.assignment_files import read_split  # of which the engine alone needs nothing

        assignment = read_split(find_unchanged(self.path, self.content), self.name, seed)
        if assignment.clients != clients:
            raise UserError(f"{self.path}: has {assignment.clients} clients, and the spec {clients}")
        try:
            assignment.check(len(samples), samples.train)
        except UserError as error:
            raise UserError(f"{self.path}: not a split of {samples.name} ({error})") from None
        return assignment
