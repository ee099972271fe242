"""Figures of a study that break their contract."""

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from pflcore.errors import UserError
from pipeline.report import figures


@pytest.mark.parametrize(("draw", "line"), [(None, "has no function draw"), (lambda data: 1, "no Section, but int")])
def test_a_figure_without_draw_or_section_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, draw: Callable[[object], object] | None, line: str
) -> None:
    module = ModuleType("own_figure")
    module.__file__ = "figures/own.py"
    if draw:
        module.draw = draw  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_figure", module)
    monkeypatch.setattr(figures, "figure_module", lambda name: "own_figure")
    with pytest.raises(UserError, match=f"figure 'own': .*figures/own.py.*{line}"):
        figures._draw("own", None)  # type: ignore[arg-type]
