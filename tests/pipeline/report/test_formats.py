"""CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd

from pipeline.report.formats import csv_text

FORMULAS = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "\t=1", " =1", "=", "-x"]
PLAIN = ["FedAvg", "-0.5", "+1", "-12", "a=b", "'quoted'", "", "λ = 5"]
LINES = "a\r\nb"


def test_formulas_are_made_inert_and_nothing_else_changes() -> None:
    frame = pd.DataFrame({"method": [*FORMULAS, *PLAIN], "=head": np.arange(16) - 8.5, "best": [True, None] * 8})
    rows = list(csv.reader(io.StringIO(csv_text(frame))))
    assert rows[0] == ["method", "'=head", "best"]
    assert [row[0] for row in rows[1:]] == [*(f"'{text}" for text in FORMULAS), *PLAIN]
    assert [float(row[1]) for row in rows[1:]] == list(np.arange(16) - 8.5)  # a negative number is a number
    assert [row[2] for row in rows[1:3]] == ["True", ""]
    assert list(frame.columns) == ["method", "=head", "best"] and frame["method"][0] == "=1+1"


def test_no_text_begins_a_line() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(pd.DataFrame({"a": [LINES, "\r=1"]})))))
    assert rows == [["a"], ["a \nb"], ["' =1"]]


def test_the_index_is_written_if_it_has_a_label() -> None:
    frame = pd.DataFrame({"=a": [0.123456789]}, index=[20])
    assert csv_text(frame, "round") == "round,'=a\n20,0.123457\n"
