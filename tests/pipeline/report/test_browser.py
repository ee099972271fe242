"""The HTML pages in a real browser, headless: a script is added that does what people do and says what it sees."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.figure_demo import demo as figures
from support.figure_demo import record
from support.pages import HOSTILE
from support.report_demo import changed, demo, report, runs_of, with_note, with_records

from pipeline.papers import paper_page
from pipeline.papers.paper import papers_of
from pipeline.papers.paper_page import write_paper

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")

TOOLS = """
const seen = {}, all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const first = section => all(".results tbody tr", section).map(row => row.cells[0].textContent);
const column = (section, i) => all(".results tbody tr", section).map(row => row.cells[i].innerText.trim());
const move = (target, type, clientX, clientY) =>
  target.dispatchEvent(new PointerEvent(type, { clientX, clientY, bubbles: true, pointerType: "mouse" }));
const errors = [];
addEventListener("error", event => errors.push(event.message));
"""

SHOW = """
const show = textContent =>
  document.body.append(Object.assign(document.createElement("pre"), { id: "probe", textContent }));
"""
PUT = """
seen.errors = errors;
if (parent === window) show(JSON.stringify(seen)); else parent.postMessage(JSON.stringify(seen), "*");
"""
FRAME = (
    SHOW
    + """
addEventListener("message", ({ data }) => show(data));
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a paper with two tables, one with figures; and the report of a spec."""
    root = tmp_path_factory.mktemp("pages")
    one = with_note(demo(root), 0, HOSTILE)
    one = with_records(root, one, {run: record("fedtp", seed=n, depth=8) for n, run in enumerate(one.runs)})
    two = changed(figures(root), spec="demo/more")
    runs = runs_of(one, root) | runs_of(two, root)
    (paper,) = papers_of({"demo/table2": one, "demo/more": two}, runs).values()
    write_paper(paper, root)
    report(one, root, root / "reports/demo/table2")
    return root / "reports"


def browse(page: Path, script: str, width: int = 1400, javascript: bool = True) -> dict[str, Any]:
    """What `script` put into ``seen`` on a page of a window `width` pixels wide."""
    text = page.read_text(encoding="utf-8")
    wrapped = f"try {{ {script} }} catch (error) {{ errors.push(String(error)); }}"
    if not javascript:  # the page's own scripts, that is
        text = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    copy = page.with_name(f"probe-{page.name}")
    copy.write_text(
        text.replace("</head>", f"<script>{TOOLS}</script></head>").replace(
            "</body>", f"<script>{SHOW} {wrapped} {PUT}</script></body>"
        )
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    if width < 500:  # no window is narrower, but a frame in it is
        frame = f'<iframe src="{copy.name}" style="width: {width}px; height: 900px; border: 0"></iframe>'
        copy = page.with_name("frame.html")
        copy.write_text(f"<script>{FRAME}</script>{frame}")
    profile = page.with_name("profile")
    command = [str(CHROMIUM), *options, f"--user-data-dir={profile}", f"--window-size={width},900", "--dump-dom"]
    command += ["--virtual-time-budget=5000", copy.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen = dict(json.loads(html.unescape(found[1])))
    assert seen.pop("errors") == []
    return seen


def test_sorting_goes_down_up_and_back(folder: Path) -> None:
    seen = browse(
        folder / "papers/demo.html",
        """
        const section = all("section[data-key=s1]")[0], heads = all(".results thead th button", section);
        const other = all("section[data-key=s2]")[0];
        seen.heads = heads.map(head => head.textContent);
        seen.before = first(section);
        const steps = ["down", "up", "back"];
        for (const step of steps) {
          heads[3].click();  // Dirichlet, 50 clients
          const sorted = heads[3].closest("th").getAttribute("aria-sort");
          seen[step] = { rows: first(section), values: column(section, 3), sorted };
        }
        heads[0].click();
        seen.names = first(section);
        seen.other = first(other);
        """,
    )
    names = ["Local-T", "FedAvg-T", "FedPer-T", "pFedMe-T", "Vanilla Personalized-T", "FedTP", "pFedGP"]
    assert seen["before"] == names and seen["heads"][0] == "method" and len(seen["heads"]) == 5
    means = [float(value.split("±")[0]) for value in seen["down"]["values"][:-1]]
    assert means == sorted(means, reverse=True) and seen["down"]["rows"][0] == "FedTP"
    assert seen["down"]["rows"][-1] == seen["up"]["rows"][-1] == "pFedGP"  # nothing obtained: at the end both ways
    assert seen["up"]["rows"][:-1] == seen["down"]["rows"][:-1][::-1]
    assert [seen[step]["sorted"] for step in ("down", "up", "back")] == ["descending", "ascending", None]
    assert seen["back"]["rows"] == names
    assert seen["names"] == sorted(names, key=str.casefold)
    assert seen["other"] == ["Local", "FedAvg", "FedTP"]


def test_toggles_choose_what_is_shown(folder: Path) -> None:
    script = """
        const section = document.querySelector("section[data-key]"), buttons = all(".toggle button", section);
        for (const button of buttons) {
          button.click();
          const text = all(".results tbody tr", section)[5].cells[1].innerText.trim();
          seen[button.dataset.view] = { text, pressed: buttons.map(b => b.getAttribute("aria-pressed")) };
        }
        buttons[3].click();
        all(".results thead th button", section)[1].click();
        seen.sorted = column(section, 1);
    """
    for page in ("papers/demo.html", "demo/table2/report.html"):
        seen = browse(folder / page, script)
        assert re.fullmatch(r"\d\d\.\d\d±0\.\d\d\s+\(90\.31±0\.26\)", seen["both"]["text"])
        assert re.fullmatch(r"\d\d\.\d\d±0\.\d\d", seen["obtained"]["text"])
        assert seen["published"]["text"] == "90.31±0.26"
        assert re.fullmatch(r"[+−]\d\.\d\d (match|close)", seen["difference"]["text"])
        assert seen["published"]["pressed"] == ["false", "false", "true", "false"]
        differences = [text.split()[0].replace("−", "-") for text in seen["sorted"] if text[0] in "+−"]
        assert len(differences) == 6
        assert [float(d) for d in differences] == sorted(map(float, differences), reverse=True)


def test_a_click_on_a_cell_says_where_its_number_comes_from(folder: Path) -> None:
    seen = browse(
        folder / "papers/demo.html",
        """
        const section = all("section[data-key=s1]")[0], dialog = document.querySelector("dialog");
        const look = (row, column) => {
          all(".results tbody tr", section)[row].cells[column].querySelector("button").click();
          const told = { open: dialog.open, title: dialog.querySelector("h2").textContent, text: dialog.innerText,
            focus: dialog.contains(document.activeElement), code: all("code", dialog).map(code => code.textContent) };
          dialog.querySelector(".close-button").click();
          return { ...told, closed: !dialog.open };
        };
        const cells = { fedtp: [5, 3], hostile: [0, 1], diverged: [0, 2], missing: [3, 2], quoted: [6, 1] };
        for (const [name, at] of Object.entries(cells)) seen[name] = look(...at);
        """,
    )
    fedtp = seen["fedtp"]
    assert fedtp["open"] and fedtp["focus"] and fedtp["closed"]
    assert fedtp["title"] == "FedTP · CIFAR-10 · Dirichlet · clients = 50"
    for words in ("81.24±0.17", "difference", "device", "2.11.0", "fedtp-d50", "d" * 64, "tiny_vit", "depth"):
        assert words in fedtp["text"], words
    assert "pfl run demo/table2" in fedtp["code"]
    assert any(re.fullmatch(r"dvc repro stages/federations/\S+/dvc\.yaml:train-fedtp-d50", c) for c in fedtp["code"])
    assert HOSTILE in " ".join(seen["hostile"]["text"].split())
    assert "diverged in round" in seen["diverged"]["text"]
    assert "not run yet" in seen["missing"]["text"]
    assert "quoted by the paper" in seen["quoted"]["text"] and "Gaussian-process" in seen["quoted"]["text"]


def test_curves_tell_the_nearest_point(folder: Path) -> None:
    seen = browse(
        folder / "papers/demo.html",
        """
        const plot = document.querySelector(".plot[data-key=s1]"), svg = plot.querySelector("svg");
        const tip = plot.querySelector(".tip");
        const panel = data.curves.s1.panels[2], [name, rounds, values] = panel.curves.at(-1);
        const at = svg.getBoundingClientRect(), scale = at.width / svg.viewBox.baseVal.width;
        const [left, top, width, height] = panel.box, i = values.length - 1, round = data.curves.s1.rounds[rounds][i];
        const x = at.left + scale * (left + (round - panel.x[0]) / (panel.x[1] - panel.x[0]) * width);
        const y = at.top + scale * (top + (1 - (values[i] - panel.y[0]) / (panel.y[1] - panel.y[0])) * height);
        seen.expected = [name, round, values[i]];
        seen.hidden = tip.hidden;
        for (const type of ["pointermove", "pointerdown"]) {
          move(plot, type, x + 1, y + 1);
          seen[type] = tip.innerText;
        }
        move(plot, "pointerleave", 0, 0);
        seen.left = tip.hidden;
        const key = key => plot.parentElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        ["ArrowRight", "ArrowRight", "ArrowDown"].forEach(key);
        seen.keys = tip.innerText;
        key("Escape");
        seen.escaped = tip.hidden;
        """,
    )
    name, reached, value = seen["expected"]
    assert seen["hidden"] and seen["left"] and seen["escaped"]
    assert seen["pointermove"] == seen["pointerdown"] == f"{name}\nround {reached}: {value:.2f} %"
    assert seen["keys"].startswith("FedAvg-T\nround 20: ")


def test_buttons_take_curves_away_and_bring_them_back(folder: Path) -> None:
    seen = browse(
        folder / "papers/demo.html",
        """
        const section = document.querySelector(".plot[data-key=s1]").closest("section");
        const buttons = all(".series button", section), names = buttons.map(button => button.textContent);
        const number = names.indexOf("FedPer-T"), shown = one => getComputedStyle(one).display !== "none";
        const drawn = () => all("svg [id*='-series-']", section).filter(shown).length;
        seen.names = names;
        seen.before = drawn();
        buttons[number].click();
        seen.pressed = buttons.map(button => button.getAttribute("aria-pressed"));
        seen.after = drawn();
        // Nor is it told of under the pointer.
        const plot = section.querySelector(".plot"), tip = plot.querySelector(".tip"), found = new Set();
        const key = key => plot.parentElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        for (let i = 0; i < 60; i++) { key("ArrowDown"); found.add(tip.querySelector("b").textContent); }
        seen.told = [...found].sort();
        buttons[number].click();
        seen.back = drawn();
        """,
    )
    names = ["Local-T", "FedAvg-T", "FedPer-T", "pFedMe-T", "Vanilla Personalized-T", "FedTP"]
    assert seen["names"] == names
    assert seen["before"] == seen["back"] and seen["after"] == seen["before"] - 4  # of four panels
    assert seen["pressed"] == ["true", "true", "false", "true", "true", "true"]
    assert seen["told"] == sorted(set(names) - {"FedPer-T"})


def test_rows_can_be_filtered_and_contents_lead_to_tables(folder: Path) -> None:
    seen = browse(
        folder / "papers/demo.html",
        """
        const [many, few] = ["s1", "s2"].map(key => document.querySelector(`section[data-key=${key}]`));
        const shown = row => row.getClientRects().length, filter = many.querySelector(".filter");
        const type = value => {
          filter.value = value;
          filter.dispatchEvent(new Event("input"));
          return all(".results tbody tr", many).filter(shown).map(row => row.cells[0].textContent);
        };
        seen.some = type(" FED  -t");
        seen.none = type("nobody");
        seen.all = type("").length;
        seen.few = few.querySelector(".filter") === null;
        const contents = document.querySelector(".contents");
        contents.open = true;
        const links = all("a", contents);
        seen.links = links.map(link => link.textContent);
        seen.targets = links.every(link => document.querySelector(link.hash));
        links[1].click();
        seen.open = contents.open;
        seen.top = Math.abs(document.querySelector(links[1].hash).getBoundingClientRect().top) < innerHeight;
        """,
    )
    assert seen["some"] == ["FedAvg-T", "FedPer-T", "pFedMe-T"]
    assert (seen["none"], seen["all"], seen["few"]) == ([], 7, True)
    assert len(seen["links"]) == 3 and seen["links"][-1] == "Provenance" and seen["targets"]
    assert seen["top"] and not seen["open"]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a paper whose three tables have a page each."""
    root = tmp_path_factory.mktemp("long")
    tables = {f"demo/{name}": changed(figures(root), spec=f"demo/{name}", title=name) for name in ("a", "deep/b", "c")}
    (paper,) = papers_of(tables, runs_of(tables["demo/a"], root)).values()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_page, "MOST_TABLES", 2)
        write_paper(paper, root)
    return root / "reports/papers"


def test_a_long_paper_is_a_page_per_table(long: Path) -> None:
    assert {path.relative_to(long).as_posix() for path in long.rglob("*.html")} == {
        *("demo.html", "demo/a.html", "demo/c.html", "demo/deep/b.html")
    }
    look = """
        const to = link => link.href.split("/papers/")[1] ?? link.href.split("/reports/")[1];
        seen.tables = all(".results").length;
        seen.contents = all(".contents a").map(to);
        seen.here = all(".contents [aria-current]").map(link => link.textContent);
        seen.around = all(".pages a").map(to);
        seen.kicker = all(".kicker a").map(to);
        const cell = document.querySelector(".results .cell");
        if (cell) { cell.click(); seen.told = document.querySelector("dialog").innerText; }
    """
    first = browse(long / "demo.html", look + "seen.rows = all('.overview tbody tr').map(row => row.id);")
    inside = browse(long / "demo/deep/b.html", look)
    pages = ["demo/a.html", "demo/c.html", "demo/deep/b.html"]
    assert (first["tables"], first["contents"], first["here"], first["around"]) == (0, pages, [], [])
    assert first["rows"] == ["a", "c", "deep/b"] and first["kicker"] == ["index.html"]
    assert (inside["tables"], inside["here"], inside["around"]) == (1, ["deep/b"], ["demo/c.html"])
    assert inside["contents"] == [*pages, "demo/deep/probe-b.html#provenance"]
    assert inside["kicker"] == ["index.html", "demo.html"] and "pfl run demo/deep/b" in inside["told"]


@pytest.mark.parametrize("width", [1400, 390])
def test_only_tables_and_drawings_scroll_sideways(folder: Path, long: Path, width: int) -> None:
    for page in (
        folder / "papers/demo.html",
        folder / "demo/table2/report.html",
        long / "demo.html",
        long / "demo/a.html",
    ):
        seen = browse(
            page,
            """
            all("details").forEach(details => { details.open = true; });
            const page = document.documentElement;
            seen.width = innerWidth;
            seen.wide = page.scrollWidth > page.clientWidth;
            const named = region => region.getAttribute("aria-label") || region.getAttribute("aria-labelledby");
            seen.reachable = all(".scroll").every(region => region.tabIndex === 0 && named(region));
            seen.named = all("button").every(button => button.textContent.trim());
            seen.alts = all("main svg").every(svg => svg.closest("[role=img][aria-label]"));
            """,
            width,
        )
        assert seen == {"width": width, "wide": False, "reachable": True, "named": True, "alts": True}


def test_everything_is_readable_without_scripts(folder: Path) -> None:
    seen = browse(
        folder / "papers/demo.html",
        """
        seen.toggle = getComputedStyle(document.querySelector(".toggle")).display;
        seen.row = all("section[data-key=s1] .results tbody tr")[5].innerText;
        seen.claims = all(".claims .badge").map(badge => badge.innerText);
        """,
        javascript=False,
    )
    assert seen["toggle"] == "none"
    assert "(90.31±0.26)" in seen["row"]
    # Every run of the fixture has a seed of its own, so that the second claim compares no seed with itself.
    assert seen["claims"] == ["not yet", "the paper's own table contradicts it", "within noise"]
