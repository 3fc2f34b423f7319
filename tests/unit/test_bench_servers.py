"""What the bench's servers are started with, and that none of them is left behind."""

import json
import os
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from gemma4_repro.bench import server as server_module
from gemma4_repro.bench.arms import ARMS
from gemma4_repro.bench.ask_installation import InstallationQuestion
from gemma4_repro.bench.burst import prompts
from gemma4_repro.bench.checkpoint import SIZES, geometry, make_pair
from gemma4_repro.bench.cores import cpu_seconds, session_members, split_cores
from gemma4_repro.bench.fleet import Fleet, gpu_of
from gemma4_repro.bench.plan import CUDA_SIZES, Plan, schedule
from gemma4_repro.bench.server import free_ports
from gemma4_repro.bench.server_arguments import command_words, cuda_arguments, host_arguments
from gemma4_repro.bench.server_environment import server_environment
from gemma4_runtime.settings import Settings, read_settings

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

BY_ID = {arm.id: arm for arm in ARMS}
PLAN = Plan(ARMS, (1, 16, 64), (False,), 10, False, 540, **CUDA_SIZES)
IDS = tuple(BY_ID)
CORES = {max(os.sched_getaffinity(0))}


def settings_of(environment, monkeypatch) -> Settings:
    for name in os.environ:
        if name.startswith(("GEMMA4_", "SGLANG_TRTLLM")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return read_settings()


class TestSchedule:
    def test_each_arm_meets_each_batch_once_a_round(self):
        assert sorted(schedule(PLAN, IDS, 3)) == sorted((batch, arm) for batch in PLAN.batches for arm in IDS)

    def test_the_order_changes_between_rounds_and_not_between_runs(self):
        assert list(schedule(PLAN, IDS, 1)) == list(schedule(PLAN, IDS, 1))
        assert len({tuple(schedule(PLAN, IDS, number)) for number in range(5)}) == 5

    def test_prompts_are_the_same_for_every_arm(self):
        assert prompts(4, 20, seed=7) == prompts(4, 20, seed=7)
        assert prompts(4, 20, seed=7) != prompts(4, 20, seed=8)
        assert {len(prompt) for prompt in prompts(4, 20, seed=7)} == {20}


class TestEnvironment:
    def test_what_the_caller_set_does_not_reach_a_server(self, tmp_path):
        inherited = {
            "SGLANG_TRTLLM_MHA_DEBUG": "trap",
            "FLASHINFER_LOGLEVEL": "5",
            "GEMMA4_TRIAGE_LEAK": "dump",
            "A": "b",
        }
        found = server_environment(BY_ID["none"], tmp_path, False, inherited)
        assert found.keys() & inherited.keys() == {"A"}
        assert found["SGLANG_RECORD_STEP_TIME"] == "1"

    @pytest.mark.parametrize("id", ["none", "flashinfer-3", "flashinfer-5", "strict-mem-check"])
    def test_arms_that_are_sglang_alone_do_not_load_the_plugin(self, id, tmp_path):
        allowed = server_environment(BY_ID[id], tmp_path, False, {})["SGLANG_PLUGINS"]
        assert allowed
        assert "gemma4_runtime" not in allowed

    @pytest.mark.parametrize(("id", "mode"), [("off", "off"), ("log", "log"), ("contain", "contain"), ("trap", "trap")])
    def test_a_mode_is_what_the_arm_is_called(self, id, mode, tmp_path, monkeypatch):
        found = settings_of(BY_ID[id].environment_in(tmp_path), monkeypatch)
        assert found.mode.value == mode
        assert found.wants_nothing is (mode == "off")
        assert (found.patches, found.faults) == ((), ())

    def test_the_ledger_is_on_without_probes(self, tmp_path, monkeypatch):
        found = settings_of(BY_ID["ledger"].environment_in(tmp_path), monkeypatch)
        assert (found.mode.value, found.leak.value) == ("off", "dump")

    def test_dumps_and_logs_go_to_the_arms_folder(self, tmp_path):
        assert BY_ID["trap"].environment_in(tmp_path)["SGLANG_TRTLLM_MHA_DEBUG_DIR"] == f"{tmp_path}/dumps"
        assert BY_ID["flashinfer-5"].environment_in(tmp_path)["FLASHINFER_LOGDEST"].startswith(f"{tmp_path}/")

    def test_the_host_engine_needs_the_plugin_in_every_arm(self, tmp_path):
        found = server_environment(BY_ID["none"], tmp_path, True, {})
        assert found["GEMMA4_TRIAGE_HOST_ENGINE"] == "1"
        assert "SGLANG_PLUGINS" not in found


class TestArguments:
    # The arms of this bench are optimisations, none of which is ported.
    @pytest.mark.releases("0.5.13.post1")
    def test_sglang_can_read_them(self, tmp_path):
        from sglang.srt.server_args import ServerArgs

        known = ServerArgs.__dataclass_fields__
        pair = (tmp_path / "target", tmp_path / "assistant")
        for mtp in (True, False):
            for make in (cuda_arguments, host_arguments):
                assert make(pair, mtp, (1, 16)).keys() <= known.keys()

    def test_words(self):
        words = command_words({"host": "h", "sleep_on_idle": True, "cuda_graph_bs": [1, 16]})
        assert words == ["--host", "h", "--sleep-on-idle", "--cuda-graph-bs", "1", "16"]

    def test_mtp_is_the_only_difference_it_makes(self, tmp_path):
        on, off = (cuda_arguments((tmp_path, tmp_path), mtp, (1, 16)) for mtp in (True, False))
        assert off.items() <= on.items()
        assert all(name.startswith("speculative_") for name in on.keys() - off.keys())

    def test_the_pool_holds_the_largest_batch(self, tmp_path):
        arguments = cuda_arguments((tmp_path, tmp_path), True, PLAN.batches)
        tokens = max(PLAN.batches) * (
            PLAN.prompt_tokens + PLAN.tokens(mtp=True, short=False) + 2 * arguments["page_size"]
        )
        assert tokens <= arguments["swa_full_tokens_ratio"] * arguments["max_total_tokens"]
        assert PLAN.prompt_tokens > geometry(SIZES[PLAN.size])["window"]


class TestCheckpoint:
    # The transformers of 0.5.23 lets no one ask a configuration of layers that differ for one head size.
    @pytest.mark.releases("0.5.13.post1")
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_transformers_reads_the_pair_as_e4b_in_larger(self, tmp_path, size):
        from transformers import AutoConfig, AutoTokenizer

        target, assistant = (AutoConfig.from_pretrained(path) for path in make_pair(tmp_path, size))
        text = target.text_config
        assert text.num_hidden_layers == len(text.layer_types) >= 12
        assert text.hidden_size >= 1024
        assert {text.head_dim, text.global_head_dim} < {64, 128, 256}, "what XQA takes on Hopper"
        assert 0 < text.num_kv_shared_layers < text.num_hidden_layers
        assert assistant.backbone_hidden_size == text.hidden_size
        assert assistant.text_config.num_key_value_heads == text.num_key_value_heads
        assert len(AutoTokenizer.from_pretrained(tmp_path / "target")) == text.vocab_size

    def test_no_weights_travel(self, tmp_path):
        make_pair(tmp_path, SIZES["e4b"])
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 100_000


def test_cores_are_split_only_where_there_are_enough(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert split_cores() == ({0}, set(range(1, 16)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert split_cores() == ({0, 1}, {0, 1})


def test_ports_leave_room_for_sglangs_own():
    found = free_ports(9)
    assert len(set(found)) == 9
    assert max(found) + 10000 < 65536


def test_cpu_time_is_of_the_processes_named():
    started = time.process_time()
    while time.process_time() - started < 0.1:
        pass
    assert cpu_seconds([os.getpid()]) >= 0.1
    assert cpu_seconds([]) == 0


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes the servers run a shell script instead of Python with SGLang."""

    def become(text):
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setattr(server_module.sys, "executable", str(path))

    return become


class TestFleet:
    def test_a_server_that_ends_is_lost_with_the_end_of_its_log(self, program, tmp_path):
        program("echo it fell over; exit 3")
        with Fleet((BY_ID["none"],), 1, tmp_path / "run", {}, False, CORES) as fleet:
            fleet.wait_until_ready(time.monotonic() + 10, pytest.fail)
            assert fleet.servers == {}
        assert "ended with 3" in fleet.lost["none"]
        assert "it fell over" in fleet.lost["none"]
        assert str(tmp_path / "run" / "none" / "server.log") in fleet.lost["none"]

    def test_a_server_that_hangs_is_lost_when_time_is_up(self, program, tmp_path):
        program("sleep 600")
        with Fleet((BY_ID["none"],), 1, tmp_path / "run", {}, False, CORES) as fleet:
            fleet.wait_until_ready(time.monotonic() + 0.1, pytest.fail)
        assert "was not ready in time" in fleet.lost["none"]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_whatever_happens_every_process_of_every_server_ends(self, program, tmp_path, error):
        program(f"sleep 600 & echo $$ $! > {tmp_path}/pids.$$; wait")
        sessions = []

        def start_three_and_fail():
            with Fleet(ARMS[:3], 1, tmp_path / "run", {}, False, CORES) as fleet:
                sessions.extend(server._process.pid for server in fleet.servers.values())
                while len(list(tmp_path.glob("pids.*"))) < 3:
                    time.sleep(0.05)
                assert all(len(session_members(session)) == 2 for session in sessions)
                raise error

        with pytest.raises(error):
            start_three_and_fail()
        assert [session_members(session) for session in sessions] == [[], [], []]

    def test_environment_and_cores_arrive(self, program, tmp_path):
        program(f"env > {tmp_path}/seen.part; mv {tmp_path}/seen.part {tmp_path}/seen; sleep 600")
        with Fleet((BY_ID["trap"],), 1, tmp_path / "run", {}, False, CORES) as fleet:
            while not (tmp_path / "seen").exists():
                time.sleep(0.05)
            assert os.sched_getaffinity(fleet.servers["trap"]._process.pid) == CORES
        assert "SGLANG_TRTLLM_MHA_DEBUG=trap" in (tmp_path / "seen").read_text().splitlines()


def test_the_toys_configuration_is_what_is_scaled(tmp_path):
    target, _ = make_pair(tmp_path, SIZES["scaled"])
    config = json.loads(Path(target, "config.json").read_text())
    assert config["architectures"] == ["Gemma4ForConditionalGeneration"]
    assert config["dtype"] == "bfloat16"


class TestInstallation:
    """What a bench says of where it ran. A package hidden by a file of its name stands for one that is not there."""

    def ask(self, folder, monkeypatch, hidden):
        (folder / "hidden").mkdir()
        error = f"ModuleNotFoundError(\"No module named '{hidden}'\", name='{hidden}')"
        (folder / "hidden" / f"{hidden}.py").write_text(f"raise {error}\n")
        monkeypatch.setenv("PYTHONPATH", str(folder / "hidden"))
        with InstallationQuestion(folder, host_engine=True) as question:
            return question.answer()

    @pytest.mark.slow
    def test_without_xgrammar_which_one_target_needs(self, tmp_path, monkeypatch):
        found = self.ask(tmp_path, monkeypatch, "xgrammar")
        assert found["failure"] == ""
        assert found["versions"]["sglang"] == version("sglang")
        assert found["identity"]["changed"] == []
        assert found["identity"]["compared"] > 100

    def test_one_that_fails_says_so(self, tmp_path, monkeypatch):
        found = self.ask(tmp_path, monkeypatch, "torch")
        assert found["failure"] == "ModuleNotFoundError: No module named 'torch'"
        assert (found["versions"], found["gpu"], found["identity"]) == ({}, None, None)


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [(None, ["0", "1", "0"]), ("4,7", ["4", "7", "4"]), ("5", ["5", "5", "5"]), ("2,3,6", ["2", "3", "2"])],
)
def test_servers_take_turns_on_the_gpus_that_this_process_may_use(visible, wanted):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [gpu_of(number, 2, environment) for number in range(3)] == wanted
