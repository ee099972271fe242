"""A run: one method trained on one federation, fully resolved. Its id contains a hash of its record.

Stages read the records of runs from ``stages/records.json``, a line per id. An id contains the hash of its record, and
the command of a stage contains the id, so a stage can check that the record is the one that was compiled. Train stages
import this module, so it has only what they need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.files import digest_of, parse_json, read_file
from pflcore.registry import KINDS
from pflcore.settings import Evaluation, Training

LISTS = {"analyses": "analysis"}
"""Fields of a run that are lists of entries, each entry at most once, and the kind of these entries."""
COMPONENTS = tuple(kind for kind in KINDS if kind not in LISTS.values())
"""The kinds of which a run has one entry, in a field with the name of the kind."""
OPTIONAL: dict[str, dict[str, Any]] = {"condition": {"name": "none"}}
"""Components that a run need not have, and the value of a run without one, which is not in its record."""
SETTINGS: dict[str, type] = {"training": Training, "evaluation": Evaluation}
"""The groups of settings of a run, and their classes."""
FEDERATION = ("dataset", "partition", "clients", "seed")
"""The fields of a run that determine which client holds which samples."""
ABSENT = "absent:"
"""The prefix of a run's pretrained weights if their file is missing."""
RUN_FIELDS = (*FEDERATION, "backbone", "method", "condition", "training", "evaluation", *LISTS)
"""The fields of a run in the order of its record, which leaves out what the run does not have."""
_MAX_BYTES = 1 << 28  # 40 times the records of 5,000 runs


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal data, equal text. Raises ``ValueError`` for NaN, infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def short_hash(value: Any) -> str:
    """Return eight hex digits of the SHA-256 of canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:8]


def describe_component(record: dict[str, Any]) -> str:
    """Return the name of a component of a run, with its options except those that are null, 0, false or empty."""
    words = ", ".join(f"{key} {_in_words(value)}" for key, value in record.items() if key != "name" and value)
    return str(record["name"]) + (f" ({words})" if words else "")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_in_words(item)}" for key, item in value.items()) + ")"
    return str(value)


def options(part: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a part of a run, without its name. Lists become tuples, as options are immutable."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in part.items() if key != "name"}


def weights_id(digest: str) -> str:
    """Return the id of pretrained weights, given :attr:`Run.pretrained`."""
    return short_hash({"pretrained": digest})


def content_of(home: Path, path: str) -> str:
    """Return ``sha256:<64 hex digits>`` of a file or folder in `home`, or ``absent:<path>`` if it cannot be read."""
    try:
        return f"sha256:{digest_of(home / path)}"
    except OSError:
        return f"{ABSENT}{path}"


@dataclass(frozen=True)
class Run:
    """A run, given by its record, which must not be modified. Runs are equal when their records are.

    The record has dataset, partition, backbone and method (each a mapping with `name`), clients, seed, training,
    evaluation and profile; condition and analyses (a list of such mappings) if there are any; the id of a selection if
    the run is tuned. Defaults are written out, except for options marked `later`. Ids have only ``[a-z0-9_.-]``.
    """

    record: dict[str, Any]

    @cached_property
    def id(self) -> str:
        """``<method>-<backbone>-<dataset>-<8 hex digits>``."""
        return f"{self.method}-{self.backbone}-{self.dataset}-{short_hash(self.record)}"

    @cached_property
    def federation(self) -> dict[str, Any]:
        """Return the settings that determine which client has which samples; runs with equal ones share a partition.

        If the partition has a seed of its own, that seed replaces the run's.
        """
        federation = {field: self.record[field] for field in FEDERATION}
        if "seed" in federation["partition"]:
            partition = dict(federation["partition"])
            federation |= {"seed": partition.pop("seed"), "partition": partition}
        return federation

    @cached_property
    def federation_id(self) -> str:
        """``<dataset>-<partition>-n<clients>-s<seed>-<8 hex digits>``."""
        seed = self.federation["seed"]
        return f"{self.dataset}-{self.partition}-n{self.clients}-s{seed}-{short_hash(self.federation)}"

    @cached_property
    def data(self) -> dict[str, Any]:
        """Return the settings that determine the dataset artifact."""
        return {"dataset": self.record["dataset"]}

    @cached_property
    def data_id(self) -> str:
        """``<dataset>-<8 hex digits>``."""
        return f"{self.dataset}-{short_hash(self.data)}"

    @property
    def cohort(self) -> int:
        """The number of clients that train in a round."""
        everyone = self.options("method").get("schedule") == "every_round"
        return self.clients if everyone else self.training.cohort_size(self.clients)

    @property
    def features(self) -> dict[str, Any]:
        """The frozen encoder that the samples pass through: `backbone`, the options of the backbone, and either
        `weights` or `pretrain`; {} if there is none."""
        return dict(self.record["dataset"].get("features", {}))

    @property
    def encoder(self) -> tuple[str, dict[str, Any]]:
        """Name and options of the backbone of :attr:`features`."""
        features = options(self.features)
        name = str(features.pop("backbone"))
        return name, {option: value for option, value in features.items() if option not in ("weights", "pretrain")}

    def client_sample_counts(self, counts: tuple[int, int]) -> tuple[int, int]:
        """Return how many of `counts` (training, test) samples clients get: those that do not train the encoder."""
        pretrain = self.features.get("pretrain")
        return (counts[0] - max(1, round(pretrain["share"] * counts[0])), counts[1]) if pretrain else counts

    @property
    def unencoded(self) -> Run:
        """The same run without a frozen encoder, on the samples of its dataset."""
        dataset = {name: value for name, value in self.record["dataset"].items() if name != "features"}
        return Run({**self.record, "dataset": dataset})

    @property
    def dataset(self) -> str:
        return str(self.record["dataset"]["name"])

    @property
    def partition(self) -> str:
        return str(self.record["partition"]["name"])

    @property
    def backbone(self) -> str:
        return str(self.record["backbone"]["name"])

    @property
    def method(self) -> str:
        return str(self.record["method"]["name"])

    @property
    def condition(self) -> str:
        """The name of its condition; "" if it has none."""
        return str(self.record["condition"]["name"]) if "condition" in self.record else ""

    @property
    def clients(self) -> int:
        return int(self.record["clients"])

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @cached_property
    def training(self) -> Training:
        """The settings of training. Raises as :attr:`evaluation`."""
        training: Training = _settings("training", canonical_json(self.record["training"]))
        return training

    @cached_property
    def evaluation(self) -> Evaluation:
        """The settings of evaluation. Raises ``TypeError`` for an unknown setting, :class:`UserError` for a value."""
        evaluation: Evaluation = _settings("evaluation", canonical_json(self.record["evaluation"]))
        return evaluation

    @property
    def analyses(self) -> dict[str, dict[str, Any]]:
        """The run's analyses: name → options."""
        return {analysis["name"]: options(analysis) for analysis in self.record.get("analyses", ())}

    @property
    def tuned(self) -> str | None:
        """The id of the selection whose chosen values replace the run's own in training; None if it is not tuned."""
        selection: str | None = self.record.get("tuned")
        return selection

    def with_chosen(self, chosen: Mapping[str, Any]) -> Run:
        """Return the run with chosen values, ``training.lr`` → value, in place of its own."""
        record = dict(self.record)
        for name, value in chosen.items():
            part, _, option = name.partition(".")
            record[part] = {**record[part], option: value}
        return Run(record)

    @property
    def pretrained(self) -> str | None:
        """The digest of the backbone's file of pretrained weights, as :func:`content_of`; None if there is no file."""
        content: str | None = self.record["backbone"].get("pretrained")
        return content

    @property
    def weights(self) -> list[str]:
        """The digests of the pretrained weights of backbone, encoder and sentence encoder, as :func:`content_of`."""
        contents = (self.pretrained, self.features.get("weights"), self.record["dataset"].get("content"))
        return [content for content in contents if content]

    def options(self, component: str) -> dict[str, Any]:
        """Return the options of one of :data:`COMPONENTS`, without :attr:`pretrained` and :attr:`features`."""
        excluded = ("pretrained", "features")
        return {name: value for name, value in options(self.record[component]).items() if name not in excluded}


@cache  # thousands of runs have few different settings
def _settings(group: str, part: str) -> Any:
    return SETTINGS[group](**options(json.loads(part)))


def read_records(path: Path, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return records of runs, federations, datasets, selections and weights by id. Raises :class:`UserError`."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`")
    try:
        all_records = parse_json(read_file(path, _MAX_BYTES).decode())
        records = {id_: all_records.get(id_) for id_ in ids}
    except (ValueError, AttributeError):
        raise UserError(f"{path}: edited by hand; run `pfl compile`") from None
    for id_, record in records.items():
        if not isinstance(record, dict):
            raise UserError(f"{path}: nothing of {id_}; run `pfl compile`")
    return records


def read_record(path: Path, id_: str) -> dict[str, Any]:
    """Return one record. Raises :class:`UserError`, also if the id has the hash of another record."""
    record = read_records(path, [id_])[id_]
    try:
        content: Any = record
        if "trials" in record:
            content = [record["space"], [[trial["chosen"], trial["runs"]] for trial in record["trials"]]]
        if (weights_id(record["content"]) if "content" in record else short_hash(content)) == id_.rpartition("-")[2]:
            return record
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path}: {id_}: edited by hand; run `pfl compile`")


def read_chosen(path: Path) -> dict[str, Any]:
    """Return a selection's chosen values, ``training.lr`` → value. Raises :class:`UserError` if missing or damaged."""
    try:
        return dict(parse_json(read_file(path, _MAX_BYTES).decode())["chosen"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not what a select stage writes; delete it and run again") from None
