"""The report of each spec of the repository that has a table, on made-up measurements: every table, figure and page."""

import pandas as pd
import pytest
from support import figure_demo as fd
from support import report_demo as rd
from support.paper_specs import SPECS, resolve_spec

from pipeline.report.collect import write_frame
from pipeline.report.write import build_report
from pipeline.workspace import frame_path

FILES = [path for path in SPECS.rglob("*.yaml") if "abstract: true" not in path.read_text(encoding="utf-8")]
NAMES = sorted(path.relative_to(SPECS).with_suffix("").as_posix() for path in FILES)


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_a_report_shows_what_was_measured(tmp_path, name):
    made = resolve_spec(name)
    runs = {run.id: run for run in made.runs if run.id in made.table.runs}
    table = rd.with_records(tmp_path, made.table, {id_: run.record for id_, run in runs.items()})
    for at, (id_, run) in enumerate(runs.items()):
        rounds = run.training.rounds  # of which the last are enough
        due = [round_ for round_ in range(1, rounds + 1) if run.evaluation.is_due(round_, rounds)][-41:]
        rd.write_run(tmp_path, id_, 40 + at % 50, clients=min(run.clients, 8), rounds=rounds, due=due)
        if run.analyses:
            fd.write_analysis(tmp_path, id_, fd.every_analysis(at))
    write_frame(table, tmp_path, tmp_path / frame_path(name))
    build_report(table, tmp_path, tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text(encoding="utf-8")
    cells = pd.read_csv(tmp_path / "report/table.csv", dtype={"runs": str})
    assert page.startswith("# ") and len(cells) == len(table.cells)
    planned = cells[cells["runs"].notna()]
    if table.metric in ("last_rounds", "clients", "final") and not (table.quantities or table.counted):
        assert planned["n"].min() > 0 and planned["obtained_mean"].between(0, 100).all()
