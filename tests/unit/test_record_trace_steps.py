"""The trace recorder beside a server that is made up: when it profiles, what it makes of the trace, what it says."""

import gzip
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemma4_repro.bench import record_trace
from gemma4_repro.bench.server import ServerLost
from gemma4_repro.bench.server_arguments import STEPS_PER_WINDOW
from trace_examples import decode, e4b

BATCH, STEPS = 4, 5


class Server:
    """Answers as SGLang's: a burst ends when the profile has been taken, or at once if `in_a_hurry`."""

    name = "none"

    def __init__(self, folder, traces=1, in_a_hurry=False, answers=BATCH):
        self.log_path = folder / "server.log"
        self.log_path.write_text("")
        self._traces, self._in_a_hurry, self._answers = traces, in_a_hurry, answers
        self.asked, self._profiled = [], False

    def ask(self, path, body=None, timeout_s=60):
        self.asked.append((path, body))
        if path == "/start_profile":
            for number in range(self._traces):
                with gzip.open(f"{body['output_dir']}/{number}-TP-0.trace.json.gz", "wt") as file:
                    json.dump(decode(e4b(3)).document(), file)
            self._profiled = True
            return "Start profiling.\n"
        if path == "/generate":
            if body["sampling_params"]["max_new_tokens"] > 64 and not self._in_a_hurry:
                self._log_decode_steps_until_profiled()
            return [{}] * self._answers
        return None

    def _log_decode_steps_until_profiled(self):
        while not self._profiled:
            with self.log_path.open("a") as log:
                log.write(f"Prefill batch, #running-req: {BATCH}\nDecode batch, #running-req: {BATCH}0, x\n")
                log.write(f"Decode batch, #running-req: {BATCH}, #token: 1\n")

    def lost(self, what):
        return ServerLost(f"{self.name}: {what}", self.log_path)


def options(*words):
    return record_trace._parse(["--batch", str(BATCH), "--steps", str(STEPS), "--out", "t.json.gz", *words])


class TestProfile:
    @pytest.mark.parametrize("words", [(), ("--mtp",)])
    def test_it_is_taken_in_mid_decode(self, tmp_path, words):
        server = Server(tmp_path)
        trace = record_trace._profile(server, tmp_path / "traces", options(*words))
        assert trace.name == "0-TP-0.trace.json.gz"
        paths = [path for path, _ in server.asked if not path.startswith("/flush_cache")]
        assert paths == ["/generate", "/generate", "/start_profile"]
        lengths = [body["sampling_params"]["max_new_tokens"] for path, body in server.asked if path == "/generate"]
        # A verification brings up to four tokens, and the burst has to outlast the profile with them too.
        assert lengths[1] >= (4 if words else 1) * (2 * STEPS_PER_WINDOW + STEPS)
        assert dict(server.asked)["/start_profile"]["num_steps"] == STEPS + 2

    def test_a_burst_that_ends_before_is_an_error(self, tmp_path):
        with pytest.raises(ServerLost, match="answered before it had logged 2 windows of decode steps"):
            record_trace._profile(Server(tmp_path, in_a_hurry=True), tmp_path / "traces", options())

    @pytest.mark.parametrize("traces", [0, 2])
    def test_one_trace_is_expected(self, tmp_path, traces):
        with pytest.raises(ServerLost, match=f"left {traces} traces where one was expected"):
            record_trace._profile(Server(tmp_path, traces), tmp_path / "traces", options())

    def test_an_answer_for_each_request_is_expected(self, tmp_path):
        with pytest.raises(ServerLost, match="answered"):
            record_trace._profile(Server(tmp_path, answers=1), tmp_path / "traces", options())


class TestRecord:
    """The whole command, with a fleet of such servers."""

    @pytest.fixture
    def run(self, tmp_path, monkeypatch, capsys):
        def run_command(*words, lost=None, make_server=Server):
            def fleet(arms, copies, folder, arguments, host_engine, cores):
                folder.mkdir(parents=True)
                made = {arm.id: make_server(folder) for arm in arms}
                return nullcontext(SimpleNamespace(servers=made, lost=lost or {}, **waits))

            waits = {"wait_until_ready": lambda limit, tell: tell("none")}
            monkeypatch.setattr(record_trace, "make_pair", lambda folder, size: (folder / "a", folder / "b"))
            monkeypatch.setattr(record_trace, "Fleet", fleet)
            code = record_trace.main(["--batch", str(BATCH), "--steps", str(STEPS), *words])
            return code, capsys.readouterr().err

        return run_command

    def test_each_arm_has_its_file_with_what_it_is_of(self, run, tmp_path):
        paths = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
        code, err = run("--arm", "none", "--out", str(paths[0]), "--arm", "default", "--out", str(paths[1]))
        assert code == 0, err
        recorded = [json.loads(gzip.decompress(path.read_bytes()))["gemma4_triage"] for path in paths]
        assert [record["environment"].get("GEMMA4_TRIAGE_PATCHES") for record in recorded] == [None, "default"]
        assert (recorded[0]["batch"], recorded[0]["mtp"], recorded[0]["attention"]) == (BATCH, False, "hybrid")
        assert recorded[0]["versions"]["sglang"]
        assert "more than the" not in err

    def test_a_trace_too_large_for_a_sample_says_what_makes_it_smaller(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(record_trace, "SAMPLE_BYTES", 100)
        code, err = run("--out", str(tmp_path / "a.json.gz"))
        assert code == 0
        assert f"--steps {STEPS - 2} gives less" in err

    def test_a_server_that_does_not_start(self, run, tmp_path):
        code, err = run("--out", str(tmp_path / "a.json.gz"), lost={"none": "none: ended with 1"})
        assert code == 3
        assert "error: none: ended with 1" in err
        assert not (tmp_path / "a.json.gz").exists()

    def test_a_trace_that_is_cut_off(self, run, tmp_path):
        class Cut(Server):
            def ask(self, path, body=None, timeout_s=60):
                found = super().ask(path, body, timeout_s)
                if path == "/start_profile":
                    (trace,) = Path(body["output_dir"]).iterdir()
                    trace.write_bytes(trace.read_bytes()[:200])
                return found

        code, err = run("--out", str(tmp_path / "a.json.gz"), make_server=Cut)
        assert code == 3
        assert "which SGLang wrote, cannot be read" in err

    def test_a_model_that_cannot_be_made(self, run, tmp_path, monkeypatch):
        def missing(folder, size):
            raise FileNotFoundError("repro/toys/gemma4-toy/tokenizer.json")

        words = ["--out", str(tmp_path / "a.json.gz")]
        monkeypatch.setattr(record_trace, "make_pair", missing)
        assert record_trace.main(words) == 3
