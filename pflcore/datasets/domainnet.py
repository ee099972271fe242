"""DomainNet: photographs, drawings and paintings of the same classes, from its official archives and lists."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

from pflcore.data.samples import SPLITS
from pflcore.datasets import DATASETS
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import Files, load_pickle, open_files, read_file, reading
from pflcore.datasets.domain_images import Archive, DomainImages
from pflcore.errors import UserError
from pflcore.options import option

_HOST = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
# FedBN's lists, linked from the authors' repository. No hash is published.
FEDBN_LISTS = Source("https://huggingface.co/datasets/Jemary/FedBN_Dataset/resolve/main/domainnet_dataset.zip")
_TOP_TEN = ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra")
_IMAGES, _TEST_IMAGES = 22_900, 526 + 657 + 619 + 1_000 + 1_217 + 554  # of the ten classes; FedBN's
_CLASSES = """
The_Eiffel_Tower The_Great_Wall_of_China The_Mona_Lisa aircraft_carrier airplane alarm_clock ambulance angel
animal_migration ant anvil apple arm asparagus axe backpack banana bandage barn baseball baseball_bat basket basketball
bat bathtub beach bear beard bed bee belt bench bicycle binoculars bird birthday_cake blackberry blueberry book
boomerang bottlecap bowtie bracelet brain bread bridge broccoli broom bucket bulldozer bus bush butterfly cactus cake
calculator calendar camel camera camouflage campfire candle cannon canoe car carrot castle cat ceiling_fan cell_phone
cello chair chandelier church circle clarinet clock cloud coffee_cup compass computer cookie cooler couch cow crab
crayon crocodile crown cruise_ship cup diamond dishwasher diving_board dog dolphin donut door dragon dresser drill drums
duck dumbbell ear elbow elephant envelope eraser eye eyeglasses face fan feather fence finger fire_hydrant fireplace
firetruck fish flamingo flashlight flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden
garden_hose giraffe goatee golf_club grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter
helmet hexagon hockey_puck hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass house house_plant
hurricane ice_cream jacket jail kangaroo key keyboard knee knife ladder lantern laptop leaf leg light_bulb lighter
lighthouse lightning line lion lipstick lobster lollipop mailbox map marker matches megaphone mermaid microphone
microwave monkey moon mosquito motorbike mountain mouse moustache mouth mug mushroom nail necklace nose ocean octagon
octopus onion oven owl paint_can paintbrush palm_tree panda pants paper_clip parachute parrot passport peanut pear peas
pencil penguin piano pickup_truck picture_frame pig pillow pineapple pizza pliers police_car pond pool popsicle postcard
potato power_outlet purse rabbit raccoon radio rain rainbow rake remote_control rhinoceros rifle river roller_coaster
rollerskates sailboat sandwich saw saxophone school_bus scissors scorpion screwdriver sea_turtle see_saw shark sheep
shoe shorts shovel sink skateboard skull skyscraper sleeping_bag smiley_face snail snake snorkel snowflake snowman
soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel stairs star steak stereo stethoscope
stitches stop_sign stove strawberry streetlight string_bean submarine suitcase sun swan sweater swing_set sword syringe
t-shirt table teapot teddy-bear telephone television tennis_racquet tent tiger toaster toe toilet tooth toothbrush
toothpaste tornado tractor traffic_light train tree triangle trombone truck trumpet umbrella underwear van vase violin
washing_machine watermelon waterslide whale wheel windmill wine_bottle wine_glass wristwatch yoga zebra zigzag
"""


@DATASETS.register
class DomainNet(DomainImages):
    """DomainNet, colour images of 345 classes in 6 domains, by default of FedBN's ten classes.

    Clipart and painting are from the cleaned version, to which FedBN's page led when its lists were published. Archives
    are checked against hashes that several public projects found. The domain is the attribute ``domain``.

    The official lists ``<domain>_train.txt`` and ``<domain>_test.txt`` of all domains, beside the images, determine the
    training and test images (586,575 for all classes). ``lists: fedbn`` uses FedBN's lists in
    ``domainnet_dataset.zip``. Without lists, all images are training samples.
    """

    citation = "X. Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019"
    licence = "non-commercial research and education only (fair use notice of the authors)"
    homepage = "https://ai.bu.edu/M3SDA/"
    download_size = "18 GB"
    domains = _DOMAINS
    archives = tuple(
        Archive(Source(f"{_HOST}/{path}.zip", "md5", digest), (domain,), size)
        for domain, path, digest, size in (
            ("clipart", "groundtruth/clipart", "cd0d8f2d77a4e181449b78ed62bccf1e", "1.3 GB"),
            ("infograph", "infograph", "720380b86f9e6ab4805bb38b6bd135f8", "4.3 GB"),
            ("painting", "groundtruth/painting", "1ae32cdb4f98fe7ab5eb0a351768abfd", "3.7 GB"),
            ("quickdraw", "quickdraw", "bdc1b6f09f277da1a263389efe0c7a66", "0.5 GB"),
            ("real", "real", "dcc47055e8935767784b7162e7c7cca6", "6.1 GB"),
            ("sketch", "sketch", "658d8009644040ff7ce30bb2e820850f", "2.6 GB"),
        )
    )
    class_names = _TOP_TEN
    estimated_counts = (_IMAGES, 0)
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": _DOMAINS}

    size: int = option(256, help="Height and width in pixels of every image; FedBN uses 256.", ge=8, le=1024)
    classes_used: str = option("top ten", choices=("top ten", "all"), help="FedBN's, or 345, 115 GB at size 256.")
    lists: str = option(
        "official", choices=("official", "fedbn"), later=True, help="The authors', if here, or FedBN's."
    )
    first: int | None = option(None, ge=1, later=True, help="How many of each of FedBN's training lists; null: all.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lists == "fedbn" and self.classes_used == "all":
            raise UserError(f"{self.name}.lists = 'fedbn' are of ten classes; set classes_used: top ten")
        if self.first is not None and self.lists != "fedbn":
            raise UserError(f"{self.name}.first = {self.first} is of FedBN's lists; set lists: fedbn")
        if self.classes_used == "all":
            object.__setattr__(self, "class_names", tuple(_CLASSES.split()))
        if self.lists == "fedbn":
            train = 6 * self.first if self.first else _IMAGES - _TEST_IMAGES
            object.__setattr__(self, "estimated_counts", (train, _TEST_IMAGES))

    def data_files(self, folder: Path) -> list[DataFile]:
        files = super().data_files(folder)
        if self.lists == "fedbn":
            return [*files, DataFile("FedBN's lists", folder, (FEDBN_LISTS.name,), FEDBN_LISTS)]
        official = DataFile("official lists", folder, ("*_train.txt",))
        return [*files, official] if official.path else files

    def select(self, folder: Path, paths: list[str]) -> tuple[dict[str, bool], list[str]]:
        fedbn = self.lists == "fedbn"
        names = {f"{domain}_{split}.{'pkl' if fedbn else 'txt'}": split for domain in _DOMAINS for split in SPLITS}
        if not fedbn and not any((folder / name).is_file() for name in names):
            return super().select(folder, paths)
        train: dict[str, bool] = {}
        with ExitStack() as stack:
            if fedbn:
                advice = f"get FedBN's lists from {FEDBN_LISTS.url}"
                files = stack.enter_context(open_files(folder / FEDBN_LISTS.name))
            else:  # listing the whole folder would be slow, as it may contain the images
                advice = "put the lists of all domains there, or none"
                existing = [name for name in names if (folder / name).is_file()]
                files = Files(str(folder), {name: partial(read_file, folder / name) for name in existing})
            full_names = {name.rpartition("/")[2]: name for name in files.readers}
            for name, split in names.items():
                where, read = files.reader(full_names.get(name, name))
                with reading(where, advice):
                    if fedbn:
                        listed = _read_pickle(read(), where)
                    else:  # lines of an image and the number of its class
                        lines = filter(str.strip, read().decode().splitlines())
                        listed = [line.strip().rpartition(" ")[0] for line in lines]
                for path in listed[: self.first] if split == "train" else listed:
                    parts = path.split("/")
                    if len(parts) != 3 or parts[0] != name.partition("_")[0]:
                        raise UserError(f"{where}: {path[:80]!r} is not '<domain>/<class>/<image>'; get the list again")
                    if path in train:
                        raise UserError(f"{where}: {path} is listed twice; get the list again")
                    if parts[1] in self.class_names:
                        train[path] = split == "train"
        existing_paths = {*paths}
        for path in train:
            if path not in existing_paths:
                raise UserError(f"{folder}: {path} is listed but missing; put the complete data there")
        return {path: train[path] for path in paths if path in train}, ["FedBN's lists" if fedbn else "official lists"]


def _read_pickle(data: bytes, where: str) -> list[str]:
    """Return the images of one of FedBN's lists, which is a pair: paths, and the names of their classes."""
    paths, labels = load_pickle(data, where)
    listed = ["/".join(str(path).split("/")[-3:]) for path in paths]
    if [path.split("/")[1] for path in listed] != [str(label) for label in labels]:
        raise ValueError("the paths are not of the classes beside them")
    return listed
