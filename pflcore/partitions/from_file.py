"""A partition that somebody else has made: who holds which samples stands in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pflcore.data.assignment import Assignment
from pflcore.data.samples import Samples
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.partitions import PARTITIONS
from pflcore.partitions.iid import Iid

_OWN = ("test_share", "test_draw", "validation_share", "train_limit", "train_share", "novel_share")


@PARTITIONS.register
class FromFile(Iid):
    """A split from a CSV file of one's own, a line ``sample,client,split`` per sample.

    Split is train, test or validation. The file says all: which samples are for training, for validation and for test,
    so the other options do not go with it, and the seed changes nothing. A sample is its row in the dataset, counted
    from 0; those that the file does not name are not used. The file lies in ``specs/`` and is part of the run: another
    content is another run. ``pfl export-split`` makes such a file of any partition.
    """

    citation = "such as those of PFLlib: Zhang et al., JMLR 2025"
    smoke: ClassVar[dict[str, Any]] = {"path": None}

    path: str | None = option(
        None,
        help="The file, relative to the project, such as specs/mnist/split.csv; null deals samples evenly at "
        "random, as miniatures of a spec do.",
    )
    content: str | None = option(
        None, later=True, help="The SHA-256 of the file, which is noted when a spec is compiled."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in _OWN if self.path and getattr(self, name) != getattr(type(self), name)]
        if given:
            raise UserError(f"{self.name}.{given[0]} does not go with a file, which says all about the split")

    def dealt(self, samples: Samples, clients: int, seed: int) -> Assignment | None:
        """Return what the file says, if there is one.

        Raises:
            UserError: It is absent, was changed after the spec was compiled, is no such file, or is of other clients or
                samples.
        """
        if self.path is None:
            return None
        from pflcore.data.assignment_files import hash_of, read_split  # of which the engine alone needs nothing

        # Profiles work in a folder of their own below the project.
        here = Path.cwd()
        path = next((folder / self.path for folder in (here, *here.parents) if (folder / self.path).is_file()), None)
        if path is None:
            raise UserError(f"{self.path}: no such file; put the split there and run `pfl compile`")
        if self.content and hash_of(path) != self.content:
            raise UserError(f"{self.path}: was changed after the spec was compiled; run `pfl compile`")
        assignment = read_split(path, self.name, seed)
        if assignment.clients != clients:
            raise UserError(f"{self.path}: has {assignment.clients} clients, and the spec {clients}")
        try:
            assignment.check(len(samples), samples.train)
        except UserError as error:
            raise UserError(f"{self.path}: not a split of {samples.name} ({error})") from None
        return assignment
