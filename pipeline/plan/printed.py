"""A plan as text: what a person asks first, then a line per spec, then the rest."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.plan.plan import Plan, Share

_HEADS = ("spec", "runs", "new", "time here", "disk")


def plan_lines(plan: Plan) -> Iterator[str]:
    """``36 of 96 runs are new: about 2 h here, 40 MB of artifacts``, and so on."""
    time = _time(plan.new, plan.seconds, plan.untimed)
    here = f" ({'time unknown' if time == 'unknown' else f'{time} here'})" if plan.new else ""
    are = "is" if plan.new == 1 else "are"
    yield f"{plan.new:,} of {plan.runs:,} runs {are} new{here}; {_size(plan.bytes)} of artifacts"
    yield ""
    rows = [_HEADS, *map(_row, plan.specs)]
    if len(plan.specs) > 1:
        rows.append(_row(Share("all, each run once", plan.runs, plan.new, plan.seconds, plan.untimed, plan.bytes)))
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADS))]
    for first, *rest in rows:
        yield "  ".join([first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))])
    yield ""
    yield f"{plan.stages:,} stages; {plan.slots:,} runs if specs shared none; {plan.visits:.3g} sample visits to train"
    if plan.untimed:
        yield f"{plan.untimed:,} of the new runs are of a method and backbone that has not been timed here yet"


def _row(share: Share) -> tuple[str, ...]:
    time = _time(share.new, share.seconds, share.untimed)
    return share.spec, f"{share.runs:,}", f"{share.new:,}", time, _size(share.bytes)


def _time(new: int, seconds: float, untimed: int) -> str:
    """Of `new` runs, of which so many have never been timed."""
    if not new:
        return "none"
    if untimed == new:
        return "unknown"
    if seconds >= 5400:
        words = f"{seconds / 3600:.1f} h"
    else:
        words = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    return f"over {words}" if untimed else f"about {words}"


def _size(number: int) -> str:
    if number >= 1_000_000_000:
        return f"{number / 1e9:,.1f} GB"
    return f"{number / 1e6:,.0f} MB" if number >= 1_000_000 else f"{number / 1e3:,.0f} kB"
