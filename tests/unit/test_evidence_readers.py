"""Readers of what else a server leaves, on real samples; test_evidence_damaged.py has torn and hostile files."""

import json
import pickle
import shutil
import sys
import types
import zipfile

import pytest

from asked_evidence import EVIDENCE, SNAPSHOT, document, readings
from diagnose_examples import ROOT
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.launch import left_out, server_arguments


class TestCrashSnapshot:
    def test_whose_it_is_and_what_ran(self):
        (reading,) = readings(SNAPSHOT)
        assert reading.title == "a crash snapshot of SGLang, 3 finished and 1 unfinished requests"
        assert reading.identity.host == "vm"
        assert reading.identity.settings["speculative_algorithm"] == "FROZEN_KV_MTP"
        assert "--crash-dump-folder" in reading.identity.command
        assert ("most new tokens asked for of the unfinished", "600") in reading.facts

    def test_no_prompt_and_no_answer_is_kept(self):
        (reading,) = readings(SNAPSHOT)
        assert b"six seven eight" in SNAPSHOT.read_bytes()
        assert "six seven" not in repr(reading)

    @pytest.mark.parametrize("sample", ["crash", "crash-0.5.23"])
    def test_it_its_log_and_its_manifests_are_one_incident(self, cli, sample):
        code, found = document(cli, EVIDENCE / sample)
        (incident,) = found["incidents"]
        assert code == 1
        assert [len(incident[name]) for name in ("guards", "logs", "readings")] == [3, 1, 1]
        assert (incident["logs"][0]["relation"], incident["readings"][0]["relation"]) == ("names", "names")
        assert "the log names 2026112" in incident["logs"][0]["reasons"][0]
        assert incident["readings"][0]["reasons"][0] == "its log names it"
        asked = next(step["command"] for step in incident["plan"] if " collect " in step["command"])
        assert asked.startswith("gemma4-triage collect http://127.0.0.1:21")
        models = [reason for reason in incident["readings"][0]["reasons"] if reason.startswith("both have model ")]
        assert [name.endswith("repro/toys/toy-e4b") for name in models] == [True]
        assert [one["rule"] for one in incident["findings"] if one["kind"] == "cause"] == ["killed-from-outside"]
        assert "SGLang wrote down its requests and ended" in [entry["text"] for entry in incident["timeline"]]

    def test_a_snapshot_that_a_log_names_is_not_anothers_of_another_host(self, cli, tmp_path):
        shutil.copytree(EVIDENCE / "crash", tmp_path / "a")
        (tmp_path / "a" / "vm").rename(tmp_path / "a" / "elsewhere")
        _, found = document(cli, tmp_path)
        assert [one["relation"] for incident in found["incidents"] for one in incident["readings"]] == ["apart"]

    @pytest.mark.parametrize("named", [True, False], ids=["0.5.13", "0.5.23"])
    def test_what_it_says_of_adapters_and_keys_is_said_as_a_log_says_it(self, cli, tmp_path, named, monkeypatch):
        registry = types.ModuleType("sglang_registry")

        class LoRARef:
            def __init__(self, *fields):
                self.fields = fields

            def __reduce__(self):
                names = ("lora_id", "lora_name", "lora_path", "pinned")
                return (LoRARef, (), dict(zip(names, self.fields, strict=True))) if named else (LoRARef, self.fields)

        class ServerArgs:
            pass

        for made in (LoRARef, ServerArgs):
            made.__module__, made.__qualname__ = registry.__name__, made.__name__
            setattr(registry, made.__name__, made)
        monkeypatch.setitem(sys.modules, registry.__name__, registry)
        arguments = ServerArgs()
        vars(arguments).update(
            model_path="/m",
            lora_paths=[LoRARef("1", "tax", "/l/tax", False)],
            api_key="a-secret-key",
            lora_target_modules=["q_proj"],
            json_model_override_args="x" * 5000,
            mm_process_config={"image": LoRARef("1", "tax", "/l/tax", False), "b": []},
            forward_hooks=[object],
        )
        path = tmp_path / "dump.pkl"
        path.write_bytes(pickle.dumps({"server_args": arguments, "requests": []}))
        (reading,) = readings(path)
        settings = reading.identity.settings
        assert {name for name, value in settings.items() if value == "..."} == {
            "json_model_override_args",
            "mm_process_config",
            "forward_hooks",
        }
        line = server_arguments(Incident(readings=(reading,)))
        assert line == '--model-path /m --lora-paths tax=/l/tax --api-key "$API_KEY" --lora-target-modules q_proj'
        assert set(left_out(Incident(readings=(reading,)))) >= {"json_model_override_args", "mm_process_config"}
        assert "a-secret-key" not in "".join(cli("diagnose", path, *form)[1] for form in ((), ("--json",)))

    def test_alone_it_does_not_know_why(self, cli):
        code, found = document(cli, SNAPSHOT)
        (finding,) = found["incidents"][0]["findings"]
        assert (code, finding["rule"], finding["confidence"]) == (1, "ended-with-requests", "possible")

    def test_of_another_server_it_is_apart(self, cli):
        log = ROOT / "tests" / "data" / "logs" / "healthy.log"
        _, found = document(cli, SNAPSHOT, log)
        assert [one["readings"][0]["relation"] for one in found["incidents"] if one["readings"]] == ["apart"]


class TestRequestDump:
    def test_what_a_server_was_asked_is_no_fault_and_no_word_of_it_is_kept(self, cli):
        code, found = document(cli, EVIDENCE / "requests")
        (incident,) = found["incidents"]
        assert (code, incident["findings"]) == (0, [])
        (reading,) = incident["readings"]
        assert reading["title"] == "a dump of requests of SGLang, 3 finished and 0 unfinished requests"
        (path,) = (EVIDENCE / "requests").iterdir()
        assert b"one two three" in path.read_bytes()
        assert "one two three" not in json.dumps(found)


class TestStacks:
    def test_a_stack_alone_is_no_fault(self, cli):
        code, found = document(cli, EVIDENCE / "stacks")
        (incident,) = found["incidents"]
        assert (code, incident["findings"]) == (0, [])
        assert incident["readings"][0]["pids"] == [14097, 14098]

    def test_one_rank_that_stands_elsewhere_is_named(self, cli, tmp_path):
        frames = {0: "all_reduce (parallel_state.py:9)", 1: "all_reduce (parallel_state.py:9)", 2: "item (a.py:3)"}
        text = "".join(
            f"Process {rank + 10}: sglang::scheduler_TP{rank}\nPython v3.12.1 (/usr/bin/python)\n\nThread 1 (idle): "
            f'"MainThread"\n    {frame}\n    event_loop_normal (scheduler.py:5)\n'
            for rank, frame in frames.items()
        )
        (tmp_path / "stacks.txt").write_text(text)
        code, found = document(cli, tmp_path)
        (finding,) = found["incidents"][0]["findings"]
        assert (code, finding["rule"], finding["confidence"]) == (1, "hang", "possible")
        assert "TP2" in finding["cause"]

    SHELL = "root@pod:/# py-spy dump --pid {}\n"

    def test_below_what_a_shell_or_a_script_said_they_are_stacks_too(self, cli, tmp_path):
        for at, path in enumerate(sorted((EVIDENCE / "stacks").iterdir())):
            words = path.read_text().replace("sglang::scheduler", "python -c 'import sglang\nmain()' sglang::scheduler")
            (tmp_path / path.name).write_text(self.SHELL.format(at) + words)
        code, found = document(cli, tmp_path)
        (reading,) = found["incidents"][0]["readings"]
        assert (code, reading["kind"], reading["pids"]) == (0, "py-spy", [14097, 14098])

    def test_a_log_that_quotes_stacks_is_a_log(self, cli, tmp_path):
        stack = (EVIDENCE / "stacks" / "py-spy-14098.txt").read_text()
        (tmp_path / "a.log").write_text(f"[2026-01-01 00:00:00] server_args=ServerArgs(page_size=16)\n{stack}")
        _, found = document(cli, tmp_path / "a.log")
        assert [len(one["logs"]) for one in found["incidents"]] == [1]

    def test_of_several_processes_of_an_incident_they_are_its_own_and_of_one_alone_a_guess(self, cli, tmp_path):
        shutil.copytree(EVIDENCE / "crash-0.5.23" / "guards", tmp_path / "a" / "guards")
        text = "".join(path.read_text() for path in sorted((EVIDENCE / "stacks").iterdir()))

        def relation(*pids: int) -> list[tuple[int, str]]:
            stacks = text.replace("14097", str(pids[0])).replace("14098", str(pids[-1]))
            (tmp_path / "stacks.txt").write_text(stacks)
            _, found = document(cli, tmp_path)
            return [(len(one["guards"]), two["relation"]) for one in found["incidents"] for two in one["readings"]]

        assert relation(19394, 19870) == [(3, "names")]
        assert relation(14097, 19870) == [(0, "guess")]
        assert relation(14097, 14098) == [(0, "alone")]
        # A container that starts again numbers its processes alike.
        shutil.copytree(tmp_path / "a" / "guards", tmp_path / "c" / "guards")
        for manifest in (tmp_path / "c" / "guards").iterdir():
            fields = json.loads(manifest.read_text())
            manifest.write_text(json.dumps(fields | {"created_utc": fields["created_utc"].replace("T01:", "T05:")}))
        assert relation(19394, 19870) == [(0, "guess")]

    def test_they_are_of_the_server_whose_log_names_their_processes(self, cli, tmp_path):
        shutil.copy(EVIDENCE / "crash-0.5.23" / "server.log", tmp_path)
        for path, pid in zip(sorted((EVIDENCE / "stacks").iterdir()), ("19394", "19870"), strict=True):
            (tmp_path / f"{pid}.txt").write_text(path.read_text().replace(path.stem[-5:], pid))
        _, found = document(cli, tmp_path)
        (incident,) = found["incidents"]
        assert [one["relation"] for one in incident["readings"]] == ["names"]

    def test_as_json(self, cli, tmp_path):
        threads = []
        for pid, name in ((10, "all_reduce"), (11, "all_reduce"), (12, "item")):
            loop = {"name": "event_loop_normal", "short_filename": "scheduler.py", "filename": "/a.py", "line": 5}
            inner = {"name": name, "short_filename": None, "filename": "parallel_state.py", "line": 9}
            for thread in ("Thread-1", "MainThread"):
                frames = [inner, loop] if thread == "MainThread" else [None, {}]
                fields = {"pid": pid, "thread_id": 1, "thread_name": thread, "active": True, "owns_gil": False}
                threads.append({**fields, "frames": frames})
        (tmp_path / "stacks.json").write_text(json.dumps(threads, indent=2))
        code, found = document(cli, tmp_path)
        (finding,) = found["incidents"][0]["findings"]
        assert (code, finding["rule"], found["incidents"][0]["readings"][0]["pids"]) == (1, "hang", [10, 11, 12])
        assert "process 12" in finding["cause"]

    @pytest.mark.parametrize("threads", ["[{", '[{"pid": [], "frames": 3}, 4, null', "[]"])
    def test_damaged_json_is_nobodys_health(self, cli, tmp_path, threads):
        (tmp_path / "stacks.json").write_text(threads + ' , {"thread_id": 1, "owns_gil": true}')
        assert cli("diagnose", tmp_path / "stacks.json")[0] == 4


class TestCudaGdb:
    def test_the_kernel_that_left_its_buffer(self, cli):
        code, found = document(cli, EVIDENCE / "cuda-gdb")
        (incident,) = found["incidents"]
        (finding,) = incident["findings"]
        assert (code, finding["rule"], finding["confidence"]) == (1, "illegal-access", "likely")
        assert "fmhaSm100Kernel_QkvE4m3_PagedKv" in finding["cause"]
        assert incident["readings"][0]["pids"] == [17072]

    @pytest.mark.parametrize(
        ("name", "rule", "kernel", "place"),
        [
            ("illegal-address", "illegal-access", "copy_pages", "bad.cu:5"),
            ("triton", "illegal-access", "gather_rows", "bad_triton.py:11"),
            ("assert", "kernel-failed", "check_index", "asserts.cu:3"),
        ],
    )
    def test_what_cuda_gdb_printed_on_a_gpu(self, cli, name, rule, kernel, place):
        """cuda-gdb itself died behind the first one's line of the exception."""
        code, found = document(cli, EVIDENCE / "cuda-gdb-h200" / f"{name}.txt")
        (incident,) = found["incidents"]
        (finding,) = incident["findings"]
        assert (code, finding["rule"], finding["confidence"]) == (1, rule, "likely")
        assert f"The kernel {kernel} " in finding["cause"]
        (reading,) = incident["readings"]
        assert len(reading["pids"]) == 1
        assert place in str(reading["facts"])

    def test_with_its_process_it_is_evidence_of_that_incident(self, cli, tmp_path):
        shutil.copytree(EVIDENCE / "crash", tmp_path / "x")
        text = (EVIDENCE / "cuda-gdb" / "core.txt").read_text().replace("1764037350", "1795573350")
        (tmp_path / "core.txt").write_text(text)
        _, found = document(cli, tmp_path)
        (incident,) = found["incidents"]
        assert {one["kind"]: one["relation"] for one in incident["readings"]}["cuda-gdb"] == "names"
        # The same process id a year earlier is another process.
        _, found = document(cli, EVIDENCE / "crash", EVIDENCE / "cuda-gdb")
        assert found["incidents"][1]["readings"][0]["relation"] == "apart"

    @pytest.mark.parametrize(
        ("frame", "kernel"),
        [
            (
                "#0  0x7f0 in void (anonymous namespace)::gather<Half, 8>(Half*, int)<<<(8,1,1),(32,4,1)>>> ()",
                "(anonymous namespace)::gather<Half, 8>",
            ),
            ("#0  0x7f0 in flash_fwd<...><<<(2048,1,1),(256,1,1)>>> ()", "flash_fwd<...>"),
            (
                "0x7f0 in void convert<float, __half>(void const*, long)<<<(32,1,1),(256,1,1)>>> ()",
                "convert<float, __half>",
            ),
            ("#1  0x7f0 in attend<<<(1,1,1),(64,1,1)>>> (p=0x7f) at /a/b.cu:17", "attend"),
            ("#0  0x7f0 in triton_kernel () at window.py:31", "triton_kernel"),
        ],
    )
    @pytest.mark.parametrize("focus", ["Current focus set", "Switching focus"])
    def test_kernels_of_every_form(self, tmp_path, frame, kernel, focus):
        text = tmp_path / "core.txt"
        place = "kernel 0, grid 9, block (3,0,0), thread (64,0,0), device 1, sm 1, warp 2, lane 0]"
        text.write_text(f"CUDA Exception: Warp Illegal Address\n[{focus} to CUDA {place}\n{frame}\n")
        (reading,) = readings(text)
        assert reading.title == f"a GPU core dump as cuda-gdb shows it: Warp Illegal Address in {kernel}"
        assert ("focus", "kernel 0, block (3,0,0), thread (64,0,0), device 1") in reading.facts

    @pytest.mark.parametrize(
        ("exception", "rule"),
        [
            ("CUDA_EXCEPTION_5, Warp Out-of-range Address", "illegal-access"),
            ("CUDA_EXCEPTION_6, Warp Misaligned Address", "illegal-access"),
            ("CUDA_EXCEPTION_2, Lane User Stack Overflow", "kernel-failed"),
            ("CUDA_EXCEPTION_9, Warp Hardware Stack Overflow", "kernel-failed"),
            ("CUDA_EXCEPTION_12, Warp Assert", "kernel-failed"),
        ],
    )
    def test_only_an_address_of_data_is_an_illegal_access(self, tmp_path, exception, rule):
        text = tmp_path / "core.txt"
        text.write_text(
            f"Opening GPU coredump: /a/x\nThread 1 received signal {exception}.\n#0  0x1 in f<<<(1,1,1)>>> ()\n"
        )
        (finding,) = readings(text)[0].findings
        serves = finding.next_commands[0].startswith("gemma4-triage serve ")
        assert (finding.rule, serves) == (rule, rule == "illegal-access")

    # Every exception of NVIDIA's cuda-gdb manual.
    @pytest.mark.parametrize(
        ("exception", "of_an_address"),
        [
            *(("Device Unknown Exception", False), ("Lane Illegal Address", True), ("Lane User Stack Overflow", False)),
            *(("Device Hardware Stack Overflow", False), ("Warp Illegal Instruction", False)),
            *(("Warp Out-of-range Address", True), ("Warp Misaligned Address", True)),
            *(("Warp Invalid Address Space", True), ("Warp Invalid PC", False)),
            *(("Warp Hardware Stack Overflow", False), ("Device Illegal Address", True)),
            *(("Lane Misaligned Address", True), ("Warp Assert", False), ("Lane Syscall Error", False)),
            *(("Warp Illegal Address", True), ("Invalid Managed Memory Access", False)),
            *(("Cluster Out-of-range Address", True), ("Cluster Target Block Not Present", False)),
            ("Warp MMU Fault", True),
        ],
    )
    def test_every_exception_that_is_documented(self, tmp_path, exception, of_an_address):
        text = tmp_path / "core.txt"
        text.write_text(f"Opening GPU coredump: /a/x\n\nCUDA Exception: {exception}\n#0  0x1 in f<<<(1,1,1)>>> ()\n")
        (finding,) = readings(text)[0].findings
        assert (finding.rule, exception in finding.cause) == (
            "illegal-access" if of_an_address else "kernel-failed",
            True,
        )

    # Forms that transcripts of cuda-gdb have; names and numbers are made up.
    @pytest.mark.parametrize(
        ("lines", "kernel", "raised_at"),
        [
            (
                "The exception was triggered at PC 0x7f1  scale_rows(int*, int)\n"
                "[Current focus set to CUDA kernel 0, grid 1, block (0,0,0), thread (0,0,0), device 0, sm 1, lane 0]\n"
                "#0  0x00007f2 in scale_rows(int*, int)<<<(1,1,1),(256,1,1)>>> ()\n",
                "scale_rows",
                "0x7f1 scale_rows(int*, int)",
            ),
            (
                "The exception was triggered at PC 0x62f  gather_kernel  (window.py:245)\n\n"
                'Thread 1 "python" received signal CUDA_EXCEPTION_4, Warp Illegal Address.\n'
                "[Switching focus to CUDA kernel 0, grid 9, block (0,0,0), thread (96,0,0), device 0, sm 1, lane 0]\n"
                "0x00062f in gather_kernel<<<(1,1,1),(128,1,1)>>> () at /a/window.py:245\n245\t    load(p)\n",
                "gather_kernel",
                "0x62f gather_kernel window.py:245",
            ),
            (
                f"The exception was triggered at PC 0x7ff  attend<64>({', '.join(['char const*'] * 60)})  (c.cuh:692)\n"
                "[Switching focus to CUDA kernel 0, grid 13, block (0,1,1), thread (0,3,0), device 0, sm 0, lane 0]\n"
                "0x00007ff in _INTERNAL_7b::copy_1<16, 0>\n   <<<(1,3,28),(32,4,1)>>> (dst=0x7f, src=0x7f)\n"
                "    at /a/c.cuh:682\n",
                "_INTERNAL_7b::copy_1<16, 0>",
                "0x7ff attend<64>(char const*",
            ),
            (
                "The exception was triggered at PC 0x5ff (grad.jl:14)\n#0  0x5fd in grad_kernel () at /a/grad.jl:14\n",
                "grad_kernel",
                "0x5ff grad.jl:14",
            ),
            # The warp had ended: only the exception is left of it.
            ("The exception was triggered at PC 0x7c9  embed_gather(int)\n", "embed_gather", "0x7c9 embed_gather(int)"),
        ],
    )
    def test_published_forms(self, tmp_path, lines, kernel, raised_at):
        text = tmp_path / "core.txt"
        head = "Opening GPU coredump: core_1665152103_node_165521.nvcudmp\n\nCUDA Exception: Warp Illegal Address\n"
        text.write_text(head + lines)
        (reading,) = readings(text)
        assert reading.title == f"a GPU core dump as cuda-gdb shows it: Warp Illegal Address in {kernel}"
        assert (reading.identity.pids, reading.times_s) == ((165521,), (1665152103.0,))
        assert dict(reading.facts)["raised at"].startswith(raised_at)
        assert reading.findings[0].confidence == "likely"

    def test_one_that_was_asked_for_shows_where_a_gpu_hangs(self, tmp_path):
        text = tmp_path / "core.txt"
        text.write_text(
            "Opening GPU coredump: /tmp/d/cuda_coredump_node.7.1799919.1764236276\n"
            "[Current focus set to CUDA kernel 0, grid 53, block (0,0,0), thread (0,0,0), device 0, sm 4, lane 0]\n"
            "#0  0x7f0 in ncclDevKernel_AllGather_RING_LL(ncclArgs<4096ul>)<<<(24,1,1),(512,1,1)>>> ()\n"
        )
        (reading,) = readings(text)
        assert (reading.identity.pids, reading.times_s) == ((1799919,), (1764236276.0,))
        (finding,) = reading.findings
        assert (finding.rule, finding.confidence) == ("hang", "possible")
        assert "ncclDevKernel_AllGather_RING_LL" in finding.cause
        assert "waits for other ranks" in finding.cause


class TestFlightRecorder:
    @pytest.mark.parametrize("folder", ["flight-recorder-nccl", "flight-recorder-nccl-json"])
    def test_what_nccl_left_of_one_rank_that_finished_says_nothing_wrong(self, cli, folder):
        code, found = document(cli, EVIDENCE / folder)
        (incident,) = found["incidents"]
        assert (code, incident["findings"]) == (0, [])
        (reading,) = readings(*(EVIDENCE / folder).iterdir())
        ((name, last),) = reading.facts
        assert name == "rank 0, group 0 default_pg"
        assert last.startswith("nccl:broadcast 4 completed")

    @pytest.mark.parametrize("folder", ["flight-recorder", "flight-recorder-json"])
    def test_the_rank_that_never_came(self, cli, folder):
        code, found = document(cli, EVIDENCE / folder)
        (finding,) = found["incidents"][0]["findings"]
        assert (code, finding["rule"], finding["confidence"]) == (1, "collective-timeout", "likely")
        assert "rank 1 never began collective 3, in which rank 0 waits" in finding["cause"]

    def test_ranks_in_step_say_nothing(self, cli, tmp_path):
        for rank in (0, 1):
            shutil.copy(EVIDENCE / "flight-recorder" / "nccl_trace_rank_1", tmp_path / f"nccl_trace_rank_{rank}")
        code, found = document(cli, tmp_path)
        assert (code, found["incidents"][0]["findings"]) == (0, [])


class TestFlashInfer:
    def test_a_page_outside_and_the_call_that_did_not_return(self, cli):
        code, found = document(cli, EVIDENCE / "flashinfer")
        page, last = found["incidents"][0]["findings"]
        assert (code, page["rule"], page["confidence"]) == (1, "flashinfer-page-outside", "likely")
        assert [one["value"] for one in page["evidence"][:2]] == [65, 65]
        assert (last["rule"], last["confidence"]) == ("flashinfer-call-unfinished", "possible")

    def test_a_log_of_whole_calls_with_right_pages_is_clean(self, cli, tmp_path):
        text = (EVIDENCE / "flashinfer" / "api.log").read_text()
        (tmp_path / "api.log").write_text(text[: text.index("Output value:")] + "Output value:\n  None\n")
        code, found = document(cli, tmp_path)
        assert (code, found["incidents"][0]["findings"]) == (0, [])

    def test_the_index_of_dumps(self, cli, tmp_path):
        lines = [
            {"function_name": "a", "process_id": 7, "dump_dir": "/d/1", "execution_status": "inputs_saved"},
            {"function_name": "a", "process_id": 7, "dump_dir": "/d/1", "execution_status": "completed"},
            {"function_name": "b", "process_id": 7, "dump_dir": "/d/2", "execution_status": "inputs_saved"},
        ]
        (tmp_path / "session.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "inputs.pt").write_bytes(b"PK\x03\x04 no zip")
        code, found = document(cli, tmp_path)
        (finding,) = found["incidents"][0]["findings"]
        # What has a zip's first bytes and is none cannot be read.
        assert (code, finding["evidence"][0]["value"]) == (4, "b")

    def test_a_real_folder_of_dumps_is_one_reading_with_its_index_and_without(self, cli, tmp_path):
        for at, (call, states) in enumerate({"a": ["inputs_saved", "completed"], "b": ["inputs_saved"]}.items()):
            folder = tmp_path / "d" / f"20261125_180738_{at}_pid9770_{call}_call0001"
            folder.mkdir(parents=True)
            record = {"function_name": call, "process_id": 9770, "dump_dir": f"/srv/d/{folder.name}"}
            lines = [json.dumps(record | {"execution_status": state}) + "\n" for state in states]
            (folder / "metadata.jsonl").write_text("".join(lines))
            with (tmp_path / "d" / "session.jsonl").open("a") as index:
                index.writelines(lines)
            # torch.save writes a zip; this one would be refused.
            with zipfile.ZipFile(folder / "inputs.pt", "w") as tensors:
                tensors.writestr("../x", b"0")
        for _ in range(2):
            code, found = document(cli, tmp_path / "d")
            (incident,) = found["incidents"]
            (reading,) = incident["readings"]
            assert (code, reading["title"]) == (1, "FlashInfer's dumps of 2 calls, 1 without outputs")
            assert incident["findings"][0]["evidence"][0]["value"] == "b"
            (tmp_path / "d" / "session.jsonl").unlink(missing_ok=True)
