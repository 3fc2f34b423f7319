"""The HTML of a report: it parses strictly, refers to nothing outside, escapes everything, and stays small."""

import re
import shutil
import subprocess
from pathlib import Path

import html5lib
import pytest

from dump_examples import written
from gemma4_triage.report.html.render import render_html
from gemma4_triage.report.triage_markdown import render_markdown
from report_examples import (
    BACKENDS_RUN,
    CORPUS,
    CORPUS_RUN,
    HOSTILE,
    LEAK,
    LOGS,
    PATCHES_RUN,
    ROOT,
    RUN,
    SAMPLES,
    SEED_BUG,
    hostile_draft,
    large_draft,
    report_of,
)

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CRASH = ROOT / "tests" / "data" / "evidence" / "crash"
INPUTS = {
    "run": lambda: report_of(RUN),
    "corpus run": lambda: report_of(CORPUS_RUN),
    "backends": lambda: report_of(BACKENDS_RUN),
    "patches": lambda: report_of(PATCHES_RUN),
    "samples": lambda: report_of(SAMPLES, logs=(LOGS / "swa-starved.log", LOGS / "accept-drop.log")),
    "all dumps of the corpus": lambda: report_of(*sorted(CORPUS.iterdir())),
    "log": lambda: report_of(logs=(LOGS / "illegal-access.log",)),
    "a server's other files": lambda: report_of(CRASH, logs=(CRASH / "server.log",)),
}
_THREAD = r"https://github\.com/[\w-]+/[\w-]+/issues/\d+"
_REFERS = {"href", "src", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href", "style"}


def parse(html: str):
    """Raises at the first thing that HTML's own rules call an error."""
    page = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(html)
    for element in page.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rpartition("}")[2]
    return page


def text_of(element) -> str:
    return " ".join(" ".join(element.itertext()).split())


def section(page, name: str):
    (found,) = [one for one in page.iter("section") if one.get("id") == name]
    return found


def assert_alone(page, html: str) -> None:
    """Assert that nothing is loaded, run or addressed outside."""
    tags = {element.tag for element in page.iter() if isinstance(element.tag, str)}
    assert not tags & {"script", "link", "iframe", "object", "embed", "img", "image", "use", "base", "form", "a:href"}
    for element in page.iter():
        for name, value in element.attrib.items():
            assert not str(name).startswith("on")
            # A thread of SGLang may be followed; nothing is loaded by that.
            if name in _REFERS and not (element.tag == "a" and re.fullmatch(_THREAD, value)):
                assert value.startswith("#"), (element.tag, name, value)
    assert not re.search(r"url\(|@import|@font-face|expression\(", "".join(style.text for style in page.iter("style")))
    assert "javascript:" not in html


@pytest.mark.parametrize("name", INPUTS)
def test_it_is_one_valid_page_that_refers_to_nothing_outside(name):
    html = render_html(INPUTS[name]())
    page = parse(html)
    assert_alone(page, html)
    (policy,) = [meta.get("content") for meta in page.iter("meta") if meta.get("http-equiv")]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    targets = [link.get("href")[1:] for link in page.iter("a") if link.get("href").startswith("#")]
    assert targets
    assert set(targets) <= set(ids)


@pytest.mark.parametrize("name", INPUTS)
def test_pictures_and_tables_can_be_read_out(name):
    page = parse(render_html(INPUTS[name]()))
    assert list(page.iter("svg")), "no picture at all"
    for svg in page.iter("svg"):
        assert svg.get("role") == "img"
        assert text_of(svg.find("title"))
        assert svg.find("desc") is not None
    for table in page.iter("table"):
        assert [head for head in table.iter("th") if head.get("scope") == "col"]


@pytest.mark.parametrize("name", INPUTS)
def test_equal_input_gives_equal_text(name):
    first, second = INPUTS[name](), INPUTS[name]()
    assert first == second
    assert render_html(first) == render_html(second)
    assert render_markdown(first) == render_markdown(second)


class TestWhatItShows:
    def test_a_run(self):
        page = parse(render_html(report_of(RUN)))
        assert "e4b-trtllm: as expected, 62 s, SGLang 0.5.13.post1" in text_of(section(page, "verdict"))
        run = text_of(section(page, "run"))
        assert "fault-silent the same on a device that reads out of range without a fault sm90, 9.9 s" in run
        assert "accept length at most 90% of fixed's 2.01, fixed 3.50 ok" in run
        assert "import of SGLang" in run
        assert "draft-swa-state-stale" in text_of(section(page, "incidents"))
        assert "SWA pool: peak 0.98" in text_of(section(page, "logs"))
        commands = text_of(section(page, "commands"))
        assert "arm fixed alone gemma4-triage repro e4b-trtllm --arm fixed" in commands

    def test_the_matrix_of_the_corpus(self):
        page = parse(render_html(report_of(CORPUS_RUN)))
        (row,) = [row for row in page.iter("tr") if text_of(row).startswith("double-bookkeeping")]
        assert [text_of(cell) for cell in row.iter("td")] == ["SGLang 7130", "", "", "", "1", "", "right", "22", "ok"]

    def test_the_page_table(self):
        page = parse(render_html(report_of(SEED_BUG)))
        (bad,) = [cell for cell in page.iter("td") if "bad" in (cell.get("class") or "").split()]
        assert (bad.get("class"), bad.text) == ("out bad", "65")
        assert bad.get("title") == "[5, 7] 65: out, should be 49"
        assert "Inside the SWA pool's buffer: 1 ≤ page < 65." in text_of(page)

    def test_owners_and_equations_of_a_leak(self):
        page = parse(render_html(report_of(LEAK)))
        labels = [svg.get("aria-label") for svg in page.iter("svg")]
        assert "request slot 5, generation 1: 2 pages" in labels
        assert "alloc_for_extend: 2 pages" in labels
        (full,) = [label for label in labels if label.startswith("full: ")]
        assert full.endswith("= 2544 != 2560: 16 missing")
        assert "swa handed out" in labels

    def test_series_of_a_log_are_drawn(self):
        report = report_of(logs=(LOGS / "accept-drop.log",))
        page = parse(render_html(report))
        titles = [text_of(svg.find("title")) for svg in page.iter("svg")]
        assert "KV pool usage" in titles
        assert "accept length, tokens per verify step" in titles
        for line in page.iter("polyline"):
            points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
            assert len(points) > 1
            assert all(0 <= x <= 1000 and 0 <= y <= 100 for x, y in points)
            assert [x for x, _ in points] == sorted(x for x, _ in points)


class TestHostileText:
    def test_of_a_dump(self, tmp_path):
        html = render_html(report_of(written(tmp_path / "<b>", hostile_draft()).path))
        page = parse(html)
        assert_alone(page, html)
        assert "<script>alert(1)</script>]]>--><img src=http://evil.example/x onerror=go()>" in text_of(page)
        assert "{{ 7 * 7 }}" in text_of(page)
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", html)

    def test_of_a_log(self, tmp_path):
        log = tmp_path / "<script>.log"
        healthy = (LOGS / "illegal-access.log").read_text()
        log.write_text(healthy.replace("IllegalAddress: an", f"IllegalAddress: {HOSTILE[:40]} an"))
        html = render_html(report_of(logs=(log,)))
        page = parse(html)
        assert_alone(page, html)
        assert "<script>alert(1)</script>" in text_of(page)

    def test_of_a_runs_verdict(self, tmp_path):
        run = shutil.copytree(RUN, tmp_path / "run")
        file = run / "verdict.json"
        file.write_text(file.read_text().replace("760 tokens, equal", "<script>alert(1)</script>\\u0000"))
        html = render_html(report_of(run))
        assert_alone(parse(html), html)
        assert "<script>alert(1)</script>\\x00" in text_of(parse(html))

    def test_markdown_has_no_markup_of_it(self, tmp_path):
        text = render_markdown(report_of(written(tmp_path, hostile_draft()).path))
        outside = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", text))
        assert not re.search(r"(?<!\\)[<>]", outside)
        # A table has as many cells in each row as in its head.
        for table in re.findall(r"(?m)(?:^\|.*\|\n)+", text):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1, table


class TestSize:
    def test_a_hundred_dumps_stay_below_a_megabyte(self, tmp_path):
        offences = [(row, (row * 7) % 300) for row in range(300)]
        for number in range(100):
            written(tmp_path, large_draft(300, 300, offences if number < 5 else offences[:1]))
        report = report_of(tmp_path)
        html = render_html(report)
        assert len(html) < 1_000_000
        assert "more dumps" in html

    def test_a_manifest_of_many_names_is_cut_and_says_so(self, tmp_path):
        many = {f"extent {number}": number for number in range(20_000)}
        html = render_html(report_of(written(tmp_path, hostile_draft(extents=many, scalars={}, guards=many)).path))
        assert len(html) < 200_000
        assert "more</dd>" in html

    def test_long_text_is_cut_and_says_so(self, tmp_path):
        html = render_html(report_of(written(tmp_path, hostile_draft(summary="a" * 100_000)).path))
        assert "(96000 more characters)" in html
        assert len(html) < 200_000


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_chromium_draws_it_without_a_word(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(render_html(report_of(SAMPLES, logs=(LOGS / "accept-drop.log",))), encoding="utf-8")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    shot = tmp_path / "report.png"
    done = subprocess.run(
        [
            str(BROWSER),
            *flags,
            "--disable-quic",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={shot}",
            "--window-size=420,1200",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(shot).stat().st_size > 20_000
    # Whatever the policy refuses, and whatever fails to load, is told on the console.
    assert "CONSOLE" not in done.stderr
