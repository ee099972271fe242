from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from pflcore.errors import UserError
from pflcore.protocols import curve, final_clients, summarise
from pflcore.settings import Evaluation
from pipeline.ledger.measurements import from_lines, to_lines

# Three clients, the last of them novel; rounds 2 and 5; four characters per text.
CORRECT = [[3, 8, 5], [4, 11, 0]]
LAST = [[1, 2, 1], [0, 3, 0]]
TOTAL = [8, 12, 20]
LOSS = [[2.5, 1.25, 0.5], [0.1, 1 / 3, 7.0]]


def measured(positions: int = 4, **columns: list[int]) -> pa.Table:
    """A ``rounds/2`` table."""
    table = pa.table(
        {
            "round": pa.array([2, 2, 2, 5, 5, 5], pa.int32()),
            "client": pa.array(columns.get("client", [0, 1, 2, 0, 1, 2]), pa.int32()),
            "population": pa.DictionaryArray.from_arrays(np.array([0, 0, 1] * 2, np.int8), ["test", "novel"]),
            "moment": pa.DictionaryArray.from_arrays(np.zeros(6, np.int8), ["after_aggregation"]),
            "correct": pa.array(np.ravel(CORRECT)),
            "total": pa.array(columns.get("total", TOTAL * 2)),
            "loss": pa.array(np.ravel(LOSS)),
            "last_correct": pa.array(np.ravel(LAST if positions != 1 else CORRECT)),
        }
    )
    return table.replace_schema_metadata({"pfl": json.dumps({"positions": positions})})


def test_lines_are_readable() -> None:
    # 11 of 20 right, and a loss of (8 * 2.5 + 12 * 1.25) / 20, over the two clients that are not novel.
    assert to_lines(measured(), 4).splitlines() == [
        "test samples: 8 12 20",
        "novel clients: 2",
        "round 2, accuracy 55.00, loss 1.75: 3 8 5",
        "round 5, accuracy 75.00, loss 0.24: 4 11 0",
        "last 2: 1 2 1",
        "last 5: 0 3 0",
    ]
    assert not any(line.startswith("last") for line in to_lines(measured(1), 1).splitlines())


@pytest.mark.parametrize("positions", [1, 4])
def test_every_figure_survives(positions: int) -> None:
    before = measured(positions)
    after = from_lines(to_lines(before, positions)).replace_schema_metadata(before.schema.metadata)
    assert after.drop_columns("loss").equals(before.drop_columns("loss"))
    schedule = Evaluation(every=3, window=3, curve_every=0)
    assert summarise(after, schedule, 5) == summarise(before, schedule, 5)
    assert final_clients(after).drop_columns("loss").equals(final_clients(before).drop_columns("loss"))
    assert np.allclose(curve(after), curve(before))


def with_validation() -> pa.Table:
    """As :func:`measured`, where the two clients that are not novel hold 4 and 6 samples back."""
    held_back = pa.table(
        {
            "round": pa.array([2, 2, 5, 5], pa.int32()),
            "client": pa.array([0, 1, 0, 1], pa.int32()),
            "population": ["validation"] * 4,
            "moment": ["after_aggregation"] * 4,
            "correct": pa.array([1, 2, 4, 5]),
            "total": pa.array([4, 6, 4, 6]),
            "loss": pa.array([1.0, 2.0, 0.5, 0.5]),
            "last_correct": pa.array([1, 0, 1, 1]),
        }
    )
    plain = measured()
    words = {name: plain[name].cast(pa.string()) for name in ("population", "moment")}
    tested = pa.table({name: words.get(name, plain[name]) for name in plain.column_names})
    both = pa.concat_tables([tested.slice(0, 3), held_back.slice(0, 2), tested.slice(3), held_back.slice(2)])
    return both.replace_schema_metadata(plain.schema.metadata)


def test_validation_has_lines_behind_those_of_test() -> None:
    # 3 of 10 right with a loss of (4 + 12) / 10, then 9 of 10
    lines = to_lines(with_validation(), 4)
    assert lines.splitlines()[:6] == to_lines(measured(), 4).splitlines()
    assert lines.splitlines()[6:] == [
        "validation samples: 4 6",
        "validation round 2, accuracy 30.00, loss 1.6: 1 2",
        "validation round 5, accuracy 90.00, loss 0.5: 4 5",
        "validation last 2: 1 0",
        "validation last 5: 1 1",
    ]
    after = from_lines(lines)
    for name in ("round", "client", "population", "correct", "total", "last_correct"):
        assert after[name].to_pylist() == with_validation()[name].to_pylist()
    assert np.allclose(curve(after, "validation"), curve(with_validation(), "validation"))
    assert np.allclose(curve(after), curve(measured()))


def test_nothing_measured() -> None:
    assert to_lines(measured().slice(0, 0), 1) == ""
    assert from_lines("").schema.equals(measured().schema.remove_metadata())
    assert not len(from_lines(""))


@pytest.mark.parametrize(
    "columns", [{"total": [8, 12, 20, 8, 12, 21]}, {"client": [0, 1, 2, 0, 1, 1]}, {"client": [0, 1, 2, 1, 0, 2]}]
)
def test_what_lines_cannot_say(columns: dict[str, list[int]]) -> None:
    with pytest.raises(UserError, match="not measured alike in all rounds"):
        to_lines(measured(**columns), 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("test samples: 8 12\nround 2, accuracy 55.00, loss 1.75: 3\n", "a line has not 2 numbers"),
        ("test samples: 8\nround 2, accuracy 55.00, loss 1.75: x\n", "unexpected line 'round 2, accuracy"),
        ("test samples: 8\nround 2, accuracy 55.00, loss 1.7.5: 3\n", "unexpected line 'round 2, accuracy"),
        ("test samples: 99999999999999999999\nround 2, accuracy 5.00, loss 1: 3\n", "damaged measurements"),
        ("test samples: 8\nround 2, accuracy 55.00, loss 1.75: 3\nlast 3: 3\n", "last positions of other rounds"),
        ("test samples: 8\nround 2, accuracy 5.00, loss 1: 3\nvalidation samples: 4\n", "validation in other rounds"),
        (
            "test samples: 8\nround 2, accuracy 5.00, loss 1: 3\nvalidation samples: 4\n"
            "validation round 2, accuracy 5.00, loss 1: 3 4\n",
            "a line has not 1 numbers",
        ),
    ],
)
def test_damaged_lines(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        from_lines(text)
