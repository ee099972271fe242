"""What the datasets of the user's own images have in common: where they lie, and how they are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import ClassVar

from pflcore.datasets._base import FOLDER, Dataset
from pflcore.datasets._download import DataFile
from pflcore.datasets._images import Form
from pflcore.errors import UserError
from pflcore.options import option


@dataclass(frozen=True, kw_only=True)
class OwnImages(Dataset):
    """Base of the datasets that hold a user's own images; only the data tell their classes and their number.

    Images come in as a viewer shows them: turned as EXIF says, transparent ones on white, and pixels of 16 bits, or
    floats from 0 to 1, scaled to 0..255.
    """

    citation = "none: the user's own images"
    licence = "the user's own"
    access = FOLDER
    download_size = "the user's own"
    original = (3, 0, 0)
    smoke: ClassVar[dict[str, int]] = {"size": 32}

    path: str = option(
        "",
        help="Where the images are: a folder below the data folder, beside the folders of the other datasets, with / "
        "between its parts; empty is the folder with the name of this dataset.",
    )
    size: int = option(
        64,
        help="Height and width in pixels that every image is scaled to; an image takes channels times size squared "
        "bytes, 12 kB by default.",
        ge=8,
        le=1024,
    )
    version: str = option(
        "", help="Any text. Change it when the images have changed: what lies outside of the workspace is not watched."
    )
    channels: int = option(3, help="3 for colours, 1 for grey; images are converted to it.", choices=(1, 3))
    # The base class holds what is known of a published dataset; of one's own images the user knows it.
    mean: tuple[float, ...] = option(  # type: ignore[misc]
        (0.5,),
        help="Mean of pixel values scaled to 0..1 that a model's input is normalised with: one for each channel, or "
        "one for all.",
        ge=0,
        le=1,
    )
    std: tuple[float, ...] = option(  # type: ignore[misc]
        (0.5,),
        help="Standard deviation of pixel values scaled to 0..1 that a model's input is normalised with: one for each "
        "channel, or one for all.",
        gt=0,
        le=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if PureWindowsPath(self.path).anchor or ".." in PurePosixPath(self.path).parts or set(self.path) & set("\\\0"):
            raise UserError(
                f"{self.name}.path = {self.path!r} must be a folder below the data folder, such as 'flowers' or "
                "'flowers/small'"
            )
        for key in ("mean", "std"):
            values: tuple[float, ...] = getattr(self, key)
            if len(values) not in (1, self.channels):
                raise UserError(
                    f"{self.name}.{key} = {list(values)} must be one number, or one for each of the {self.channels} "
                    "channels"
                )
            object.__setattr__(self, key, values * (self.channels // len(values)))

    @property
    def form(self) -> Form:
        """Return what the images are decoded to."""
        return Form(self.shape, resize=True, as_shown=True)

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return what is looked for in the chosen folder."""
        return [DataFile(self.name, self.root(folder), self.files)]

    def root(self, folder: Path) -> Path:
        """Return the chosen folder, given the dataset's own."""
        return folder.parent / self.path if self.path else folder
