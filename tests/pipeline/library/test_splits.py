"""Splits to and from other tools: PFLlib's files and CSV, through a spec; hostile and damaged files."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.project import Project, make_project, spec

from pflcore.data.assignment import Assignment
from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition
from pipeline.library.pfllib import read_pfllib, write_pfllib

DIGITS: Samples = DATASETS.create("digits").load(Path())


def dealt(clients: int = 4, **options: Any) -> Assignment:
    return partition(PARTITIONS.create("dirichlet", alpha=1.0, **options), DIGITS, clients, 0)


def assert_same(one: Assignment, other: Assignment) -> None:
    for before, after in zip(one.sides().values(), other.sides().values(), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_our_split_in_pfllibs_layout_and_back(tmp_path: Path) -> None:
    made = dealt(test_share=0.25)
    write_pfllib(tmp_path, DIGITS, made)
    # As PFLlib itself reads it.
    content = np.load(tmp_path / "train/2.npz", allow_pickle=True)["data"].tolist()
    assert content["x"].dtype == np.float32 and content["x"].shape[1:] == (1, 8, 8) and abs(content["x"]).max() == 1
    assert content["y"].tolist() == DIGITS.labels[made.train[2]].tolist()
    assert_same(made, read_pfllib(tmp_path, DIGITS))


def test_a_split_as_pfllib_writes_it_is_found_again(tmp_path: Path) -> None:
    """Its generators merge training and test samples, normalise by 0.5, shuffle, and pickle a dict of arrays."""
    rng = np.random.default_rng(0)
    order = rng.permutation(len(DIGITS))
    for client, rows in enumerate(np.array_split(order, 3)):
        for split, part in (("train", rows[: len(rows) * 3 // 4]), ("test", rows[len(rows) * 3 // 4 :])):
            images = ((DIGITS.inputs[part].astype(np.float32) / 255) - np.float32(0.5)) / np.float32(0.5)
            (tmp_path / split).mkdir(exist_ok=True)
            with (tmp_path / split / f"{client}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": images, "y": DIGITS.labels[part]})
    found = read_pfllib(tmp_path, DIGITS)
    for client, rows in enumerate(np.array_split(order, 3)):
        assert found.train[client].tolist() == sorted(rows[: len(rows) * 3 // 4].tolist())
        assert found.test[client].tolist() == sorted(rows[len(rows) * 3 // 4 :].tolist())


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch harmed",)


def npz(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, data=np.array(value, object) if not isinstance(value, np.ndarray) else value)


IMAGE = np.zeros((1, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"x": Evil(), "y": np.zeros(1, np.int64)}, r"refused: the pickle asks for (posix|nt)\.system"),
        (np.zeros(3), r"not a file of PFLlib: 'data' has to be a dict .*an array of float64"),
        ({"x": IMAGE}, r"not a file of PFLlib.*'y'"),
        ({"x": IMAGE, "y": ["zero"]}, r"y whole numbers"),
        ({"x": np.zeros((1, 3, 8, 8), np.float32), "y": np.zeros(1, np.int64)}, r"images of \(3, 8, 8\), and digits"),
        ({"x": IMAGE + 0.3, "y": np.zeros(1, np.int64)}, r"not bytes normalised by a mean and a deviation of 0\.5"),
        ({"x": IMAGE + 1, "y": np.zeros(1, np.int64)}, r"image 0 with label 0 is no sample of digits"),
    ],
)
def test_hostile_and_foreign_files_are_one_line(
    value: Any, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "train/0.npz", value)
    with pytest.raises(UserError, match=line) as error:
        read_pfllib(tmp_path, DIGITS)
    assert "\n" not in str(error.value) and not Path("harmed").exists()


def test_damaged_and_missing_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no train/0\.npz"):
        read_pfllib(tmp_path, DIGITS)
    write_pfllib(tmp_path, DIGITS, dealt(test_share=0.2))
    path = tmp_path / "train/1.npz"
    whole = path.read_bytes()
    for damaged in (b"", whole[:-9], b"\x80" * 99):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"1\.npz: not a file of PFLlib"):
            read_pfllib(tmp_path, DIGITS)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", pickle.dumps({}))
    with pytest.raises(UserError, match=r"1\.npz: not a file of PFLlib"):
        read_pfllib(tmp_path, DIGITS)
    path.write_bytes(whole)
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(UserError, match=r"0\.npz: not a file of PFLlib"):
        read_pfllib(tmp_path, DIGITS)


def test_what_pfllib_has_no_place_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has validation samples, which PFLlib's files have not$"):
        write_pfllib(tmp_path, DIGITS, dealt(validation_share=0.2))


def test_a_split_goes_out_and_comes_back_as_a_spec(saved: Project, tmp_path: Path) -> None:
    """PFLlib's layout → CSV → a spec, whose partition is the one that was exported; a change of the file is another."""
    for layout in ("csv", "pfllib"):
        done = saved.call("pfl", "export-split", "saved", "--format", layout, "--out", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
    (origin, *_) = sorted((tmp_path / "out").glob("*-s0-*.csv"))
    project = make_project(tmp_path / "study", {"specs/own.yaml": ""}, ["own"])
    folder = str(origin.with_suffix(""))
    done = project.call("pfl", "import-split", folder, "--dataset", "digits", "--out", "specs/own/split.csv")
    assert done.returncode == 0, done.stderr
    assert "3 clients, 1,438 train, 359 test samples" in done.stdout
    assert (project.root / "specs/own/split.csv").read_bytes() == origin.read_bytes()
    project.write("specs/own.yaml", spec("[fedavg]", partition="{name: from_file, path: specs/own/split.csv}"))
    project.compile()
    (record,) = project.root.glob("stages/federations/*/federation.yaml")
    assert yaml.safe_load(record.read_text())["partition"]["content"].startswith("sha256:")
    done = project.repro(f"{record.parent.relative_to(project.root)}/dvc.yaml:partition", PFL_DEVICE="cpu")
    assert done.code == 0, done.output
    done = project.call("pfl", "export-split", "own", "--format", "csv", "--out", "again")
    assert done.returncode == 0, done.stderr
    (again,) = (project.root / "again").glob("*.csv")
    assert again.read_bytes() == origin.read_bytes()
    (before,) = project.compiled().runs
    project.write("specs/own/split.csv", origin.read_text().replace("\n0,", "\n1797,", 1))
    assert before not in project.compiled().runs


def test_a_spec_that_names_no_such_file_says_where(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/own.yaml": ""}, ["own"])
    for path, line in [
        ("specs/none.csv", r"own\.yaml:\d+: .*'specs/none.csv': no such file"),
        ("data/split.csv", r"own\.yaml:\d+: .*'data/split.csv': must be a file in specs/"),
        ("specs/../../split.csv", r"own\.yaml:\d+: .*must be a file in specs/"),
    ]:
        project.write("specs/own.yaml", spec("[fedavg]", partition=f"{{name: from_file, path: {path}}}"))
        with pytest.raises(UserError, match=line):
            project.compiled()
