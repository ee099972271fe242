"""The HTML pages in a real browser, headless: a script is added that does what people do and says what it sees."""

import html
import json
import re
import shutil
import subprocess

import pytest
from support.figure_demo import demo as figures
from support.pages import HOSTILE
from support.report_demo import RECORD, changed, demo, report, runs_of, with_note, with_records

from pipeline.papers.pages import reports_of, write_paper
from pipeline.papers.paper import papers_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.matrix, pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")]
PAGES = ("papers/demo.html", "demo/table2/report.html")
TOOLS = """
const seen = {}, pick = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const first = section => pick(".results tbody tr", section).map(row => row.cells[0].textContent);
const column = (section, i) => pick(".results tbody tr", section).map(row => row.cells[i].innerText.trim());
const errors = [];
addEventListener("error", event => errors.push(event.message));
"""
PUT = """
seen.errors = errors;
const textContent = JSON.stringify(seen);
document.body.append(Object.assign(document.createElement("pre"), { id: "probe", textContent }));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page of a paper with two tables, one with figures; and the report of a spec."""
    root = tmp_path_factory.mktemp("pages")
    one = with_note(demo(root), 0, HOSTILE)
    one = with_records(root, one, {run: RECORD | {"seed": seed} for seed, run in enumerate(one.runs)})
    two = changed(figures(root), spec="demo/more")
    (paper,) = papers_of({"demo/table2": one, "demo/more": two}, runs_of(one, root) | runs_of(two, root)).values()
    write_paper(paper, reports_of(paper, root), root)
    report(one, root, root / "reports/demo/table2")
    return root / "reports"


def browse(page, script, width=1400, javascript=True):
    """What `script` put into ``seen`` on a page of a window `width` pixels wide."""
    text = page.read_text(encoding="utf-8")
    if not javascript:  # the page's own scripts, that is
        text = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    wrapped = f"try {{ {script} }} catch (error) {{ errors.push(String(error)); }}"
    text = text.replace("</head>", f"<script>{TOOLS}</script></head>")
    copy = page.with_name(f"probe-{page.name}")
    copy.write_text(text.replace("</body>", f"<script>{wrapped} {PUT}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += [f"--user-data-dir={page.with_name('profile')}", f"--window-size={width},900", "--dump-dom"]
    command = [CHROMIUM, *options, "--virtual-time-budget=5000", copy.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen = json.loads(html.unescape(found[1]))
    assert seen.pop("errors") == []
    return seen


def test_sorting_and_toggles(folder):
    script = """
        const section = pick("section[data-key=s1]")[0], heads = pick(".results thead th button", section);
        seen.before = first(section);
        for (const step of ["down", "up", "back"]) {
          heads[3].click();  // Dirichlet, 50 clients
          const sorted = heads[3].closest("th").getAttribute("aria-sort");
          seen[step] = { rows: first(section), values: column(section, 3), sorted };
        }
        seen.other = first(pick("section[data-key=s2]")[0]);
        for (const button of pick(".toggle button", section)) {
          button.click();
          seen[button.dataset.view] = pick(".results tbody tr", section)[5].cells[1].innerText.trim();
        }
        heads[1].click();
        seen.sorted = column(section, 1);
    """
    seen = browse(folder / PAGES[0], script)
    names = ["Local-T", "FedAvg-T", "FedPer-T", "pFedMe-T", "Vanilla Personalized-T", "FedTP", "pFedGP"]
    assert seen["before"] == seen["back"]["rows"] == names and seen["other"] == ["Local", "FedAvg", "FedTP"]
    means = [float(value.split("±")[0]) for value in seen["down"]["values"][:-1]]
    assert means == sorted(means, reverse=True) and seen["down"]["rows"][0] == "FedTP"
    assert seen["down"]["rows"][-1] == seen["up"]["rows"][-1] == "pFedGP"  # nothing obtained: at the end both ways
    assert seen["up"]["rows"][:-1] == seen["down"]["rows"][:-1][::-1]
    assert [seen[step]["sorted"] for step in ("down", "up", "back")] == ["descending", "ascending", None]
    both = re.fullmatch(r"(\d\d\.\d\d)±0\.\d\d\s+90\.31±0\.26\s+([+−])(\d\.\d\d)", seen["both"])
    assert both and float(both[1]) - 90.31 == pytest.approx(float(f"{both[2]}{both[3]}".replace("−", "-")))
    assert re.fullmatch(r"\d\d\.\d\d±0\.\d\d", seen["obtained"]) and seen["published"] == "90.31±0.26"
    assert re.fullmatch(r"[+−]\d\.\d\d", seen["difference"])
    differences = [float(text.split()[0].replace("−", "-")) for text in seen["sorted"] if text]
    assert len(differences) == 6 and differences == sorted(differences, reverse=True)


@pytest.mark.parametrize(("page", "width"), [(PAGES[0], 1400), (PAGES[0], 500), (PAGES[1], 500)])
def test_only_tables_and_drawings_scroll_sideways(folder, page, width):  # no window is narrower than 500
    script = """
        pick("details").forEach(details => { details.open = true; });
        const page = document.documentElement;
        seen.width = innerWidth;
        seen.wide = page.scrollWidth > page.clientWidth;
        const named = region => region.getAttribute("aria-label") || region.getAttribute("aria-labelledby");
        seen.reachable = pick(".scroll").every(region => region.tabIndex === 0 && named(region));
        seen.named = pick("button").every(button => button.textContent.trim());
        seen.alts = pick("main svg").every(svg => svg.closest("[role=img][aria-label]"));
    """
    seen = browse(folder / page, script, width)
    assert seen == {"width": width, "wide": False, "reachable": True, "named": True, "alts": True}


def test_a_click_in_the_legend_hides_a_series_and_another_one_shows_it(folder):
    script = """
        const plot = pick(".plot")[0], [name] = pick(".series", plot);
        const hidden = () => pick('[id*="-line,"]', plot).filter(line => line.style.display === "none").length;
        seen.names = pick(".series", plot).map(one => one.getAttribute("aria-label"));
        for (const step of ["off", "on"]) {
          name.dispatchEvent(new MouseEvent("click"));
          seen[step] = [name.getAttribute("aria-pressed"), hidden()];
        }
    """
    seen = browse(folder / PAGES[0], script)
    assert seen["names"][0] == "Local-T" and len(set(seen["names"])) == len(seen["names"]) == 6
    assert seen["off"][0] == "false" and seen["off"][1] >= 3 and seen["on"] == ["true", 0]


def test_everything_is_readable_without_scripts(folder):
    script = """
        seen.toggle = getComputedStyle(document.querySelector(".toggle")).display;
        seen.claims = pick(".claims .badge").map(badge => badge.innerText);
    """
    claims = ["not yet", "the paper's own table contradicts it", "one seed: undecided"]  # no seed is common
    assert browse(folder / PAGES[0], script, javascript=False) == {"toggle": "none", "claims": claims}
