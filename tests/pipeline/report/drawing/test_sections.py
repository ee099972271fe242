"""Plain tables of sections: what is the same in all rows is told once."""

from pipeline.report.drawing.sections import PlainTable, told_once

HEADER = ("run", "device", "torch", "bytes")


def test_what_all_rows_say_is_told_once() -> None:
    table = PlainTable(HEADER, [("a", "cpu", "2.1", "7"), ("b", "cpu", "2.2", "7")], labels=3)
    rest, told = told_once(table)
    assert rest == PlainTable(("run", "torch"), [("a", "2.1"), ("b", "2.2")], labels=2)
    assert told == "device cpu, bytes 7"


def test_columns_that_stay() -> None:
    table = PlainTable(HEADER, [("a", "cpu", "2.1", "7"), ("a", "cpu", "2.1", "7")], labels=3)
    rest, told = told_once(table, stay=3)
    assert rest == PlainTable(HEADER[:3], [("a", "cpu", "2.1")] * 2, labels=3)
    assert told == "bytes 7"


def test_one_row_and_none_stay_as_they_are() -> None:
    for rows in ([], [("a", "cpu", "2.1", "7")]):
        table = PlainTable(HEADER, rows, labels=3)
        assert told_once(table) == (table, "")
