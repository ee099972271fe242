"""Splits from files: exactly what a file says, and one line for each way in which it can be wrong."""

import re

import numpy as np
import pytest
from support.mistakes import line_of, refuses
from support.toy_samples import SAMPLES

from pflcore.data.assignment_files import write_split
from pflcore.errors import UserError
from pflcore.files import digest_of
from pflcore.partitions import PARTITIONS, partition

GOOD = "sample,client,split\n3,1,train\n0,0,train\n70,1,test\n1,0,test\n2,1,train\n"


@pytest.fixture
def file(tmp_path, monkeypatch):
    for folder in ("specs", "build/own"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "build/own")  # where the stages of a profile work
    (tmp_path / "specs/split.csv").write_text(GOOD)
    return tmp_path / "specs/split.csv"


def from_file(clients=2, **options):
    return partition(PARTITIONS.create("from_file", path="specs/split.csv", **options), SAMPLES, clients, 5)


def test_a_file_is_dealt_as_it_stands_and_written_again_the_same(file):
    for encoding in ("utf-8", "utf-8-sig"):  # with a byte order mark
        file.write_text(GOOD, encoding=encoding)
        assignment = from_file(content=f"sha256:{digest_of(file)}")
        assert [rows.tolist() for rows in assignment.train] == [[0], [2, 3]] and assignment.own_split
        assert [rows.tolist() for rows in assignment.test] == [[1], [70]]
        assert (assignment.scheme, assignment.seed) == ("from_file", 5)
    assignment = partition(PARTITIONS.create("dirichlet", alpha=1.0, validation_share=0.25), SAMPLES, 7, 3)
    write_split(file, assignment)
    reread, before = from_file(clients=7), file.read_bytes()
    for expected, other in zip(assignment.sides().values(), reread.sides().values(), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(expected, other, strict=True))
    write_split(file, reread)
    assert file.read_bytes() == before
    with pytest.raises(UserError, match=r"^partition 'iid' has novel clients, of which a split says nothing$"):
        write_split(file, partition(PARTITIONS.create("iid", novel_share=0.5), SAMPLES, 4, 0))


def test_a_bad_file_is_one_line(file):
    for old, new, line in (
        ("sample,", "row,", r"split\.csv:1: must be sample,client,split, with"),
        ("0,0,train", "0,0,trian", r"split\.csv:3: '0,0,trian' is not sample,client,split: two whole numbers"),
        ("0,0,train", "0,-1,train", r"split\.csv:3: '0,-1,train' is not"),
        ("0,0,train", f"0,{'9' * 30},train", r"split\.csv:3: "),
        ("0,0,train", "3,0,train", r"specs/split\.csv: not a split of \S+ \(.*row 3 is held 2 times"),
        ("1,0,test", "1,0,train", r"split\.csv: client 0 of 0 to 1 has no test samples$"),
        ("70,1,test", "70000,1,test", r"specs/split\.csv: not a split of \S+ \(.*row 70000 is outside the dataset"),
        ("2,1,train", "2,2,train\n4,2,test", r"specs/split\.csv: has 3 clients, and the spec 2$"),
        (GOOD, "sample,client,split\n", r"split\.csv: no samples in it"),
        (GOOD, "version https://git-lfs.github.com/spec/v1\n", r"split\.csv: a pointer of git LFS; `git lfs"),
        ("0,0,train", "0,900000000,train", r"split\.csv: client 2 of 0 to 900000000 has no samples$"),
    ):
        file.write_text(GOOD.replace(old, new))
        assert re.search(line, line_of(from_file))
    refuses(r"^specs/split\.csv: was changed after the spec was compiled", from_file, content="sha256:0")
    file.unlink()
    refuses(r"^specs/split\.csv: no such file", from_file)
    refuses(r"^from_file\.validation_share does not go with a file", from_file, validation_share=0.1)
