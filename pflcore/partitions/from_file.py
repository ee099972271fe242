"""A partition that is read from a file."""

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
    """A split from your own CSV file, with a line ``sample,client,split`` per sample.

    Split is train, test or validation. The file determines the whole split, so other options cannot be combined with
    it, and the seed has no effect. A sample is its row in the dataset, counted from 0; rows that the file does not name
    are not used. Rows are in the order of the dataset's files; of ``image_folder`` in that of all paths, so those of
    ``test/`` come before ``train/``. The file is in ``specs/``. Its content is part of the run's identity.
    ``pfl export-split`` writes such a file for any partition without novel clients and noise.
    """

    citation = "such as those of PFLlib: Zhang et al., JMLR 2025"
    smoke: ClassVar[dict[str, Any]] = {"path": None}

    path: str | None = option(None, help="The file, such as specs/mnist/split.csv; null deals evenly, for miniatures.")
    content: str | None = option(None, later=True, help="The SHA-256 of the file, noted when a spec is compiled.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is None:
            return
        for other in describe_options(Partition):
            if getattr(self, other.name) != other.default:
                raise UserError(f"{self.name}.{other.name} does not go with a file, which says all about the split")

    def fixed_assignment(self, samples: Samples, clients: int, seed: int) -> Assignment | None:
        """Return the file's assignment, or None without a file. Raises :class:`UserError` if it does not fit."""
        if self.path is None:
            return None
        from pflcore.data.assignment_files import read_split  # here, because the engine alone does not need it

        assignment = read_split(find_unchanged(self.path, self.content), self.name, seed)
        if assignment.clients != clients:
            raise UserError(f"{self.path}: has {assignment.clients} clients, and the spec {clients}")
        try:
            assignment.check(samples.train)
        except UserError as error:
            raise UserError(f"{self.path}: not a split of {samples.name} ({error})") from None
        return assignment
