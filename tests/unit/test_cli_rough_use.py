"""Rough use of the command line: odd paths, devices, closed and full outputs, terminals of every kind."""

import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest
import typer

from gemma4_dumps.directory_name import short_id
from gemma4_triage.cli import app

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("gemma4-triage")
SAMPLES = "dumps/samples"
DUMP = next(path for path in sorted((ROOT / SAMPLES).iterdir()) if "p1291" in path.name)
LOG = ROOT / "tests" / "data" / "logs" / "swa-starved.log"
CONFIG = ROOT / "tests" / "data" / "configs" / "26b-a4b.json"
POOLS = ("pools", "--config", CONFIG, "--kv-mem", "100GiB", "--workload", "80x8000+1000")
LONG = "x" * 300


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return a line of bash in the repository; $G is the command."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GEMMA4_", "SGLANG_"))}
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=clean | {"G": str(COMMAND)} | environment,
        timeout=60,
        check=False,
    )


def on_terminal(columns: int, *words: object, **environment: str) -> str:
    """Return what the command prints on a terminal of that width."""
    main, side = pty.openpty()
    ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    # Would win over the terminal's own width.
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [COMMAND, *map(str, words)], stdout=side, stderr=subprocess.DEVNULL, cwd=ROOT, env=clean | environment
    )
    os.close(side)
    found = b""
    while True:
        try:
            found += os.read(main, 65536)
        except OSError:  # the other side is closed
            break
    process.wait(timeout=30)
    os.close(main)
    return found.decode()


class TestOutputs:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("line", [f"diagnose --dir {SAMPLES}", f"diagnose --dir {SAMPLES} --json", "--help"])
    def test_a_full_disk_is_the_environments(self, line):
        done = shell(f"$G {line} > /dev/full")
        assert (done.returncode, done.stderr) == (3, "error: the output cannot be written: No space left on device\n")

    @pytest.mark.slow
    def test_a_full_disk_under_an_error_document(self):
        done = shell("$G diagnose --json /no/such > /dev/full")
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
        assert "there is no /no/such" in done.stderr

    @pytest.mark.slow
    def test_stdout_that_the_shell_closed(self):
        done = shell(f"$G diagnose --dir {SAMPLES} >&-")
        assert (done.returncode, done.stderr) == (1, "")

    @pytest.mark.slow
    def test_what_is_for_a_closed_stderr_does_not_go_to_stdout(self, tmp_path):
        log = tmp_path / "notes.txt"
        log.write_text("no log\n")
        done = shell(f"$G diagnose {DUMP} --log {log} --json 2>&-")
        assert done.returncode == 1
        assert json.loads(done.stdout)["kind"] == "diagnosis"

    def test_a_reader_that_leaves(self):
        done = shell(f"$G diagnose --dir {SAMPLES} --json | head -1; echo ${{PIPESTATUS[0]}}")
        # A pipe may take the whole document before its reader has left.
        assert done.stdout in ("{\n141\n", "{\n1\n")
        assert done.stderr == ""

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("line", ["--help", "serve --help", "samples --json", "patches --json", "samples"])
    def test_a_reader_that_has_left_is_no_violation(self, line):
        done = shell(f"{{ sleep 0.5; $G {line}; echo $? >&2; }} | true")
        assert done.stderr == "141\n"

    @pytest.mark.parametrize(
        "words",
        [
            ("dumps", "show"),
            ("known", "show"),
            ("patches", "explain"),
            ("logs",),
            ("diff", "patches", "--with"),
            ("samples", "--color"),
        ],
    )
    def test_a_name_of_thousands_of_characters_is_not_said_in_full(self, cli, words):
        code, _, err = cli(*words, "x" * 5000)
        assert (code, len(err.splitlines())) == (2, 2)
        assert "x" * 90 in err
        assert "… (500" in err
        assert len(err) < 800
        assert "x" * 5000 in cli("-v", *words, "x" * 5000)[2]

    def test_a_device_is_not_replaced_by_a_file(self, cli, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        for words in ((*POOLS, "--out", pipe), ("dumps", "export", DUMP, "-o", pipe)):
            code, _, err = cli(*words, "--force")
            assert (code, f"error: {pipe} is no file" in err) == (2, True)
            assert pipe.is_fifo()

    def test_an_output_with_a_name_that_no_file_can_have(self, cli, tmp_path):
        assert cli(*POOLS, "--out", tmp_path / f"{LONG}.svg")[0] == 3
        assert cli("dumps", "export", DUMP, "-o", tmp_path / LONG)[0] == 3
        assert list(tmp_path.iterdir()) == []


@contextmanager
def as_nobody(folder):
    """Run as a user for whom the modes of files are no mere words, and who may enter the folder."""
    somebody = os.geteuid()
    if somebody == 0:
        for one in (folder, *folder.parents[:-2]):
            one.chmod(0o755)
        os.seteuid(65534)
    try:
        assert os.listdir(folder)
        yield
    finally:
        os.seteuid(somebody)


@pytest.fixture
def unreadable(tmp_path):
    """Yield a folder that this process may not enter, and the name of the dump in it."""
    dump = ROOT / DUMP
    shutil.copytree(dump, tmp_path / "closed" / dump.name)
    # What the commands import lies in folders of root's too.
    for words in (["diagnose"], ["report"], ["replay"], ["dumps", "show"], ["dumps", "verify"]):
        app.main([*words, str(tmp_path / "closed" / dump.name)])
    (tmp_path / "closed").chmod(0)
    with as_nobody(tmp_path):
        yield tmp_path / "closed", dump.name
    (tmp_path / "closed").chmod(0o700)


INSTEAD_OF_A_FOLDER = {
    "closed": (lambda path: path.mkdir(mode=0), "Permission denied"),
    "file": (lambda path: path.touch(), "Not a directory"),
    "pipe": (os.mkfifo, "Not a directory"),
    "link": (lambda path: path.symlink_to(path.parent), "it is a link, which is not followed"),
    "loop": (lambda path: path.symlink_to(path), "it is a link, which is not followed"),
}


class TestPaths:
    @pytest.mark.parametrize("name", [LONG, "x/" * 3000, "/dev/zero", "", "a\0b"])
    @pytest.mark.parametrize("words", [("logs",), ("diagnose", "--dir", SAMPLES, "--log")], ids=["logs", "diagnose"])
    def test_no_log(self, cli, words, name, monkeypatch):
        monkeypatch.chdir(ROOT)
        code, out, err = cli(*words, name)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("bench", "kernels", "--vllm-router"), 2),
            (("quality", "--colours", "--base-url", "http://127.0.0.1:9", "--questions"), 2),
            (("quality", "--colours", "--host-engine", "--", "--model-path"), 2),
            (("repro", "crash", "e4b_trtllm_v1", "--model"), 2),
        ],
    )
    def test_a_name_that_is_too_long_is_no_defect_of_ours(self, cli, words, code):
        got, out, err = cli(*words, "a" * 5000)
        assert (got, out, "bug" in err) == (code, "", False), err

    @pytest.mark.slow
    def test_a_pipe_is_a_log(self):
        assert shell(f"$G logs <(cat {LOG})").returncode == 1

    @pytest.mark.parametrize("name", [LONG, "/dev/zero", "", "/"])
    def test_no_config(self, cli, name):
        code, _, err = cli("pools", "--config", name, "--kv-mem", "1GiB")
        assert code == 2
        assert "bug" not in err

    @pytest.mark.parametrize(
        "words",
        [
            ("pools", "--kv-mem", "1GiB", "--config"),
            ("profile",),
            ("bench", "plot", "--output", "none.svg"),
            ("known", "check", LOG, "--server-info"),
        ],
        ids=lambda words: words[0],
    )
    def test_a_pipe_that_nobody_writes_to_is_not_waited_for(self, cli, tmp_path, words):
        os.mkfifo(tmp_path / "pipe")
        code, _, err = cli(*words, tmp_path / "pipe")
        assert (code, err.startswith(f"error: {tmp_path / 'pipe'} ")) == (2, True)

    @pytest.mark.parametrize("verb", [("doctor",), ("patches", "list"), ("diagnose",)], ids=" ".join)
    def test_a_pipe_among_guard_manifests_is_not_waited_for(self, cli, monkeypatch, tmp_path, verb):
        (tmp_path / "guards").mkdir()
        os.mkfifo(tmp_path / "guards" / "20260101T000000.json")
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
        assert cli(*verb)[0] == (4 if verb == ("diagnose",) else 0)

    @pytest.mark.parametrize("verb", [("diagnose",), ("report",), ("replay",), ("dumps", "show"), ("dumps", "verify")])
    @pytest.mark.parametrize("how", ["store", "dump"])
    def test_what_may_not_be_entered_is_unreadable(self, cli, unreadable, verb, how):
        store, dump = unreadable
        code, _, err = cli(*verb, store / dump if how == "dump" else store)
        assert (code, "Permission denied" in err) == (4, True)

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("folder", ["guards", "audits"])
    @pytest.mark.parametrize("how", INSTEAD_OF_A_FOLDER)
    @pytest.mark.parametrize("verb", ["diagnose", "report"])
    def test_what_is_no_folder_beside_dumps_is_said_and_nothing_is_certain(self, cli, tmp_path, verb, how, folder):
        store, (make, why) = tmp_path / "store", INSTEAD_OF_A_FOLDER[how]
        shutil.copytree(ROOT / DUMP, store / (ROOT / DUMP).name)
        code, out, _ = cli(verb, store)
        assert (code, "CERTAIN" in out) == (1, True)
        make(store / folder)
        with as_nobody(store):
            code, out, err = cli(verb, store)
        assert (code, "CERTAIN" in out, "LIKELY" in out) == (4, False, True)
        said = [line for line in (err if verb == "diagnose" else out).splitlines() if line.startswith("not read: ")]
        assert said == [f"not read: {store / folder}: {why}"]

    @pytest.mark.parametrize("verb", [("logs",), ("known", "check"), ("diagnose",)])
    def test_what_is_to_be_unpacked_comes_back_to_the_same_command(self, cli, tmp_path, verb):
        (tmp_path / "x.tar").write_bytes(b"\0" * 257 + b"ustar" + b"\0" * 1000)
        assert f"FILE | gemma4-triage {' '.join(verb)} -\n" in cli(*verb, tmp_path / "x.tar")[2]
        if verb == ("diagnose",):
            assert "hint: --log takes files" in cli("diagnose", "--log", tmp_path)[2]
        else:
            assert f"hint: {' '.join(verb)} takes files" in cli(*verb, tmp_path)[2]
        assert "hint: profile takes files" in cli("profile", tmp_path)[2]

    @pytest.mark.parametrize(
        "line",
        [
            *(
                "report X --markdown=",
                "report X --junit=",
                "report X -o=",
                "replay X --shrink --output=",
                "pools --config=",
            ),
            *(
                "dumps export X --output=",
                "known check X --server-info=",
                "repro e4b-trtllm --output=",
                "diagnose --log=",
            ),
            *("samples --output=", "bench plot X --out=", "quality --questions=", "serve --dump-dir= --model-path m"),
        ],
    )
    def test_an_empty_path_is_not_this_folder(self, cli, monkeypatch, tmp_path, line):
        """A variable of the shell that is not set leaves an option empty."""
        monkeypatch.chdir(tmp_path)
        words = [word for one in line.split() for word in ((one[:2], "") if one == "-o=" else (one,))]
        code, out, err = cli(*words)
        assert (code, out, [*tmp_path.iterdir()]) == (2, "", [])
        assert re.fullmatch(r"error: --[a-z-]+ is empty.*\nhint: name a path; \. is this folder\n", err)

    def test_a_list_that_names_nothing_runs_nothing(self, cli, tmp_path):
        assert cli("repro", "e4b-trtllm", "--arm", "")[::2] == (
            2,
            "error: --arm names nothing\nhint: leave it out, or name what it takes\n",
        )
        for words in (("--with", ""), ("--with", "none", "--base", " ")):
            code, _, err = cli("diff", "patches", *words, "-o", tmp_path / "run")
            assert (code, err.splitlines()[-1]) == (2, "hint: none stands for no patches")

    def test_samples_go_into_a_folder(self, cli, tmp_path):
        (tmp_path / "file").touch()
        code, _, err = cli("samples", "-o", tmp_path / "file")
        assert (code, err.splitlines()[0]) == (2, f"error: {tmp_path / 'file'} is not a directory")

    def test_a_hint_looks_where_the_line_did(self, cli, tmp_path):
        (tmp_path / "a b").mkdir()
        shutil.copytree(DUMP, tmp_path / "a b" / DUMP.name)
        (tmp_path / "a b" / DUMP.name / "tensors.safetensors").write_bytes(b"")
        for words in (("--dir", tmp_path / "a b"), (f"--dir={tmp_path / 'a b'}",)):
            hint = cli("replay", DUMP.name, *words)[2].splitlines()[-1]
            assert f"dumps verify DUMP --dir '{tmp_path}/a b' shows" in hint
            assert f"dumps list --dir '{tmp_path}/a b' which" in hint

    def test_a_dump_that_cannot_be_read_is_named_once(self, cli, tmp_path):
        for name in ("good", "bad"):
            shutil.copytree(DUMP, tmp_path / name)
        (tmp_path / "bad" / "manifest.json").write_text("5")
        _, _, err = cli("diagnose", tmp_path)
        assert err.splitlines()[0] == f"not read: {tmp_path / 'bad'}: manifest.json holds no JSON object"

    @pytest.mark.parametrize("verb", [("audit",), ("replay",), ("dumps", "show"), ("dumps", "verify")])
    def test_a_folder_that_is_no_dump_is_named(self, cli, tmp_path, verb):
        code, _, err = cli(*verb, tmp_path)
        assert code == 4
        assert f"error: {tmp_path}: there is no manifest.json in it" in err

    def test_a_log_that_is_given_as_a_dump(self, cli):
        code, _, err = cli("dumps", "show", LOG)
        assert code == 2
        assert "a dump is a directory or lies in a zip" in err

    def test_a_path_is_not_looked_for_in_the_store(self, cli, tmp_path):
        code, _, err = cli("diagnose", tmp_path / "none")
        assert (code, f"error: there is no {tmp_path}/none\n" in err) == (2, True)
        os.mkfifo(tmp_path / "pipe")
        code, _, err = cli("dumps", "show", tmp_path / "pipe")
        assert (code, f"{tmp_path}/pipe is no directory" in err) == (2, True)

    @pytest.mark.parametrize("verb", ["list", "prune"])
    def test_an_empty_dir_is_not_the_current_one(self, cli, monkeypatch, tmp_path, verb):
        monkeypatch.chdir(tmp_path)
        code, _, err = cli("dumps", verb, "--dir", "")
        assert (code, "--dir is empty" in err) == (2, True)

    def test_a_store_that_is_no_folder_names_the_setting(self, cli, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path / "file"))
        code, _, err = cli("dumps", "list")
        assert code == 4
        assert "hint: --dir or SGLANG_TRTLLM_MHA_DEBUG_DIR names" in err

    @pytest.mark.slow
    def test_a_current_folder_that_is_gone(self, tmp_path):
        done = shell(f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && $G logs x")
        assert (done.returncode, "x cannot be read" in done.stderr) == (2, True)


class TestTerminals:
    @pytest.mark.slow
    def test_without_unicode_a_sparkline_is_still_one(self):
        done = shell(f"$G logs {LOG}", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        (line,) = [line for line in done.stdout.splitlines() if "SWA usage" in line]
        assert line.startswith("  SWA usage    --.-@@@@@#")
        assert "\\u" not in done.stdout

    @pytest.mark.slow
    def test_a_narrow_one_loses_no_dump_and_no_column(self):
        shown = on_terminal(40, "dumps", "list", "--dir", SAMPLES)
        assert short_id(DUMP.name) in shown
        assert "out_of_range" in shown
        assert DUMP.name in on_terminal(160, "dumps", "list", "--dir", SAMPLES)

    @pytest.mark.slow
    def test_no_color(self):
        coloured = on_terminal(120, "diagnose", DUMP, TERM="xterm-256color")
        plain = on_terminal(120, "diagnose", DUMP, TERM="xterm-256color", NO_COLOR="1")
        assert "\x1b[1;31m" in coloured
        assert "\x1b[1;31m" not in plain
        assert "\x1b" not in on_terminal(120, "diagnose", DUMP, TERM="dumb")


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "x"),
        ("diagnose", "--limit", "-1"),
        ("diagnose", DUMP, "--log", "/none"),
        ("audit",),
        ("audit", DUMP),
        ("dumps", "list", "--dir", "/none"),
        ("dumps", "show", DUMP, "--rows", "0"),
        ("dumps", "verify", "x"),
        ("dumps", "export", DUMP),
        ("dumps", "prune", "--older-than", "x"),
        ("pools",),
        ("logs", "/dev/null"),
        ("bogus",),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_an_error_is_one_document_too_and_said_on_stderr(cli, words):
    code, out, err = cli(*words, "--json")
    document = json.loads(out)
    assert (document["kind"], document["exit_code"]) == ("error", code)
    assert f"error: {document['message']}\n" in err
    assert code not in (0, 70)


@pytest.mark.slow
def test_an_interrupted_command_leaves_one_document(tmp_path):
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    command = [COMMAND, "logs", pipe, "--json"]
    # The pipe opens as soon as the other side reads.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as logs, open(pipe, "w"):
        logs.send_signal(signal.SIGINT)
        out, err = logs.communicate(timeout=60)
    assert (logs.returncode, err) == (130, "error: interrupted\n")
    assert json.loads(out)["kind"] == "error"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, typer.Abort])
@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupt_before_the_command_began_says_so_too(cli, monkeypatch, interrupt, as_json):
    def importing(name):
        raise interrupt

    app.command_tree.cache_clear()
    monkeypatch.setattr(app.importlib, "import_module", importing)
    code, out, err = cli("doctor", *["--json"] * as_json)
    assert (code, err) == (130, "error: interrupted\n")
    assert (json.loads(out)["message"] if as_json else out) == ("interrupted" if as_json else "")


@pytest.mark.parametrize("value", ["x", "a'b", "trap, contain"])
def test_a_value_that_is_no_choice_is_said_plainly_with_the_choices(cli, value):
    code, _, err = cli("repro", "mutations", "--probes", value)
    assert (code, err) == (2, f"error: --probes {value!r} is no choice\nhint: choices: trap, contain\n")
