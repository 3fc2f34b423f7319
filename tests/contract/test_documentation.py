"""What the documents say exists: verbs, options, variables, patches, folders, files, the version."""

import os
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from command_line import find_command, parse_command
from gemma4_dumps.errors import ExitCode
from gemma4_repro.catalog import SCENARIOS
from gemma4_repro.corpus.clean import CLEAN
from gemma4_repro.corpus.faults import FAULTS
from gemma4_repro.parity.compare_tracks import LOGPROB_TOLERANCE, STATE_TOLERANCE
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import RUNNABLE
from gemma4_runtime.settings import VARIABLES
from gemma4_triage.cli.app import VERBS, command_tree, main
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.logs.catalog import ENDINGS, FALLBACKS, LOADS
from gemma4_triage.logs.rules.other_crash import ID as OTHER_CRASH

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
MADE_BY_SCRIPTS = {"docs/incidents.md", "docs/kernels.md", "docs/products.md"}
NAMES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES)
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
README, ARCHITECTURE, CHANGELOG = TEXTS["README.md"], TEXTS["ARCHITECTURE.md"], TEXTS["CHANGELOG.md"]
SETTINGS = TEXTS["docs/settings.md"]
MANUAL = "\n".join(TEXTS[name] for name in ("README.md", *PAGES))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")

_FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_OUTPUT_OPTIONS = {"-o", "--out", "--output", "--markdown", "--junit", "--sarif", "--compile-cache"}
_FILE = re.compile(r"(?!-|https?://).*(/.*|\.(log|gz|json|zip|html|svg|xml|sarif|jsonl|yaml))")


def commands_of(name: str) -> list[list[str]]:
    """Return the words of each command that a document shows in a fenced block, in order, without comments."""
    blocks = [block.replace("\\\n", " ") for block in _FENCED.findall(TEXTS[name])]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("gemma4-triage ")]


def shown_commands() -> list[str]:
    """Return each command that any document shows, once."""
    return sorted({shlex.join(words) for name in NAMES for words in commands_of(name)})


def links_of(name: str) -> list[tuple[str, str]]:
    """Return the links of a document that lead into this repository: the file and the anchor, which may be empty."""
    links = [link.partition("#") for link in _LINK.findall(_FENCED.sub("", TEXTS[name])) if not link.startswith("http")]
    here = (ROOT / name).parent
    return [(os.path.relpath(here / path, ROOT) if path else name, anchor) for path, _, anchor in links]


def anchors_of(name: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a document."""
    headings = _HEADING.findall(_FENCED.sub("", TEXTS[name]))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_listed_verbs_are_the_registered_ones():
    assert set(command_tree().commands) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_row_in_the_readme_and_an_example(verb):
    assert f"\n| `gemma4-triage {verb}` |" in README
    assert any(words[1] == verb for name in ("README.md", *PAGES) for words in commands_of(name))


@pytest.mark.parametrize("line", shown_commands())
def test_a_shown_command_parses(line, capsys):
    _, *verb = parse_command(line).split()
    assert main([*verb, "--help"]) == ExitCode.OK
    assert "Usage" in capsys.readouterr().out


def test_a_command_that_is_not_there_would_be_noticed():
    assert shown_commands()
    with pytest.raises(Exception, match="--no-such-option"):
        parse_command("gemma4-triage repro e4b-trtllm --no-such-option")


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_setting_is_in_the_table(variable):
    assert f"\n| `{variable}` |" in SETTINGS


def test_the_readmes_settings_and_options_exist():
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| (.*?) \|", README, re.MULTILINE)
    serve, _, _ = find_command("gemma4-triage serve")
    options = {name for option in serve.params for name in option.opts}
    assert len(rows) >= 5
    assert {variable for variable, _ in rows} <= set(VARIABLES)
    assert {option for _, cell in rows for option in re.findall(r"`(--[\w-]+)`", cell)} <= options


@pytest.mark.parametrize("patch", CATALOG, ids=lambda patch: patch.id)
def test_every_patch_is_documented(patch):
    assert f"`{patch.id}`" in MANUAL + ARCHITECTURE


def test_the_table_of_settings_says_which_patches_are_defaults():
    (row,) = [line for line in SETTINGS.splitlines() if line.startswith("| `GEMMA4_TRIAGE_PATCHES` |")]
    defaults = re.search(r"`default`: (.*?) ·", row)
    assert defaults is not None
    assert re.findall(r"`([^`]+)`", defaults[1]) == [patch.id for patch in CATALOG if patch.default]
    fixes = sum(patch.default and patch.kind is Kind.FIX for patch in CATALOG)
    assert f"attaches the *default* patches: {NUMBERS[fixes].lower()} fixes," in README


@pytest.mark.parametrize(
    ("variable", "kind"), [("GEMMA4_TRIAGE_FAULTS", Kind.FAULT), ("GEMMA4_TRIAGE_PROBES", Kind.PROBE)]
)
def test_the_table_of_settings_lists_what_a_variable_may_name(variable, kind):
    (row,) = [line for line in SETTINGS.splitlines() if line.startswith(f"| `{variable}` |")]
    assert all(f"`{patch.id}`" in row for patch in CATALOG if patch.kind is kind and patch.asked_by == "mode")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_every_scenario_is_on_its_page(scenario):
    assert f"gemma4-triage repro {scenario.id}" in TEXTS["docs/reproduce.md"]


def test_the_counts_of_rules_and_faults():
    """A rule or a fault more, and these sentences are wrong."""
    manual, changelog = " ".join(MANUAL.split()), " ".join(CHANGELOG.split())
    of_logs = len({rule.id for rule in (*ENDINGS, *FALLBACKS, *LOADS)} | {OTHER_CRASH})
    injected = sum(patch.kind is Kind.FAULT for patch in CATALOG)
    assert f"`gemma4-triage diagnose`: {len(RULES)} rules" in changelog
    assert f"{of_logs} rules over crashes" in changelog
    assert f"Faults: {injected} to inject" in changelog
    assert f"`repro corpus`, {len(FAULTS)} faults and {len(CLEAN)} clean loads" in changelog
    assert f"`gemma4-triage repro corpus` injects {len(FAULTS)} known defects" in manual
    assert f"{NUMBERS[len(CLEAN)]} clean loads (" in manual
    assert f"the corpus' {len(FAULTS)} faults and its {len(CLEAN)} clean loads" in manual


def test_the_tolerance_of_a_live_comparison():
    assert LOGPROB_TOLERANCE == STATE_TOLERANCE
    assert f"The tolerance is {LOGPROB_TOLERANCE:.0e}".replace("e-0", "e-") in TEXTS["docs/compare.md"]


@pytest.mark.parametrize("name", sorted({"README.md", "CHANGELOG.md", *PAGES} - MADE_BY_SCRIPTS))
def test_lines_are_no_longer_than_those_of_code(name):
    limit = PYPROJECT["tool"]["ruff"]["line-length"]
    assert [line for line in TEXTS[name].splitlines() if len(line) > limit and not line.startswith("|")] == []


@pytest.mark.parametrize("name", ["README.md", "docs/settings.md"])
def test_every_exit_code_is_in_the_table(name):
    rows = re.findall(r"^\| (\d[\d, ]*) \|", TEXTS[name], re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(",")} == {int(code) for code in ExitCode}


def test_the_front_page_is_short_and_begins_with_what_a_newcomer_needs():
    lines = README.splitlines()
    assert len(lines) <= 250
    assert all(release in "\n".join(lines[:10]) for release in RUNNABLE)
    assert all(release in TEXTS["docs/limits.md"] for release in RUNNABLE)
    first = [line.strip() for line in lines[:50]]
    assert "pip install ." in first
    assert any(line.startswith("gemma4-triage diagnose dumps/samples") for line in first)


def test_the_diagnosis_on_the_front_page_is_what_the_command_says(cli):
    """If this fails: copy the words anew from gemma4-triage diagnose, and leave out what is long with three dots."""
    (command,) = [words for words in commands_of("README.md") if words[1] == "diagnose" and words[-1].endswith("*")]
    (dump,) = ROOT.glob(command[-1])
    code, out, _ = cli("diagnose", str(dump))
    assert code == ExitCode.VIOLATION
    (shown,) = [block for block in _FENCED.findall(README) if "CERTAIN" in block]
    said = " ".join(out.split())
    assert [part for part in " ".join(shown.split()).split(" ...") if part.strip() not in said] == []


@pytest.mark.parametrize("name", ["README.md", *PAGES])
def test_files_in_shown_commands_are_there(name):
    """Whoever pastes a command into a fresh clone has the file: committed, written by a command before, or a NAME."""
    written: set[str] = set()
    for words in commands_of(name):
        written |= {word for option, word in pairwise(words) if option in _OUTPUT_OPTIONS}
        named = [word for word in words[1:] if _FILE.fullmatch(word) and word not in written]
        missing = [word for word in named if not word.split(".")[0].isupper() and not list(ROOT.glob(word))]
        assert missing == [], shlex.join(words)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_reached_from_the_readme(page):
    reached, pending = set(), ["README.md"]
    while pending:
        name = pending.pop()
        reached.add(name)
        pending += [to for to, _ in links_of(name) if to in PAGES and to not in reached]
    assert page in reached


@pytest.mark.parametrize("name", ["README.md", *sorted(set(PAGES) - MADE_BY_SCRIPTS)])
def test_a_newcomer_meets_no_private_word(name):
    assert re.search(r"seed\s+bug|of\s+two\s+minds", TEXTS[name]) is None


@pytest.mark.parametrize("folder", [*PYPROJECT["tool"]["setuptools"]["packages"]["find"]["where"], "tests", "docs"])
def test_every_top_level_folder_is_in_the_architecture(folder):
    packages = [path.name for path in (ROOT / folder).glob("gemma4_*") if (path / "__init__.py").exists()]
    for name in [f"{folder}/{package}/" for package in packages] or [f"{folder}/"]:
        assert f"| `{name}`" in ARCHITECTURE


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name):
    links = links_of(name)
    assert [path for path, _ in links if not (ROOT / path).exists()] == []
    assert [(path, anchor) for path, anchor in links if anchor and anchor not in anchors_of(path)] == []


def test_the_picture_refers_to_nothing_outside():
    picture = (ROOT / "docs" / "verdict.svg").read_text(encoding="utf-8")
    outside = re.findall(r"""(?:href|src)=["'](?!#)|url\((?!#)|@import|@font-face""", picture)
    assert outside == []


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## \[([^\]]+)\]", CHANGELOG, re.MULTILINE)
    assert versions[0] == PYPROJECT["project"]["version"]
