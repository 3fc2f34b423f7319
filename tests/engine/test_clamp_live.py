"""`clamp` in the live server: bad entries are read from the null page, their requests go on, and every one is marked.

The device model is sm100, so one page that is followed out of range would end the server.
"""

import json
import os
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine_process import HOST
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.language import held_out_prompts
from gemma4_repro.workloads import SWA_PRESSURE
from gemma4_runtime.releases import BASE, installed_or_base
from lifecycle import assert_pools_are_whole, load_of
from server_process import flags, free_port, running_server

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

KEY = "gemma4_degraded"
CLAMP = {"GEMMA4_TRIAGE_PATCHES": "default,+clamp"}
HEALTHY_BUILDS = 3
LIMIT_S = 60


class Server:
    def __init__(self, port, folder):
        self.url, self.log, self.dumps = f"http://127.0.0.1:{port}", folder / "server.log", folder / "dumps"

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=120) as response:
            return json.load(response)

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read()

    def generate(self, prompt, new_tokens, **more):
        return json.loads(self.post("/generate", body(prompt, new_tokens) | more))

    def stream(self, prompt, new_tokens):
        text = self.post("/generate", body(prompt, new_tokens) | {"stream": True}).decode()
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]

    def counted(self):
        (state,) = self.get("/server_info")["internal_states"]
        return state["gemma4_triage_degraded"]


def body(prompt, new_tokens):
    return {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
    }


def running(folder, arguments, variables):
    port = free_port()
    environment = os.environ | HOST | variables | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")}
    command = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
    return Server(port, folder), running_server(command + flags(arguments), port, environment, folder / "server.log")


def test_with_the_seed_bug_exactly_the_affected_requests_are_marked(run_engine, mtp_arguments):
    """These requests end in test_contain_live.py. `log` beside it writes dumps of what was replaced."""
    done = run_engine(
        {
            "GEMMA4_TRIAGE_FAULTS": "swa-state-stale",
            "GEMMA4_TRIAGE_PATCHES": "default,-swa-state-swap,+clamp",
            "SGLANG_TRTLLM_MHA_DEBUG": "log",
            "GEMMA4_TRIAGE_PROBES": "page-table",
        },
        engines=[mtp_arguments],
        prompts=SWA_PRESSURE.prompts(),
        new_tokens=130,
        each_alone=True,
    )
    assert done.returncode == 0, done.log[-4000:]
    (answers,) = done.outputs
    # Every request runs to its end.
    assert [len(answer["tokens"]) for answer in answers] == [130] * SWA_PRESSURE.prompt_count
    marked = [answer["meta"][KEY] for answer in answers if KEY in answer["meta"]]
    # 0.5.23 admits all of them at once, and the draft of each reads past the end.
    assert 0 < len(marked) < len(answers) + (installed_or_base() != BASE)
    assert all(mark["clamped_entries"] >= 1 and mark["roles"] == ["draft"] for mark in marked)
    assert all(mark["first_step"] <= mark["last_step"] for mark in marked)
    # Whom the log names is whom the replies mark; it is rate limited, but begins with the first.
    named = re.findall(r"DEGRADED: ([\w, ]+)", done.log)
    assert named
    ids = {answer["meta"]["id"] for answer in answers if KEY in answer["meta"]}
    assert {name for line in named for name in line.strip().split(", ")} <= ids
    assert "CLAMP: pages out of range" in done.log
    assert "IllegalAddress" not in done.log


def test_a_targets_page_past_the_end(mtp_arguments, tmp_path):
    """The first row of each target verify from the 4th on: of one request at a time, all of it is known."""
    exported = tmp_path / "exported"
    logs = {"log_requests": True, "export_metrics_to_file": True, "export_metrics_to_file_dir": exported}
    server, context = running(tmp_path, mtp_arguments | logs, CLAMP | {"GEMMA4_TRIAGE_FAULTS": "page-past-the-end"})
    prompt = SWA_PRESSURE.prompts()[0][:60]
    with context as process:
        # SGLang's own warm-up may have had some of the healthy builds.
        first = server.generate(prompt, 40)
        mark = first["meta_info"][KEY]
        assert mark["roles"] == ["target"]
        assert mark["clamped_entries"] >= first["meta_info"]["spec_verify_ct"] - HEALTHY_BUILDS
        # Its own keys stay out of the prefix cache but for the prompt's, which were computed before.
        counted = server.counted()
        # SGLang's own warm-up may have been marked before.
        assert counted["requests"] >= 1
        assert counted["clamped_entries"] >= mark["clamped_entries"]
        again = server.generate(prompt + first["output_ids"], 1)
        assert again["meta_info"]["cached_tokens"] <= len(prompt)
        before = server.counted()["requests"]
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(server.stream, prompt, 300)
            while server.counted()["requests"] == before:
                assert not long.done()
            # In the second row of every batch, and out of it before the first.
            beside = server.generate(SWA_PRESSURE.prompts()[1][:60], 8)
            assert not long.done()
            assert KEY not in beside["meta_info"]
            assert KEY in long.result()[-1]["meta_info"]
        chunks = server.stream(prompt, 12)
        assert chunks[-1]["meta_info"][KEY]["clamped_entries"] >= 1
        chat = {
            "model": "default",
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 8,
            "ignore_eos": True,
            "return_meta_info": True,
        }
        (choice,) = json.loads(server.post("/v1/chat/completions", chat))["choices"]
        assert choice["meta_info"][KEY]["roles"] == ["target"]
        # A single token needs no verify: nothing of it was clamped.
        assert KEY not in server.generate(prompt[:20], 1)["meta_info"]
        assert process.poll() is None
    # SGLang may still be exporting the last request.
    expected = [(reply["meta_info"]["id"], reply["meta_info"].get(KEY)) for reply in (first, chunks[-1], again)]
    records = [json.loads(line) for file in exported.iterdir() for line in file.read_text().splitlines()]
    found = {record["id"]: record.get(KEY) for record in records}
    assert [(rid, found[rid]) for rid, _ in expected] == expected
    finished = [line for line in server.log.read_text().splitlines() if "Finish: obj=" in line]
    logged = [next(line for line in finished if f"'id': '{rid}'" in line) for rid, _ in expected]
    assert [f"'{KEY}': " in line for line in logged] == [True, True, False]
    assert DumpStore(server.dumps).list() == []


def test_a_clean_load_is_not_marked(run_engine, mtp_arguments):
    done = run_engine(CLAMP, engines=[mtp_arguments], prompts=SWA_PRESSURE.prompts(), new_tokens=40, each_alone=True)
    assert done.returncode == 0, done.log[-4000:]
    (answers,) = done.outputs
    assert [len(answer["tokens"]) for answer in answers] == [40] * SWA_PRESSURE.prompt_count
    assert not any(KEY in answer["meta"] for answer in answers)
    assert "CLAMP: pages out of range" in done.log
    assert "DEGRADED" not in done.log


def test_without_it_the_server_dies_as_before(run_engine, mtp_arguments):
    done = run_engine(
        {"GEMMA4_TRIAGE_PATCHES": "default", "GEMMA4_TRIAGE_FAULTS": "page-past-the-end"},
        engines=[mtp_arguments],
        prompts=[SWA_PRESSURE.prompts()[0][:60]],
        new_tokens=40,
    )
    assert done.returncode != 0
    assert "IllegalAddress" in done.log


class TestRetractedRequests:
    """Overlapped, what a decode found is read when its request may have been retracted, and is to be computed anew."""

    PROMPTS = held_out_prompts(4, 200, seed=20)
    NEW_TOKENS = 40

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        return tmp_path_factory.mktemp("retracted")

    @pytest.fixture(scope="class")
    def run(self, engine_arguments, engine_forks, folder):
        """Serve a load that would fill the pools and never end if a prefill did not go on from its first chunk."""
        environment = CLAMP | {"GEMMA4_TRIAGE_LEAK": "raise", "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
        engine = engine_arguments | {
            "disable_overlap_schedule": False,
            "disable_radix_cache": True,
            "chunked_prefill_size": 64,
            "log_level": "info",
        }
        sampling = body([], self.NEW_TOKENS)["sampling_params"]
        requests = [{"prompt": prompt, "sampling": sampling} for prompt in self.PROMPTS]
        spec = {
            "before": ["engine_changes:retract_while_decodes_are_clamped"],
            "arms": [{"engine": engine, "loads": [load_of(requests)], "idle": True}],
        }
        done = engine_forks.run(folder, environment, LIMIT_S, spec)
        assert done.returncode == 0, done.log[-4000:]
        return done

    def test_the_load_ends_and_every_reply_is_marked(self, run):
        assert len(re.findall(r"Testing retraction.*#retracted_reqs: [1-9]", run.log)) > 5
        (answers,) = run.outputs[0]["loads"]
        assert [(len(one["tokens"]), one["finish"]) for one in answers] == [(self.NEW_TOKENS, "length")] * 4
        for mark in [one["mark"] for one in answers]:
            assert mark["roles"] == ["target"]
            assert mark["clamped_entries"] > 10
            assert not mark["from_prefix_cache"]

    def test_the_pools_are_balanced(self, run, folder):
        assert_pools_are_whole(run, folder)
