"""Measurements of runs, made by hand."""

import json

import pyarrow as pa

TYPES = {"round": pa.int32(), "client": pa.int32(), "correct": pa.int64(), "total": pa.int64(), "loss": pa.float64()}


def rounds_table(rows, population="test", moment="after_aggregation", last=None, **meta):
    """A ``rounds/2`` table of rows of round, client, correct, total and loss.

    `population` is that of all rows, or one for each; of right predictions for last positions there are as many as
    `last` says, or as there are of all.
    """
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=pa.schema(TYPES))
    populations = [population] * len(rows) if isinstance(population, str) else population
    table = table.append_column("population", pa.array(populations))
    table = table.append_column("moment", pa.array([moment] * len(rows)))
    table = table.append_column("last_correct", pa.array(last, pa.int64()) if last else table["correct"])
    return table.replace_schema_metadata({"pfl": json.dumps({"schema": "rounds/2", **meta})})
