"""`gemma4-triage logs`: output, document, exit codes, and the memory that it takes."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from made_logs import steady

SAMPLES = Path(__file__).parents[1] / "data" / "logs"
SCRIPT = Path(__file__).parents[1] / "tools" / "measure_log_reading.py"


def test_what_a_person_sees(cli):
    code, out, err = cli("logs", SAMPLES / "swa-starved.log")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert "64 of 78 lines understood" in lines[1]
    assert "pools: full 2560 tokens, swa 1024 tokens, ratio 0.4" in out
    assert "retractions  18 requests in 18 events, 2464 tokens prefilled again" in out
    assert next(line for line in lines if "SWA usage" in line).endswith("peak 0.98")
    assert "CERTAIN  binding-pool" in lines
    assert lines[-1] == "3 findings"


def test_a_clean_log(cli):
    code, out, _ = cli("logs", SAMPLES / "healthy.log")
    assert code == 0
    assert out.splitlines()[-1] == "no findings"


@pytest.mark.parametrize("verb", ["logs", "known check", "diagnose", "report"])
class TestATornFile:
    def packed(self, tmp_path, sample: str, of: float = 0.7) -> Path:
        data = gzip.compress((SAMPLES / sample).read_bytes())
        path = tmp_path / "server.log.gz"
        path.write_bytes(data[: int(len(data) * of)])
        return path

    def test_without_a_finding_in_the_rest_is_not_clean(self, cli, tmp_path, verb):
        path = self.packed(tmp_path, "healthy.log")
        code, out, err = cli(*verb.split(), path)
        assert (code, f"{path} ends early: its gzip is torn" in err) == (4, True)
        assert "1 file read in part" in out or verb == "known check"
        document = json.loads(cli(*verb.split(), path, "--json")[1])
        assert document.get("clean", False) is False

    def test_with_one_is_told_of_too(self, cli, tmp_path, verb):
        path = self.packed(tmp_path, "illegal-access.log", 0.95)
        code, _, err = cli(*verb.split(), path)
        assert (code, f"{path} ends early: its gzip is torn" in err) == (1, True)

    def test_of_which_nothing_can_be_read_is_an_error(self, cli, tmp_path, verb):
        path = self.packed(tmp_path, "healthy.log", 0.005)
        code, out, err = cli(*verb.split(), path)
        assert (code, out) == (4, "")
        assert f"error: {path} ends early: its gzip is torn, and no line of SGLang's scheduler comes before\n" in err


def test_the_document(cli):
    code, out, err = cli("logs", SAMPLES / "illegal-access.log", SAMPLES / "healthy.log", "--json", "--points", "5")
    document = json.loads(out)
    assert (code, err, document["kind"], document["clean"]) == (1, "", "logs", False)
    assert [log["file"].rsplit("/")[-1] for log in document["logs"]] == ["illegal-access.log", "healthy.log"]
    crashed, healthy = document["logs"]
    assert crashed["injected_faults"] == ["swa-state-stale"]
    assert crashed["pool_tokens"] == {"full": 2560, "swa": 1024}
    assert crashed["deaths"][0]["type_name"] == "IllegalAddress"
    assert crashed["schedulers"][0]["retractions"]["events"] == 6
    assert healthy["understood_lines"] == sum(healthy["understood_by_kind"].values())
    assert all(len(column) <= 4 for column in healthy["schedulers"][0]["series"].values())
    first = document["findings"][0]
    assert (first["rule"], first["confidence"], first["fix"]) == ("illegal-access", "likely", "swa-state-swap")
    assert first["evidence"][0]["source"].endswith("illegal-access.log")


def test_stdin(cli, monkeypatch):
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO((SAMPLES / "trapped.log").read_bytes())))
    monkeypatch.setattr(sys, "stdin", stream)
    code, out, _ = cli("logs", "-")
    assert code == 1
    assert out.startswith("-\n")
    assert "what to do: the dump is on the server's machine: /srv/runs/e4b/fault-probes/dumps/" in out


def test_a_closed_stdin(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = cli("logs", "-")
    assert (code, "stdin is closed" in err) == (2, True)


def test_bytes_that_are_no_text(cli, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 20)
    code, out, err = cli("logs", path)
    assert (code, out, f"{path} is no text" in err) == (2, "", True)


@pytest.mark.parametrize("content", [b"", b"nothing\n" * 3], ids=["empty", "text"])
def test_nothing_understood(cli, tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    code, out, err = cli("logs", path)
    assert (code, out) == (5, "")
    assert "0 of" in err
    code, out, _ = cli("logs", path, "--json")
    assert json.loads(out)["exit_code"] == 5


def test_one_log_of_several_is_no_log(cli, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("no log\n")
    code, out, err = cli("logs", SAMPLES / "healthy.log", other)
    assert code == 0
    assert f"{other}: 0 of 1 line understood" in err
    assert "0 of 1 line understood" in out


def test_terminal_commands_in_a_log_are_shown_not_done(cli, tmp_path):
    path = tmp_path / "log"
    evil = "[2026-01-01 00:00:00] a-rule: \x1b]0;evil\x07 [logged; seen 1 times; dump: /x]\n"
    path.write_text("".join(steady(3)) + evil)
    _, out, _ = cli("logs", path)
    assert "\x1b" not in out
    assert "evil" not in out


@pytest.mark.parametrize(
    "words",
    [(), ("no-such-file",), (".",), ("-", "-"), ("x", "--points", "1")],
    ids=["none", "missing", "folder", "stdin twice", "points"],
)
def test_usage_mistakes(cli, words):
    code, out, _ = cli("logs", *words)
    assert code == 2
    assert words == () or out == ""


def test_what_to_do_is_shown(cli, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("Killed\n")
    code, out, _ = cli("logs", log)
    assert code == 1
    assert "what to do: dmesg -T" in out


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--diagnose"]], ids=["logs", "diagnose"])
def test_memory_does_not_grow_with_the_log(more):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--megabytes", "60", *more], capture_output=True, text=True, check=True, timeout=300
    )
    measured = json.loads(done.stdout)
    assert measured["lines"] == measured["understood_lines"] + measured["other_lines"]
    assert measured["megabytes"] >= 60
    assert measured["peak_rss_mib"] < 200
