"""`serve`, as a user runs it: what a dry run prints, and every refusal with its exit code."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import run_command
from gemma4_repro.engine.host_environment import REQUIRED
from gemma4_repro.scenarios.e4b_engine import e4b_engine
from gemma4_runtime import releases
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.presets import PRESETS
from gemma4_triage.cli import server_start
from gemma4_triage.cli.app import main
from gemma4_triage.cli.server_arguments import CPU_ARGUMENTS, missing_cpu_arguments

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

SERVER = [sys.executable, "-m", "sglang.launch_server"]
PREFIXES = ("GEMMA4_", "SGLANG_")


def run(*words, **environment):
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(PREFIXES) and name not in REQUIRED
    }
    # The host engine would be refused on a machine with a GPU.
    clean |= {"CUDA_VISIBLE_DEVICES": ""}
    return run_command(("serve", *words), clean | environment)


def document(*words, **environment):
    done = run("--dry-run", "--json", *words, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestTheShellLine:
    # 0.5.15 and later have most of these fixes themselves.
    @pytest.mark.releases("0.5.13.post1")
    def test_default_fixes_and_nothing_else(self):
        done = run("--dry-run", "--", "--model-path", "m")
        assert done.returncode == 0, done.stderr
        program = str(Path(sys.executable).with_name("sglang"))
        assert shlex.split(done.stdout) == ["GEMMA4_TRIAGE_PATCHES=default", program, "serve", "--model-path", "m"]
        assert "fixes: swa-state-swap, eager-out-cache-loc" in done.stderr
        assert "probes: none, the mode is off" in done.stderr

    def test_a_shell_gets_every_word_as_it_was(self, tmp_path):
        odd = ["--model-path", "a b", "--chat-template", "$HOME `x` \"q\" 'p' \\ *", "--", "", "line\nbreak", "é"]
        folder = str(tmp_path / "dumps of $USER; 'x'")
        done = run("--dry-run", "--debug", "log", "--dump-dir", folder, "--", *odd)
        assert done.returncode == 0, done.stderr
        before, after = done.stdout.split(f"{Path(sys.executable).with_name('sglang')} serve", 1)
        tell = "import os, sys; print(ascii((os.environ['SGLANG_TRTLLM_MHA_DEBUG_DIR'], sys.argv[1:])))"
        line = f"{before}{shlex.join([sys.executable, '-c', tell])}{after}"
        said = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True).stdout
        assert said.strip() == ascii((folder, odd))

    def test_it_holds_what_was_inherited(self):
        done = run("--dry-run", "--", "x", GEMMA4_TRIAGE_FAULTS="swa-alloc-oob", GEMMA4_TRIAGE_LEAK="off")
        assert done.stdout.startswith("GEMMA4_TRIAGE_PATCHES=default GEMMA4_TRIAGE_FAULTS=swa-alloc-oob ")

    def test_nothing_at_all_is_said_so(self):
        done = run("--dry-run", "--patches", "none", "--", "x")
        assert "nothing is attached: SGLang runs as shipped" in done.stderr
        assert "guard manifests" not in done.stderr

    @pytest.mark.parametrize("option", ["--patches", "--probes", "--fault", "--debug", "--device-model"])
    @pytest.mark.parametrize("value", ["", " ", ","])
    def test_an_empty_value_is_refused(self, option, value):
        done = run("--dry-run", option, value, "--", "x")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"error: {option} is empty\n" in done.stderr


class TestPrecedence:
    def test_an_option_wins_and_says_so(self):
        done = run("--dry-run", "--debug", "trap", "--", "x", SGLANG_TRTLLM_MHA_DEBUG="log")
        assert "SGLANG_TRTLLM_MHA_DEBUG=trap " in done.stdout
        assert "SGLANG_TRTLLM_MHA_DEBUG=trap, not the inherited log: an option wins over a variable" in done.stderr

    def test_off_wins_too(self):
        found = document("--debug", "off", "--", "x", SGLANG_TRTLLM_MHA_DEBUG="trap")
        assert found["environment"]["SGLANG_TRTLLM_MHA_DEBUG"] == "off"
        assert found["overridden"] == {"SGLANG_TRTLLM_MHA_DEBUG": "trap"}
        assert not [patch for patch in found["patches"] if patch["kind"] == "probe"]

    # It names a fix that 0.5.15 and later have themselves.
    @pytest.mark.releases("0.5.13.post1")
    def test_a_variable_holds_where_no_option_is_given(self):
        found = document("--", "x", SGLANG_TRTLLM_MHA_DEBUG="log", GEMMA4_TRIAGE_PATCHES="eager-out-cache-loc")
        assert found["settings"]["mode"] == "log"
        assert found["overridden"] == {}
        assert [patch["id"] for patch in found["patches"] if patch["kind"] == "fix"] == ["eager-out-cache-loc"]

    @pytest.mark.parametrize(("options", "inherited"), [((), None), ((), ""), (("--patches", "default"), "none")])
    def test_the_default_fixes(self, options, inherited):
        environment = {} if inherited is None else {"GEMMA4_TRIAGE_PATCHES": inherited}
        assert document(*options, "--", "x", **environment)["environment"]["GEMMA4_TRIAGE_PATCHES"] == "default"

    @pytest.mark.parametrize(
        ("options", "variable", "value"),
        [
            (["--debug", "1"], "SGLANG_TRTLLM_MHA_DEBUG", "1"),
            (["--patches", "default,-swa-state-swap"], "GEMMA4_TRIAGE_PATCHES", "default,-swa-state-swap"),
            (["--debug", "1", "--probes", "page-table"], "GEMMA4_TRIAGE_PROBES", "page-table"),
            (["--faults", "swa-state-stale"], "GEMMA4_TRIAGE_FAULTS", "swa-state-stale"),
            (["--dump-dir", "some/where"], "SGLANG_TRTLLM_MHA_DEBUG_DIR", "some/where"),
            (["--host-engine"], "GEMMA4_TRIAGE_HOST_ENGINE", "1"),
            (["--host-engine", "--device-model", "sm90"], "GEMMA4_TRIAGE_DEVICE_MODEL", "sm90"),
            (["--debug", "1", "--allow-missing"], "GEMMA4_TRIAGE_ALLOW_MISSING", "1"),
        ],
    )
    def test_each_option_sets_its_variable(self, options, variable, value):
        assert document(*options, "--", "x")["environment"][variable] == value


class TestWhatIsEffective:
    def test_faults_come_first_and_loudly(self):
        done = run("--dry-run", "--faults", "swa-state-stale", "--debug", "1", "--probes", "page-table", "--", "x")
        first, second, *_ = done.stderr.splitlines()
        assert first.startswith("gemma4-triage: FAULT INJECTED: swa-state-stale: ")
        assert second == "gemma4-triage: probes: page-table (mode 1: trap, and contain in CUDA graphs)"

    def test_where_dumps_and_guard_manifests_go(self, tmp_path):
        done = run("--dry-run", "--dump-dir", str(tmp_path), "--", "x")
        assert f"dumps: {tmp_path}\n" in done.stderr
        assert f"guard manifests, one per process: {tmp_path}/guards\n" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_json_is_exactly_one_document(self):
        found = document("--debug", "1", "--", "--config", "x")
        assert (found["schema_version"], found["kind"]) == ("1.0", "serve")
        assert found["command"] == [*SERVER, "--config", "x"]
        assert shlex.split(found["shell_line"])[-5:] == found["command"]


class TestHostEngine:
    def test_it_sets_what_python_needs_before_it_starts(self):
        found = document("--host-engine", "--", "--model-path", "m")
        assert REQUIRED.items() <= found["environment"].items()
        assert found["command"][4:] == found["added_arguments"] == list(missing_cpu_arguments([]))

    def test_a_variable_asks_for_the_same(self):
        found = document("--", "x", GEMMA4_TRIAGE_HOST_ENGINE="1", TRITON_INTERPRET="0")
        assert found["environment"]["TRITON_INTERPRET"] == "1"
        assert found["overridden"] == {"TRITON_INTERPRET": "0"}
        assert found["added_arguments"]

    def test_what_it_does_not_need_is_left_to_the_user(self):
        done = run("--dry-run", "--host-engine", "--", "x", HF_HUB_OFFLINE="0")
        assert " HF_HUB_OFFLINE=0 " in done.stdout
        assert "HF_HUB_OFFLINE=0 was inherited and is kept" in done.stderr

    def test_force_is_kept(self):
        found = document("--host-engine", "--", "x", GEMMA4_TRIAGE_HOST_ENGINE="force")
        assert found["settings"]["host_engine"] == "force"

    def test_the_arguments_are_those_of_the_reproductions(self):
        named = {option.removeprefix("--").replace("-", "_"): value for option, value in CPU_ARGUMENTS.items()}
        assert {name: True if value is None else value for name, value in named.items()}.items() <= (
            e4b_engine("trtllm_mha").items()
        )

    @pytest.mark.parametrize(
        "given",
        [["--dtype", "bfloat16"], ["--dtype=bfloat16"], ["--dty", "bfloat16"]],
        ids=["word", "equals", "abbreviation"],
    )
    def test_what_was_given_is_not_added(self, given):
        done = run("--dry-run", "--host-engine", "--", "--model-path", "m", *given)
        assert "float32" not in done.stdout
        assert "arguments added for the CPU: --device cpu --disable-cuda-graph " in done.stderr

    def test_a_longer_option_is_another_option(self):
        assert "--disable-cuda-graph" in missing_cpu_arguments(["--disable-cuda-graph-padding"])

    def test_what_stands_in_a_configuration_file_is_not_added(self, tmp_path):
        path = tmp_path / "server.yaml"
        path.write_text("dtype: bfloat16\nsampling_backend: pytorch\n")
        added = missing_cpu_arguments(["--config", str(path)])
        assert not {"--dtype", "--sampling-backend"} & set(added)
        assert "--device" in added

    @pytest.mark.parametrize("content", [None, ": [", "- a list", "\x00"])
    def test_a_configuration_file_that_cannot_be_read_is_sglangs_to_report(self, tmp_path, content):
        path = tmp_path / "server.yaml"
        if content is not None:
            path.write_text(content)
        assert missing_cpu_arguments(["--config", str(path)]) == missing_cpu_arguments([])

    def test_nothing_is_added_without_it(self):
        assert document("--", "x")["added_arguments"] == []


class TestUsage:
    @pytest.mark.parametrize("words", [[], ["--"], ["--debug", "1"], ["--debug", "1", "--"]])
    def test_no_arguments_for_sglang(self, words):
        done = run(*words)
        assert done.returncode == 2
        assert "error: no arguments for SGLang" in done.stderr
        assert "serve --debug 1 -- --model-path MODEL" in done.stderr

    def test_sglangs_arguments_need_no_dashes(self):
        words = ["--model-path", "m", "--debug", "1", "--port=3", "--trust-remote-code", "--", "--tp", "2"]
        found = document(*words)
        assert found["command"][2:] == ["--model-path", "m", "--port=3", "--trust-remote-code", "--tp", "2"]
        assert found["environment"]["SGLANG_TRTLLM_MHA_DEBUG"] == "1"

    @pytest.mark.parametrize(
        ("words", "said", "hint"),
        [
            (["--", "--model-path", "m", "--debug", "1"], "--debug is an option of serve", "put --debug before the --"),
            (["--debgu", "1", "--model-path", "m"], "--debgu is an option neither of serve nor", "near it: --debug"),
            (["--model-pth", "m"], "--model-pth is an option neither of serve nor", "near it: --model-path"),
            (["--preset", "sped", "--model-path", "m"], "no preset called 'sped'", "near it: speed"),
        ],
    )
    def test_an_option_that_is_misplaced_or_misspelt(self, words, said, hint):
        done = run("--dry-run", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert hint in done.stderr
        assert len(done.stderr.splitlines()) == 2

    def test_json_without_a_dry_run(self):
        done = run("--json", "--", "x")
        assert done.returncode == 2
        assert json.loads(done.stdout)["exit_code"] == 2

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (
                ["--debug", "banana"],
                "error: --debug 'banana' cannot be read: allowed: 0, off, log, contain, trap, 1",
            ),
            (
                ["--patches", "yoko"],
                "error: --patches 'yoko' names yoko, which this version does not have; near it: yoco",
            ),
            (["--patches", "nonsense"], "gemma4-triage patches list shows all"),
            (["--patches", "default,-swa-window-width"], "nothing before it chooses"),
            (["--faults", "page-table"], "error: --faults 'page-table' names page-table"),
            (["--faults", "swa-alloc-oob,swa-alloc-oob"], "named twice"),
            (["--probes", "page-table"], "error: --probes 'page-table' chooses probes but --debug is off"),
            (["--debug", "1", "--probes", "nope"], "there are page-table, "),
            (["--host-engine", "--device-model", "sm80"], "sm100, sm90"),
            (["--device-model", "sm90"], "add --host-engine"),
        ],
    )
    def test_a_setting_that_cannot_be(self, words, said):
        done = run(*words, "--", "x")
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""

    def test_a_variable_that_cannot_be_read(self):
        done = run("--", "x", GEMMA4_TRIAGE_ALLOW_MISSING="maybe")
        assert done.returncode == 2
        assert "GEMMA4_TRIAGE_ALLOW_MISSING='maybe' cannot be read: allowed: 0, 1" in done.stderr


class TestEnvironmentCannot:
    def test_a_plugin_filter_that_shuts_us_out(self):
        done = run("--", "x", SGLANG_PLUGINS="other")
        assert done.returncode == 3
        assert "SGLANG_PLUGINS='other'" in done.stderr

    def test_the_filter_is_no_matter_where_nothing_is_attached(self):
        assert run("--dry-run", "--patches", "none", "--", "x", SGLANG_PLUGINS="other").returncode == 0

    def test_a_dump_folder_that_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        done = run("--dump-dir", str(tmp_path / "file"), "--", "x")
        assert done.returncode == 3
        assert "is not a directory" in done.stderr


@pytest.fixture
def release(monkeypatch):
    """Give a function that pretends that an SGLang of that release is installed, or for None that none is."""

    def pretend(found):
        def version(name):
            if found is None:
                raise server_start.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(server_start, "version", version)

    return pretend


class TestRelease:
    def test_no_sglang(self, release, capsys):
        release(None)
        assert main(["serve", "--patches", "none", "--", "x"]) == 3
        assert "SGLang is not installed" in capsys.readouterr().err

    def test_another_sglang(self, release, capsys):
        release("0.4.0")
        assert main(["serve", "--dry-run", "--json", "--", "x"]) == 3
        said = capsys.readouterr()
        assert "patch swa-state-swap supports SGLang 0.5.13.post1, 0.5.23, and 0.4.0 is installed" in said.err
        assert json.loads(said.out)["exit_code"] == 3

    def test_another_sglang_is_no_matter_where_nothing_is_attached(self, release):
        release("0.4.0")
        assert main(["serve", "--dry-run", "--patches", "none", "--", "x"]) == 0

    def test_probes_may_be_missing_if_allowed(self, release, capsys):
        release("0.4.0")
        words = ["--dry-run", "--patches", "none", "--debug", "1", "--", "x"]
        assert main(["serve", *words]) == 3
        capsys.readouterr()
        assert main(["serve", "--allow-missing", *words]) == 0
        said = capsys.readouterr().err
        assert "PROBE NOT ATTACHED: page-table: patch page-table supports SGLang 0.5.13.post1" in said
        assert "probes: none (mode 1: trap, and contain in CUDA graphs)" in said

    def test_beside_one_that_is_not_known_it_is_said_how_probes_alone_may_attach(self, release, monkeypatch, capsys):
        release("0.5.22")
        monkeypatch.setattr(releases, "version", lambda name: "0.5.22")
        allowed = ["serve", "--dry-run", "--debug", "1", "--allow-untested"]
        assert main([*allowed, "--", "x"]) == 3
        said = capsys.readouterr().err
        assert "SGLang 0.5.22 is not known; the nearest that is known is 0.5.23" in said
        assert "hint: beside SGLang 0.5.22 probes alone may attach, as on 0.5.23: give serve --allow-untested" in said
        assert main([*allowed, "--patches", "none", "--", "x"]) == 0
        assert re.search("UNTESTED on SGLang 0.5.22: .*page-table.* attach as on 0.5.23", capsys.readouterr().err)

    def test_fixes_may_not(self, release):
        release("0.4.0")
        assert main(["serve", "--dry-run", "--allow-missing", "--", "x"]) == 3


class TestCuda:
    def test_the_host_engine_is_refused_beside_it(self, monkeypatch, capsys):
        monkeypatch.setattr(server_start, "cuda_is_present", lambda: True)
        assert main(["serve", "--dry-run", "--host-engine", "--", "x"]) == 3
        assert "this machine has CUDA" in capsys.readouterr().err

    def test_unless_forced(self, monkeypatch):
        monkeypatch.setattr(server_start, "cuda_is_present", lambda: True)
        monkeypatch.setenv("GEMMA4_TRIAGE_HOST_ENGINE", "force")
        assert main(["serve", "--dry-run", "--host-engine", "--", "x"]) == 0

    def test_the_environment_of_this_process_stays_as_it_was(self):
        before = dict(os.environ)
        assert main(["serve", "--dry-run", "--debug", "1", "--", "x"]) == 0
        assert dict(os.environ) == before


class TestBecomingTheServer:
    @pytest.fixture
    def executed(self, monkeypatch):
        calls = []
        monkeypatch.setattr(os, "execvpe", lambda *words: calls.append(words))
        return calls

    def test_it_replaces_itself(self, executed, tmp_path):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            free = str(one.getsockname()[1])
        (tmp_path / "x.yaml").write_text("model-path: m\n")
        asked = ["--config", str(tmp_path / "x.yaml"), "--port", free]
        assert main(["serve", "--debug", "1", "--dir", str(tmp_path), "--", *asked]) == 0
        ((file, words, environment),) = executed
        assert (file, *words) == (sys.executable, *SERVER, *asked)
        assert environment["SGLANG_TRTLLM_MHA_DEBUG"] == "1"
        assert environment["PATH"] == os.environ["PATH"]

    def test_a_dry_run_does_not(self, executed):
        main(["serve", "--dry-run", "--", "x"])
        assert executed == []

    def test_a_refusal_does_not(self, executed):
        main(["serve", "--debug", "banana", "--", "x"])
        assert executed == []

    def test_an_interpreter_that_is_gone(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        assert main(["serve", "--", "x"]) == 3
        assert "/no/such/python cannot be started" in capsys.readouterr().err


class TestPresets:
    @pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.id)
    def test_one_sets_its_variables_and_is_explained(self, preset, cli):
        found = document("--preset", preset.id, "--model-path", "m")
        assert dict(preset.variables).items() <= found["environment"].items()
        code, out, _ = cli("patches", "explain", preset.id, "--json")
        assert code == 0
        assert json.loads(out)["preset"]["patches"] == found["patches"]
        assert f"gemma4-triage serve --preset {preset.id} --model-path MODEL" in cli("patches", "explain", preset.id)[1]

    def test_what_it_leaves_off_and_an_option_needs_is_said_in_options(self):
        done = run("--preset", "speed", "--probes", "page-table", "--dry-run", "--model-path", "m")
        assert done.returncode == 2
        assert done.stderr.splitlines()[0] == (
            "error: --probes 'page-table' chooses probes but --debug is off; "
            "set --debug to log, contain, trap or 1, or leave --probes out"
        )

    def test_an_option_wins_over_it_and_it_over_a_variable(self):
        words = ["--preset", "production", "--patches", "none", "--model-path", "m"]
        found = document(*words, SGLANG_TRTLLM_MHA_DEBUG="trap")
        assert found["environment"]["SGLANG_TRTLLM_MHA_DEBUG"] == "contain"
        assert found["environment"]["GEMMA4_TRIAGE_PATCHES"] == "none"
        assert found["overridden"] == {"SGLANG_TRTLLM_MHA_DEBUG": "trap"}

    def test_none_has_the_name_of_a_patch(self):
        assert not {preset.id for preset in PRESETS} & {patch.id for patch in CATALOG}
