"""`serve` refuses before it starts what SGLang says after half a minute of imports, or after the model is loaded."""

import argparse
import socket
from collections import Counter

import pytest
from test_cli_serve import document, run

from gemma4_triage.cli import check_start
from gemma4_triage.cli.sglang_options import sglang_options
from gemma4_triage.errors import EnvironmentCannot, UsageMistake

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def taken():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield str(one.getsockname()[1])


def test_a_port_in_use(taken):
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        done = run("--model-path", "m", "--host", host, f"--port={taken}")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: port {taken} of {host} is in use\n")
        assert len(done.stderr.splitlines()) == 2


def test_a_dry_run_says_what_would_be_refused_here_and_makes_nothing(taken, tmp_path):
    file = tmp_path / "file"
    file.touch()
    model = ("--model-path", "/no/such/model", "--port", taken)
    done = run("--dry-run", "--dir", str(tmp_path / "dumps"), *model)
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if "would refuse" in line]
    assert said == [
        "gemma4-triage: serve would refuse this here: --model-path /no/such/model is not there",
        f"gemma4-triage: serve would refuse this here: port {taken} of 127.0.0.1 is in use",
    ]
    assert sorted(tmp_path.iterdir()) == [file]
    with pytest.raises(EnvironmentCannot, match="cannot be written: Not a directory"):
        check_start.check_dump_folder(file / "dumps", make=False)


@pytest.mark.parametrize("option", ["-q", "-v"])
def test_a_short_option_behind_the_dashes_is_ours_too(option):
    done = run("--", "--model-path", "m", option)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        f"error: {option} is an option of serve and stands behind --",
    )


def test_nothing_is_bound_where_it_would_serve_elsewhere(taken, tmp_path):
    assert run("--dry-run", "--model-path", "m", "--port", taken).returncode == 0
    check_start.check_port(["--port", taken, "--node-rank", "1"])
    check_start.check_port(["--config", str(tmp_path / "x.yaml")])


@pytest.mark.parametrize("port", ["x", "0", "65536", "-1", ""])
def test_what_is_no_port(port):
    with pytest.raises(UsageMistake, match="is no port"):
        check_start.check_port([f"--port={port}"])


def test_a_path_that_leads_nowhere(tmp_path):
    for path, said in ((tmp_path / "none", "is not there"), (tmp_path, "holds no config.json")):
        done = run("--model-path", str(path))
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 2)
        assert said in done.stderr
    done = run("--config", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: --config {tmp_path}/none.yaml is no file")
    (tmp_path / "notes.txt").write_text("no model")
    done = run("--model-path", f"{tmp_path}/notes.txt")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: --model-path {tmp_path}/notes.txt is a file, and no GGUF"
    (tmp_path / "weights").write_bytes(b"GGUF\x03")
    check_start.check_model(["--model-path", f"{tmp_path}/weights"])
    for name in ("google/gemma-4-E4B-it", "m", "s3://a/b/c"):
        check_start.check_model(["--model-path", name])


@pytest.mark.parametrize(("name", "said"), [("notes.txt", "is a file, and no GGUF"), ("m", "holds no config.json")])
def test_what_lies_here_is_no_name_on_a_hub(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "m").mkdir()
    with pytest.raises(UsageMistake, match=f"^--model-path {name} {said}"):
        check_start.check_model(["--model-path", name])


def test_a_letter_that_many_options_begin_with_is_told_the_shortest():
    hint = run("--dry-run", "--model-path", "m", "-m", "x").stderr.splitlines()[1]
    assert hint.startswith("hint: near it: --model, ")
    assert hint.count("--") == 3


def test_a_path_below_home_is_that_path_wherever_it_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["--model-path=~/m", "--speculative-draft-model-path", "~/a", "--served-model-name", "~/name"]
    whole = [f"--model-path={tmp_path}/m", "--speculative-draft-model-path", f"{tmp_path}/a", *words[3:]]
    assert check_start.with_home(words) == whole
    started = document("--dir=~/d", *words, HOME=str(tmp_path))
    assert started["command"][-len(whole) :] == whole
    assert started["dump_folder"] == f"{tmp_path}/d"
    (tmp_path / "m").mkdir()
    done = run(words[0], HOME=str(tmp_path))
    assert done.stderr.splitlines()[0] == f"error: --model-path {tmp_path}/m holds no config.json"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--page-size", "big"], "--page-size 'big' is not a whole number"),
        (["--mem-fraction-static=most"], "--mem-fraction-static 'most' is not a number"),
        (["--page-size"], "--page-size has no value"),
        (["--chunked-prefill-size", "--trust-remote-code"], "--chunked-prefill-size has no value"),
    ],
)
def test_a_number_that_is_none(words, said):
    done = run("--model-path", "m", *words)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {said}")
    assert run("--dry-run", "--model-path", "m", "--chunked-prefill-size", "-1").returncode == 0


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["--attention-backend", "trtllm"], "--attention-backend 'trtllm' is no choice", "near it: trtllm_m"),
        (["--attention-backend=trtllm"], "--attention-backend 'trtllm' is no choice", "near it: trtllm_m"),
        (["--dtype", "float31"], "--dtype 'float31' is no choice", "float32"),
        (["--kv-cache-dtype", "x"], "--kv-cache-dtype 'x' is no choice", "takes auto, "),
        (["--attention-back", "x"], "--attention-back 'x' is no choice", "triton"),
        (["--attention-backend"], "--attention-backend has no value", "it takes triton, "),
        (["--log-level", "--port", "1"], "--log-level has no value", "it takes a value"),
        (["--trust-remote-code=yes"], "--trust-remote-code takes no value", "write --trust-remote-code alone"),
        (["--trust-remote-code", "yes"], "'yes' is no option, and no value of one", "--trust-remote-code, takes"),
        (["--tp", "2", "3"], "'3' is no option, and no value of one", "--tp, takes"),
        (["stray"], "'stray' is no option, and no value of one", "--model-path, takes"),
        (["--model-path"], "--model-path has no value", "it takes a value"),
        (["--disable-cuda-graph", "5"], "'5' is no option, and no value of one", "--disable-cuda-graph, takes"),
        (["--path", "x"], "--path is an option neither of serve nor of", "near it: --patches"),
        (["--overrides", "x"], "--overrides is an option neither of serve nor of", "hint: "),
        (["--pre", "speed"], "--pre is the beginning of several options", "write one of them: --preset, --pre"),
        (["-tp", "2"], "-tp is an option neither of serve nor of", "near it: --tp"),
        (["--port", "65536"], "--port '65536' is no port", "from 1 to 65535"),
        (["--reasoning-parser", "gema4"], "--reasoning-parser 'gema4' is no choice", "near it: gemma4"),
        (["--tool-call-parser=gemma"], "--tool-call-parser 'gemma' is no choice", "near it: gemma4"),
        (["--kv-canary-real-data", "some"], "--kv-canary-real-data 'some' is no choice", "takes none, partial, all"),
        (["--lora-target-modules", "q_proj", "qproj"], "--lora-target-modules 'qproj' is no choice", "near it: q_proj"),
        (["--sampling-backend", "torch"], "--sampling-backend 'torch' is no choice", "near it: pytorch"),
        (["--fp8-gemm-backend", "deepgemm"], "--fp8-gemm-backend 'deepgemm' is no choice", "near it: deep_gemm"),
        (["--gc-threshold", "1", "x"], "--gc-threshold 'x' is not a whole number", "takes a whole number"),
        (["--context-length", "128kb"], "--context-length '128kb' is not a whole number, as", "128k or 128Ki"),
        (["--context-length", "1.5Ki"], "--context-length '1.5Ki' is not a whole number, as", "128k or 128Ki"),
        (["--preferred-sampling-params", "{t: 1}"], "--preferred-sampling-params '{t: 1}' is not JSON", "takes JSON"),
    ],
)
def test_a_value_that_sglang_would_refuse(words, said, hint):
    done = run("--dry-run", "--model-path", "m", *words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 2)
    assert said in done.stderr.splitlines()[0]
    assert hint in done.stderr.splitlines()[1]


def test_values_that_look_odd_are_sglangs():
    words = ["--lora-paths", "a=b", "c", "--json-model-override-args", '{"a": -1}', "--served-model-name", "a b"]
    words += [
        "--model-type",
        "llm",
        "--gc-threshold",
        "1",
        "2",
        "--context-length",
        "128k",
        "--max-total-tokens",
        "4Mi",
    ]
    words += ["--preferred-sampling-params", '{"temperature": 0}', "--tool-call-parser", "gemma4"]
    assert document("--model-path", "m", *words)["command"][4:] == words


def test_no_model_at_all():
    done = run("--attention-backend", "triton")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: no model is named")
    assert run("--dry-run", "--config", "a.yaml").returncode == 0


def test_a_model_that_stands_alone_as_for_sglang_serve():
    assert document("org/m", "--tp", "2")["command"][2:] == ["--model-path", "org/m", "--tp", "2"]
    assert run("--dry-run", "org/m", "--model-path", "n").returncode == 2


def test_another_plugin_may_add_to_the_choices(monkeypatch):
    monkeypatch.setattr(check_start, "other_plugins", lambda: True)
    words = ["--model-path", "m", "--attention-backend", "mine"]
    check_start.check_arguments(words, (), sglang_options())


def test_a_dump_folder_that_cannot_be(tmp_path):
    done = run("--dir", "/proc/dumps", "--model-path", "m", "--port", "34567")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: dump folder: /proc/dumps cannot be written: ")


def _kind(action: argparse.Action) -> str:
    """Return what SGLang's parser reads for an option."""
    if action.nargs == 0:
        return "switch"
    reads = getattr(action.type, "__name__", "str")
    return {"int": "int", "float": "float", "loads": "json", "json_list_type": "json"}.get(
        reads, "count" if reads == "human_readable_int" else "text"
    )


def test_the_options_are_those_of_sglangs_own_parser():
    from sglang.srt.server_args import ServerArgs

    found = sglang_options()
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    actions = parser._option_string_actions
    # `sglang serve` itself reads --model-type.
    assert found.keys() == set(actions) - {"-h"} | {"--model-type"}
    choices = {name: set(map(str, one.choices)) for name, one in actions.items() if one.choices is not None}
    # A setting of SGLang's adds this one.
    known = {
        name: set(one.choices) - {"token_oracle"} for name, one in found.items() if one.choices and name in actions
    }
    assert known == choices
    sure = {name: found[name] for name in actions if name in found and found[name].kind}
    assert {name: one.kind for name, one in sure.items() if one.kind != _kind(actions[name])} == {}
    assert {name for name, one in sure.items() if one.many is not (actions[name].nargs in ("+", "*"))} == set()
    kinds = Counter(one.kind for one in sure.values())
    assert (kinds["int"] + kinds["float"], kinds["switch"], len(choices)) > (80, 100, 50)
    assert (kinds["count"], kinds["json"]) > (3, 5)
    assert len(actions) - len(sure) < 5
    assert sure.keys() >= {"--model-path", "--model", "--disable-cuda-graph"}
    assert not found.keys() & {"--debug", "--patches", "--probes", "--faults", "--preset", "--dump-dir", "--json"}


def test_a_word_before_every_option_where_the_model_is_named_too():
    done = run("--dry-run", "extra", "--model-path", "m")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: 'extra' is no option, and no value of one",
        "hint: name the model once, by --model-path MODEL or first and alone, and write all else as options",
    ]
