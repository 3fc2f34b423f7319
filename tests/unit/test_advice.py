"""Advice can be pasted: each `next` line is complete, one plan for an incident, and every line that is shown runs."""

import json
import re
import shlex
import shutil
from importlib.metadata import version
from typing import ClassVar

import pytest

import make_sglang_arguments
from command_line import parse_command
from diagnose_examples import CORPUS, ROOT
from gemma4_runtime.releases import BASE, installed_or_base
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.next_steps import REASONS
from gemma4_triage.logs import start_line
from gemma4_triage.logs.catalog import ENDINGS, FALLBACKS, LOADS
from gemma4_triage.readers.catalog import TITLES
from made_logs import MADE, started
from report_examples import SEED_BUG

GOLDEN = ROOT / "tests" / "contract" / "golden"
LOGS = ROOT / "tests" / "data" / "logs"
CRASH = ROOT / "tests" / "data" / "evidence" / "crash"
_LINE = re.compile(r"^(?:   next {10}| {17}|   Run: |.*; next: )(gemma4-triage [^#\n]+)", re.MULTILINE)
SHOWN = sorted(
    {
        line.strip()
        for path in [*GOLDEN.glob("diagnose_*.txt"), *GOLDEN.glob("view_diagnose*.txt"), *GOLDEN.glob("show_*.txt")]
        for line in _LINE.findall(path.read_text())
    }
)
# What runs for minutes is parsed here, and run by tests/engine.
_LONG = ("repro", "audit --live")


def plans(cli, *words) -> list[list[str]]:
    found = json.loads(cli("diagnose", *words, "--json")[1])
    return [[step["command"] for step in incident["plan"]] for incident in found["incidents"]]


def run_line(cli, line: str, tmp_path) -> None:
    """Run a line as it is shown; a server is not started, and one that is asked need not be there."""
    parse_command(line)
    words = shlex.split(line)[1:]
    if " ".join(words).startswith(_LONG):
        scenarios = {one["id"] for one in json.loads(cli("repro", "--json")[1])["scenarios"]} | {"corpus"}
        assert words[0] == "audit" or words[1] in scenarios
        return
    known = {
        "CONFIG": "tests/data/configs/e4b.json",
        "SERVER_LOG": "tests/data/logs/illegal-access.log",
        "URL": "http://127.0.0.1:9",
    }
    words = [known.get(word, word) for word in words]
    if words[0] == "serve":
        words.insert(1, "--dry-run")
    expected = {0, 1}
    if words[0] == "collect":
        words += ["-o", str(tmp_path / "bundle.zip"), "--force", "--timeout", "0.2"]
        expected = {0, 5} if "--log" not in words else {0}
    code, _, err = cli(*words)
    if installed_or_base() != BASE and "has itself" in err:
        # The advice for a server of 0.5.13.post1 names a patch that later releases have themselves.
        assert (code, words[0]) == (2, "serve")
        return
    assert code in expected, err
    # The machine that shows it need have no SGLang to serve; nothing else may be missing.
    assert "error" not in err or code == 5


@pytest.mark.parametrize(
    "line",
    # 0.5.14 and later have mtp-v2 themselves.
    [pytest.param(line, marks=pytest.mark.releases("0.5.13.post1") if "mtp-v2" in line else ()) for line in SHOWN],
)
def test_every_line_that_is_shown_runs(cli, line, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    run_line(cli, line, tmp_path)


STARTED = started(model_path="org/m", port=31000, tp_size=2, speculative_algorithm="EAGLE")


def test_every_rule_over_logs_has_a_line_that_runs_or_says_why_not(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    lines, silent = set(), set()
    for rule, log in MADE.items():
        path = tmp_path / f"{rule}.log"
        # A command of vLLM's is a server of its own.
        path.write_text("".join(log if log[0].startswith("$ vllm") else [STARTED, *log]))
        (incident,) = json.loads(cli("diagnose", path, "--json")[1])["incidents"]
        # As `logs` judges it.
        found = [finding["rule"] for finding in incident["findings"]]
        told = [finding["rule"] for finding in json.loads(cli("logs", path, "--json")[1])["findings"]]
        assert (rule in found, set(told) - set(found)) == (True, set())
        steps = [step["command"] for step in incident["plan"]]
        lines |= set(steps)
        if not steps:
            silent.add(rule)
            assert f"   next          nothing to run: {REASONS[rule]}" in cli("diagnose", path)[1]
    assert {rule for rule in REASONS if rule in MADE} >= silent
    assert (
        "gemma4-triage serve --debug 1 -- --model-path org/m --port 31000 --tp-size 2 --speculative-algorithm EAGLE"
        in lines
    )
    assert f"gemma4-triage collect http://127.0.0.1:31000 --log {tmp_path / 'hang.log'}" in lines
    for line in sorted(lines):
        run_line(cli, line, tmp_path)


DATA = ROOT / "tests" / "data"
COMMITTED = [
    *(folder for kind in ("recorded_runs", "finished_runs", "evidence") for folder in (DATA / kind).iterdir()),
    *(DATA / kind for kind in ("contained_dumps", "corpus_dumps", "mutation_dumps")),
    *LOGS.glob("*.log"),
    ROOT / "dumps" / "samples",
]


@pytest.mark.slow
def test_every_line_for_evidence_that_is_committed_runs_beside_it(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    lines = set()
    for path in sorted(path.relative_to(ROOT) for path in COMMITTED if path.name != "README.md"):
        _, out, _ = cli("diagnose", path, "--json")
        for incident in json.loads(out).get("incidents", ()):
            lines |= {line for finding in incident["findings"] for line in finding["next_commands"]}
    assert {line.split()[1] for line in lines} >= {"audit", "collect", "diagnose", "dumps", "pools", "repro", "serve"}
    # To plan a start takes half a second, and it is the same whatever follows the dashes.
    started = {line.partition(" -- ")[0] for line in SHOWN}
    for line in sorted(lines):
        start = line.partition(" -- ")[0]
        if line.startswith("gemma4-triage serve ") and start in started:
            parse_command(line)
        else:
            run_line(cli, line, tmp_path)
            started.add(start)


class TestTheDumpThatALogNames:
    """A server says where it wrote a dump; whoever reads its log may have that dump in another place, or not at all."""

    NAME = SEED_BUG.name
    RELATIVE = f"runs/dumps/{NAME}"

    def folder(self, tmp_path, said: str, with_dump: bool = True):
        to = tmp_path / "sent"
        to.mkdir()
        if with_dump:
            shutil.copytree(SEED_BUG, to / "a renamed dump")
        line = f"[2026-11-21 10:34:30] page-table-bounds: page 1 [logged; seen 1 times; dump: {said}]\n"
        (to / "server.log").write_text(line)
        return to

    @pytest.mark.parametrize("said", [RELATIVE, f"/srv/{RELATIVE}"])
    def test_is_shown_where_it_lies(self, cli, monkeypatch, tmp_path, said):
        folder = self.folder(tmp_path, said)
        monkeypatch.chdir(folder)
        (incident,) = json.loads(cli("diagnose", ".", "--json")[1])["incidents"]
        assert [log["relation"] for log in incident["logs"]] == ["names"]
        looks = [step["command"] for step in incident["plan"] if " dumps show " in step["command"]]
        for line in looks:
            assert shlex.split(line)[-1] == "a renamed dump"
            run_line(cli, line, tmp_path)

    def test_is_asked_for_where_it_is_not(self, cli, tmp_path):
        folder = self.folder(tmp_path, self.RELATIVE, with_dump=False)
        (finding,) = json.loads(cli("logs", folder / "server.log", "--json")[1])["findings"]
        assert finding["next_commands"] == []
        assert finding["advice"] == [
            f"the dump is on the server's machine: {self.RELATIVE}; name a copy of it beside the log"
        ]
        assert "next          nothing to run: the dump with the evidence is not here" in cli("diagnose", folder)[1]

    def test_that_was_not_written_has_its_reason(self, cli, tmp_path):
        folder = self.folder(tmp_path, "No space left on device", with_dump=False)
        (finding,) = json.loads(cli("logs", folder / "server.log", "--json")[1])["findings"]
        assert finding["next_commands"] == []
        assert "No space left on device" in [piece["value"] for piece in finding["evidence"]]

    def test_lies_in_a_folder_that_begins_with_a_dash(self, cli, monkeypatch, tmp_path):
        shutil.copytree(SEED_BUG, tmp_path / "-sent" / SEED_BUG.name)
        monkeypatch.chdir(tmp_path)
        shown = cli("dumps", "show", f"./-sent/{SEED_BUG.name}")[1]
        lines = re.findall(r"(gemma4-triage (?:diagnose|dumps verify) .*)", shown)
        assert len(lines) == 2
        for line in lines:
            run_line(cli, line, tmp_path)


def test_reasons_are_of_rules_that_there_are():
    assert set(REASONS) <= set(TITLES) | {rule.id for rule in (*ENDINGS, *FALLBACKS, *LOADS, *RULES)} | set(MADE)


def test_there_are_lines_of_every_kind():
    verbs = {line.split()[1] for line in SHOWN}
    assert {"serve", "repro", "pools", "audit", "collect"} <= verbs


def test_a_server_that_does_not_answer_is_asked_again_and_one_that_is_gone_is_started_again(cli, tmp_path):
    hanging = ROOT / "tests" / "data" / "evidence" / "hanging"
    assert plans(cli, hanging) == [["gemma4-triage collect http://127.0.0.1:21000"]]
    fields = json.loads((hanging / "collect.json").read_text()) | {"processes": [], "was_running": False, "http": []}
    (tmp_path / "collect.json").write_text(json.dumps(fields))
    ((line,),) = plans(cli, tmp_path)
    assert line.startswith("gemma4-triage serve --debug 1 -- --model-path repro/toys/toy-e4b --device cpu ")
    assert line.endswith('--api-key "$API_KEY" --enable-metrics')


class TestWhatALineCannotKnow:
    LOADED = (
        "[2026-01-01 00:00:01 TP0] Load weight begin. avail mem=40.00 GB\n"
        "[2026-01-01 00:00:02 TP0] Load weight end. type=A, avail mem=25.00 GB, mem usage=15.00 GB.\n"
    )
    START = "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.4)\n"
    NO_ROOM = (
        "[2026-01-01 00:00:03 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/srv/sglang/srt/model_executor/model_runner.py", line 9, in init\n    call()\n'
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )

    def finding(self, cli, tmp_path, text) -> dict:
        path = tmp_path / "server.log"
        path.write_text(text)
        return json.loads(cli("logs", path, "--json")[1])["findings"][0]

    def test_is_asked_for_in_so_many_words(self, cli, tmp_path):
        finding = self.finding(cli, tmp_path, self.START + self.NO_ROOM)
        asked = finding["advice"][-1]
        assert asked.startswith("the line of pools needs your own: CONFIG ")
        assert all(guess in asked for guess in ("--gpu-mem 80GiB", "--weights 20GiB", "--workload 64x8000+1000"))

    def test_memory_and_weights_are_those_of_the_log(self, cli, tmp_path):
        finding = self.finding(cli, tmp_path, self.START + self.LOADED + self.NO_ROOM)
        (line,) = finding["next_commands"]
        assert "--gpu-mem 40.0GiB --weights 15.0GiB" in line
        assert "--mem-fraction 0.4" in line
        assert "--gpu-mem" not in finding["advice"][-1]


class TestLaunch:
    def test_the_arguments_of_a_manifest_start_the_server_again(self, cli):
        (steps,) = plans(cli, CRASH / "guards")
        (serve,) = [step for step in steps if " serve " in step]
        assert "--host-engine" in serve
        assert "-- --model-path repro/toys/toy-e4b " in serve
        assert "--speculative-num-draft-tokens 4" in serve

    def test_of_a_log_alone_what_it_says(self, cli, tmp_path):
        text = (LOGS / "illegal-access.log").read_text().replace("ServerArgs(", "ServerArgs(model_path='org/m', ", 1)
        (tmp_path / "a.log").write_text(text)
        (steps,) = plans(cli, tmp_path / "a.log")
        (serve,) = [step for step in steps if " serve " in step]
        assert "-- --model-path org/m " in serve
        assert "--attention-backend trtllm_mha" in serve
        assert "--page-size 16" in serve
        assert "--speculative-algorithm NEXTN" in serve

    def test_the_model_that_nobody_knows_stays_a_name(self, cli):
        (steps,) = plans(cli, LOGS / "illegal-access.log")
        (serve,) = [step for step in steps if " serve " in step]
        assert "-- --model-path MODEL --mem-fraction-static " in serve

    def test_a_redacted_key_is_a_variable_to_set(self, cli, tmp_path):
        shutil.copytree(CRASH / "guards", tmp_path / "guards")
        for path in (tmp_path / "guards").iterdir():
            fields = json.loads(path.read_text())
            fields["command"] += ["--api-key", "[redacted]"]
            path.write_text(json.dumps(fields))
        (steps,) = plans(cli, tmp_path)
        assert any(step.endswith('--api-key "$API_KEY"') for step in steps)


class TestEveryArgumentOfTheLog:
    """A log says all arguments, in the notation of its release; the line that starts the server again has them too."""

    GIVEN = (
        ("enable_dp_attention", "False", "True", ["--enable-dp-attention"]),
        ("ep_size", "1", "4", ["--ep-size", "4"]),
        ("nnodes", "1", "2", ["--nnodes", "2"]),
        ("enable_hierarchical_cache", "False", "True", ["--enable-hierarchical-cache"]),
        ("hicache_ratio", "2.0", "3.5", ["--hicache-ratio", "3.5"]),
        ("revision", "None", "'v2'", ["--revision", "v2"]),
        ("disaggregation_mode", "'null'", "'prefill'", ["--disaggregation-mode", "prefill"]),
        ("chat_template", "None", "'a b.jinja'", ["--chat-template", "a b.jinja"]),
        ("lora_target_modules", "None", "['q_proj', 'k_proj']", ["--lora-target-modules", "q_proj", "k_proj"]),
        ("lora_strict_loading", "False", "True", ["--lora-strict-loading"]),
        ("api_key", "None", "'a-secret-key'", ["--api-key", "$API_KEY"]),
    )
    ADAPTERS: ClassVar = {
        "crash": "[LoRARef(lora_id='1', lora_name='tax', lora_path='/l/tax', pinned=False)]",
        "crash-0.5.23": "[{'lora_id': '1', 'lora_name': 'tax', 'lora_path': '/l/tax', 'pinned': False}]",
    }

    @pytest.fixture(params=sorted(ADAPTERS))
    def log(self, request, tmp_path):
        text = (CRASH.with_name(request.param) / "server.log").read_text()
        given = [(name, default, value) for name, default, value, _ in self.GIVEN]
        for name, default, value in [*given, ("lora_paths", "None", self.ADAPTERS[request.param])]:
            for form in (f" {name}={{}}, ", f" '{name}': {{}}, "):
                text = text.replace(form.format(default), form.format(value), 1)
        path = tmp_path / "server.log"
        path.write_text(
            text + (LOGS / "illegal-access.log").read_text().partition("server_args=")[2].partition("\n")[2]
        )
        return path

    def test_each_that_is_not_at_its_default_is_on_the_line(self, cli, log):
        (steps,) = plans(cli, log)
        (serve,) = [step for step in steps if " serve " in step]
        words = shlex.split(serve.partition(" -- ")[2])
        assert words[0] == "--model-path"
        for _, _, _, said in self.GIVEN:
            at = words.index(said[0])
            assert words[at : at + len(said)] == said
        at = words.index("--lora-paths")
        assert words[at + 1] == "tax=/l/tax"
        assert "--port" in words
        assert "--tokenizer-path" not in words, "it is the model's"
        assert len(words) < 110, serve

    def test_what_sglang_makes_of_its_defaults_is_not_said_nor_a_switch_that_is_off_missed(self, cli, log):
        text = re.sub(r"(grammar_backend'?[=:] ?)'none'", r"\1'xgrammar'", log.read_text())
        log.write_text(re.sub(r"(enable_multimodal'?[=:] ?)None", r"\1False", text))
        assert "xgrammar" in log.read_text()
        assert re.search("enable_multimodal'?[=:] ?False", log.read_text())
        (steps,) = plans(cli, log)
        (serve,) = [step for step in steps if " serve " in step]
        for name in ("--grammar-backend", "--load-balance-method", "--expert-distribution-recorder-buffer-size"):
            assert name not in serve
        assert "enable_multimodal" not in cli("diagnose", log)[1]

    def test_no_secret_is_said_anywhere(self, cli, log):
        for form in ((), ("--json",)):
            assert "a-secret-key" not in cli("diagnose", log, *form)[1]

    def test_what_no_word_can_say_is_named(self, cli, log):
        text = log.read_text()
        for said in ("mm_process_config={}", "'mm_process_config': {}"):
            text = text.replace(said, said.replace("{}", "{'image': {'max_pixels': 5}}"))
        log.write_text(text)
        found = json.loads(cli("diagnose", log, "--json")[1])
        advice = [line for one in found["incidents"][0]["findings"] for line in one["advice"]]
        assert any("leaves out what the log says of" in line and "mm_process_config" in line for line in advice)

    def test_hostile_arguments_end_quietly(self):
        for line in (
            b"server_args=ServerArgs(a='",
            b"server_args={'a': [[[[",
            b"server_args=ServerArgs(" + b"(" * 99999,
        ):
            assert start_line.arguments(line) == {}
        many = b"server_args=ServerArgs(" + b"".join(b"a%d=1, " % number for number in range(5000)) + b")"
        assert len(start_line.arguments(many)) == start_line.MAX_ARGUMENTS

    def test_the_table_is_that_of_the_installed_release(self):
        pytest.importorskip("sglang")
        known = json.loads(make_sglang_arguments.DATA.read_text())
        assert known[version("sglang")] == make_sglang_arguments.arguments()


class TestPools:
    def test_sizes_of_the_log_and_of_the_models_config(self, cli, tmp_path):
        model = tmp_path / "model"
        model.mkdir()
        shutil.copy(ROOT / "tests" / "data" / "configs" / "e4b.json", model / "config.json")
        text = (LOGS / "swa-starved.log").read_text().replace("ServerArgs(", f"ServerArgs(model_path='{model}', ", 1)
        (tmp_path / "a.log").write_text(text)
        (steps,) = plans(cli, tmp_path / "a.log")
        (pools,) = [step for step in steps if " pools " in step]
        assert f"--config {model} " in pools
        assert "40GiB" not in pools
        assert "--page-size 16" in pools
        code, _, err = cli(*shlex.split(pools)[1:])
        assert code in (0, 1), err


class TestPlan:
    def test_one_start_of_the_server_however_many_causes_ask(self, cli):
        (steps,) = plans(cli, LOGS / "illegal-access.log")
        assert sum(" serve " in step for step in steps) == 1
        assert "--patches none" not in " ".join(steps)

    def test_looking_comes_before_serving_and_that_before_reproducing(self, cli):
        (steps,) = plans(cli, CORPUS / "double-bookkeeping")
        verbs = [step.split()[1] for step in steps]
        assert verbs == ["audit", "repro", "repro"]
        (steps,) = plans(cli, LOGS / "illegal-access.log")
        verbs = [step.split()[1] for step in steps]
        assert verbs.index("pools") < verbs.index("serve") < verbs.index("repro")

    def test_a_dump_that_is_not_there_is_not_asked_for(self, cli):
        (steps,) = plans(cli, LOGS / "pool-leak.log")
        assert not any("latest" in step for step in steps)

    def test_the_terminal_shows_the_plan_once(self, cli):
        (steps,) = plans(cli, LOGS / "illegal-access.log")
        shown = cli("diagnose", LOGS / "illegal-access.log")[1]
        assert all(step in shown for step in steps)
        assert shown.count("gemma4-triage repro e4b-trtllm") == 1
