"""The commit of a bench document, and its command without this machine's paths."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_triage.report.bench_origin import portable_command, portable_name, project_origin


@pytest.fixture
def checkout(tmp_path):
    """Return a repository of one commit."""

    def git(*words):
        settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", tmp_path, *settings, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    return tmp_path, git("rev-parse", "--short", "HEAD")


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@needs_git
def test_a_checkout_names_its_commit_and_whether_it_was_changed(checkout):
    folder, commit = checkout
    found = project_origin(folder)
    assert (found["commit"], found["commit_from"]) == (commit, "git")
    assert found["version"]
    (folder / "file").write_text("two")
    assert project_origin(folder)["commit"] == f"{commit}-dirty"


@needs_git
def test_a_checkout_without_a_commit_or_without_git_has_none(checkout, monkeypatch, tmp_path):
    folder, _ = checkout
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert project_origin(folder)["commit_from"] != "git"


@pytest.mark.parametrize(
    ("direct_url", "commit", "said_by"),
    [
        ({"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}, "abc123", "distribution"),
        ({"url": "file:///x", "dir_info": {"editable": True}}, None, None),
        ([], None, None),
        (None, None, None),
    ],
)
def test_what_is_no_checkout_says_what_its_distribution_does(tmp_path, direct_url, commit, said_by):
    # A process that finds this distribution before the one that is installed here.
    info = tmp_path / "gemma4_triage-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gemma4-triage\nVersion: 9.9\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    code = (
        f"import json, pathlib, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from gemma4_triage.report.bench_origin import project_origin\n"
        f"print(json.dumps(project_origin(pathlib.Path({str(tmp_path)!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"version": "9.9", "commit": commit, "commit_from": said_by}


def test_names_of_paths(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert portable_name(Path("rows.json")) == "rows.json"
    assert portable_name(work / "runs" / "a") == "runs/a"
    assert portable_name(tmp_path / "r_off") == "r_off"


def test_only_the_paths_of_a_command_are_changed(tmp_path):
    words = ["bench", "probes", "--arm", "off", "--out", f"{tmp_path}/a b.json", f"--run-folder={tmp_path}/r_off"]
    words += ["--also-sglang", f"{tmp_path}/s14"]
    line = portable_command(words)
    assert shlex.split(line) == [
        "gemma4-triage",
        *("bench", "probes", "--arm", "off", "--out", "a b.json", "--run-folder=r_off"),
        *("--also-sglang", "s14"),
    ]
