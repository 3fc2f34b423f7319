"""What the documents say exists: verbs, options, variables, patches, folders, files, the version."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from gemma4_repro.catalog import SCENARIOS
from gemma4_repro.detection.catalog import CLEAN, FAULTS
from gemma4_repro.parity.compare_tracks import LOGPROB_TOLERANCE, STATE_TOLERANCE
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_runtime.settings import VARIABLES
from gemma4_runtime.targets import TARGETS
from gemma4_triage.cli.app import VERBS, build_app, main
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.errors import ExitCode
from gemma4_triage.logs.catalog import ENDINGS, LOADS
from gemma4_triage.logs.rules.other_crash import ID as OTHER_CRASH

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
README, ARCHITECTURE, CHANGELOG = TEXTS["README.md"], TEXTS["ARCHITECTURE.md"], TEXTS["CHANGELOG.md"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")

_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def shown_commands() -> list[str]:
    """Every line of a fenced block that starts with the program's name, without a trailing comment."""
    blocks = [block.replace("\\\n", " ") for text in TEXTS.values() for block in _FENCED.findall(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    return sorted({line.split(" #")[0].strip() for line in lines if line.startswith("gemma4-triage ")})


def find_command(words: list[str]):
    """The click command that `words` lead to, the path to it, and the words that are left for it."""
    command, path = typer.main.get_command(build_app()), []
    while words and words[0] in getattr(command, "commands", {}):
        path.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    return command, path, words


def test_the_listed_verbs_are_the_registered_ones():
    assert set(typer.main.get_command(build_app()).commands) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_readme(verb):
    assert f"gemma4-triage {verb}" in README


@pytest.mark.parametrize("line", shown_commands())
def test_a_shown_command_parses(line, capsys):
    command, path, words = find_command(shlex.split(line)[1:])
    assert path, f"{line}: no such verb"
    # Parsing only: nothing is invoked.
    command.make_context(" ".join(path), list(words))
    assert main([*path, "--help"]) == ExitCode.OK
    assert "Usage" in capsys.readouterr().out


def test_a_command_that_is_not_there_would_be_noticed():
    assert shown_commands()
    command, _, words = find_command(["repro", "e4b-trtllm", "--no-such-option"])
    with pytest.raises(Exception, match="--no-such-option"):
        command.make_context("repro", list(words))


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_setting_is_in_the_readmes_table(variable):
    assert f"\n| `{variable}` |" in README


@pytest.mark.parametrize("patch", CATALOG, ids=lambda patch: patch.id)
def test_every_patch_is_documented(patch):
    assert f"`{patch.id}`" in README + ARCHITECTURE


def test_the_readme_says_which_fixes_are_defaults():
    (row,) = [line for line in README.splitlines() if line.startswith("| `GEMMA4_TRIAGE_PATCHES` |")]
    defaults = re.search(r"`default`: (.*?) ·", row)
    assert defaults is not None
    assert re.findall(r"`([^`]+)`", defaults[1]) == [patch.id for patch in CATALOG if patch.default]


@pytest.mark.parametrize(
    ("variable", "kind"), [("GEMMA4_TRIAGE_FAULTS", Kind.FAULT), ("GEMMA4_TRIAGE_PROBES", Kind.PROBE)]
)
def test_the_readme_lists_what_a_variable_may_name(variable, kind):
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `{variable}` |")]
    assert all(f"`{patch.id}`" in row for patch in CATALOG if patch.kind is kind and patch.asked_by == "mode")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_every_scenario_is_in_the_readme(scenario):
    assert f"gemma4-triage repro {scenario.id}" in README


def test_the_counts_of_rules_and_faults():
    """A rule or a fault more, and these sentences are wrong."""
    readme, changelog = " ".join(README.split()), " ".join(CHANGELOG.split())
    of_logs = len({rule.id for rule in (*ENDINGS, *LOADS)} | {OTHER_CRASH})
    injected = sum(patch.kind is Kind.FAULT for patch in CATALOG)
    assert f"`gemma4-triage diagnose`: {len(RULES)} rules" in changelog
    assert f"{of_logs} rules over crashes" in changelog
    assert f"Faults: {injected} to inject" in changelog
    assert f"`repro corpus`, {len(FAULTS)} faults and {len(CLEAN)} clean loads" in changelog
    assert f"`gemma4-triage repro corpus` injects {len(FAULTS)} known defects" in readme
    assert f"{NUMBERS[len(CLEAN)]} clean loads (" in readme
    assert f"the corpus' {len(FAULTS)} faults and its {len(CLEAN)} clean loads" in readme


def test_the_tolerance_of_a_live_comparison():
    assert LOGPROB_TOLERANCE == STATE_TOLERANCE
    assert f"The tolerance is {LOGPROB_TOLERANCE:.0e}".replace("e-0", "e-") in README


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_lines_are_no_longer_than_those_of_code(name):
    limit = PYPROJECT["tool"]["ruff"]["line-length"]
    assert [line for line in TEXTS[name].splitlines() if len(line) > limit and not line.startswith("|")] == []


def test_every_exit_code_and_release_is_in_the_readme():
    codes = {int(code) for row in re.findall(r"^\| (\d[\d, ]*) \|", README, re.MULTILINE) for code in row.split(",")}
    assert codes == {int(code) for code in ExitCode}
    assert all(release in README for release in TARGETS)


@pytest.mark.parametrize("folder", [*PYPROJECT["tool"]["setuptools"]["packages"]["find"]["where"], "tests", "docs"])
def test_every_top_level_folder_is_in_the_architecture(folder):
    packages = [path.name for path in (ROOT / folder).glob("gemma4_*") if (path / "__init__.py").exists()]
    for name in [f"{folder}/{package}/" for package in packages] or [f"{folder}/"]:
        assert f"| `{name}`" in ARCHITECTURE


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name):
    links = [link.split("#")[0] for link in _LINK.findall(TEXTS[name]) if not link.startswith(("http", "#"))]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_picture_refers_to_nothing_outside():
    picture = (ROOT / "docs" / "verdict.svg").read_text(encoding="utf-8")
    outside = re.findall(r"""(?:href|src)=["'](?!#)|url\((?!#)|@import|@font-face""", picture)
    assert outside == []


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## \[([^\]]+)\]", CHANGELOG, re.MULTILINE)
    assert versions[0] == PYPROJECT["project"]["version"]
