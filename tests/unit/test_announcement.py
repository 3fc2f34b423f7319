"""The lines of a start: the plugin and `gemma4-triage serve` say the same of the same settings."""

from gemma4_runtime import announcement
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.selection import select
from gemma4_runtime.session import Session
from gemma4_runtime.settings import VARIABLES, read_settings
from gemma4_triage.cli.app import main

ENVIRONMENT = {
    "SGLANG_TRTLLM_MHA_DEBUG": "contain",
    "GEMMA4_TRIAGE_PATCHES": "default",
    "GEMMA4_TRIAGE_FAULTS": "stale-mapping",
    "GEMMA4_TRIAGE_LEAK": "dump",
    "GEMMA4_TRIAGE_INCLUDE": "kv",
    "GEMMA4_TRIAGE_COST": "1",
}


def of_environment(monkeypatch, tmp_path, **environment):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in (ENVIRONMENT | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    return read_settings()


def test_serve_and_the_plugin_say_the_same_of_the_same_settings(monkeypatch, tmp_path, capsys, caplog):
    settings = of_environment(monkeypatch, tmp_path)
    release = installed_or_base()
    expected = [line.text for line in announcement.lines(settings, select(settings, release=release), {}, release)]
    assert main(["serve", "--dry-run", "--", "--model-path", "m"]) == 0
    said = [line.removeprefix("gemma4-triage: ") for line in capsys.readouterr().err.splitlines()]
    assert said[: len(expected)] == expected

    caplog.set_level("INFO", logger="gemma4_runtime.session")
    session = Session(settings)
    session.start()
    session.stop()
    loud = capsys.readouterr().err.splitlines()
    quiet = [record.getMessage() for record in caplog.records]
    both = {line.removeprefix("gemma4-triage: ") for line in (*loud, *quiet)}
    assert set(expected) <= both
    assert f"gemma4-triage: {expected[0]}" in loud


def test_the_worst_comes_first_and_a_missing_probe_is_not_named_as_there(monkeypatch, tmp_path):
    settings = of_environment(monkeypatch, tmp_path, SGLANG_TRTLLM_MHA_DEBUG="log")
    made = list(announcement.lines(settings, select(settings), {"page-table": "its target is missing"}))
    fault, missing, probes, *_ = made
    assert fault.text.startswith("FAULT INJECTED: stale-mapping: ")
    assert missing.text.startswith("PROBE NOT ATTACHED: page-table: its target is missing. ")
    assert fault.loud
    assert missing.loud
    assert probes.text.startswith("probes: ")
    assert "page-table" not in probes.text
    assert any(line.loud and line.text.startswith("DUMPS WILL HOLD KV values of requests") for line in made)


def test_a_log_names_dumps_in_a_relative_folder_by_the_whole_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    of_environment(monkeypatch, tmp_path)
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", "dumps")
    assert Session(read_settings(), ()).in_force.guard.root == tmp_path / "dumps"
