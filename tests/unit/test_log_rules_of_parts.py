"""What a log says of parts around the scheduler, and of failures that a server survives: each once, and once silent."""

import pytest

from gemma4_triage.finding import Confidence
from made_logs import ASSERTION, BOOTSTRAP, death, decode, found_in, prefill, stamp, started, steady


def answer(second, what, status):
    return f'{stamp(second)} INFO:     10.0.0.7:41000 - "{what} HTTP/1.1" {status}\n'


SMG = "2026-01-01 00:00:{:02d} {} smg::routers: {}\n"
HUB = "Failed to fetch tokenizer files from https://huggingface.co/api/models/a/b: operation timed out, retry 1/5"
WATCHDOG = f"{stamp(300, 'TP0')} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
BUSY = f"{stamp(300, 'TP0')} Scheduler debug info:\nscheduler.cur_batch_for_debug.batch_size()=1\n"
BUSY += "[full] total=9000, available=4000, evictable=3000, protected=1000, session_held=0, uncached=0\n"
NIXL = (
    "Exception in thread Thread-9 (bootstrap_thread):\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.12/threading.py", line 1075, in _bootstrap_inner\n    self.run()\n'
    '  File "/srv/sglang/disaggregation/nixl/conn.py", line 402, in _prep\n    self.agent.prep()\n'
    "nixl._bindings.nixlNotFoundError: NIXL_ERR_NOT_FOUND\n"
)
FP8 = "triton.compiler.errors.CompilationError: at 22:11:\n    x = tl.load(src).to(tl.float8e4nv)\n           ^\n"
FP8 += "ValueError(\"type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e5',)\")"
ADAPTER = "Failed to load LoRA adapter a: LoRA adapter a with rank 8 is incompatible with the current LoRA memory pool "
ADAPTER += "configuration. Please ensure that the LoRA adapter's rank is within the configured `--max-lora-rank`."
STORE = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
STORE += "port: 43117, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
NATIVE = "Fatal Python error: Segmentation fault\n\nThread 0x00007f5c (most recent call first):\n"
NATIVE += '  File "/srv/xgrammar/compiler.py", line 181 in compile_json_schema\n'
GONE = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:31022"
HIP = "[rank1]: ProcessGroupNCCL.cpp:2057] terminated with exception: HIP error: operation not permitted on an event "
HIP += "last recorded in a capturing stream\n"
LOADED = [decode(1, accept=2.5), decode(2, accept=2.5)]

PICTURES = '  File "/opt/transformers/image_processing_utils_fast.py", line 612, in preprocess\n    self.resize()\n'
NO_ROOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 92.00 MiB. GPU 0 has a total capacity of 79.11 GiB "
)
NO_ROOM += (
    "of which 61.06 MiB is free. Process 22 has 70.83 GiB memory in use. Process 20 has 8.19 GiB memory in use.\n"
)
TOO_SMALL = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
MASK = "ValueError: logits and bitmask must have the same batch size"
SCHEMA = "RuntimeError: json_schema_converter.cc:1234: Check failed: Schema should be an object or bool"
HANDLES = "RuntimeError: custom_all_reduce.cuh:37: CUDA error: invalid argument"


def weights(second, model, before, after):
    return (
        f"{stamp(second, 'TP0')} Load weight begin. avail mem={before:.2f} GB\n"
        f"{stamp(second, 'TP0')} Load weight end. type={model}, avail mem={after:.2f} GB, "
        f"mem usage={before - after:.2f} GB.\n"
    )


EFAULT = "E0612 14:05:26.176716 92 tcp_transport.cpp:136] Session::writeBody failed. Error: Bad address (value: 14)\n"
NOBODY = (
    '{"error":{"type":"Service Unavailable","code":"server_selection_failed",'
    '"message":"No available servers: No available decode workers (all circuits open or unhealthy)"}}\n'
)
HEARTBEAT = (
    f"{stamp(330)} Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
    "tic start time: {}. last_heartbeat time: {}\n"
)


# Name: lines, the rule that leads, and words of its cause or advice.
CASES = {
    "a target and its draft leave no pool": (
        [
            started(mem_fraction_static=0.42),
            weights(1, "LlamaForCausalLM", 40, 25),
            weights(2, "LlamaForCausalLMEagle", 24, 22),
            death(3, TOO_SMALL),
        ],
        ("out-of-memory", "target and draft take 17.0 of 40.0 GB: raise --mem-fraction-static above the 0.42"),
    ),
    "pictures are prepared on the GPU": (
        [
            *steady(3),
            f"{stamp(4)} Exception in TokenizerManager:\nTraceback (most recent call last):\n{PICTURES}{NO_ROOM}",
            answer(5, "POST /generate", "500 Internal Server Error"),
            *steady(3, 6),
        ],
        ("out-of-memory", "8.2 GiB are held by process 20"),
    ),
    "a quantisation that the release does not serve": (
        [
            death(1, "KeyError: 'intermediate_size_full'", frame="gptq_marlin.py").replace(
                "in step", "in create_weights"
            )
        ],
        ("quantised-kernel", "--quantization moe_wna16"),
    ),
    "a schema that does not compile": (
        [death(1, SCHEMA, frame="xgrammar/compiler.py").replace("in step", "in compile_json_schema")],
        ("grammar-request", "does not compile"),
    ),
    "a mask of structured output beside drafts": (
        [started(speculative_algorithm="EAGLE"), *LOADED, death(3, MASK, frame="xgrammar_backend.py")],
        ("grammar-request", "without --speculative-algorithm"),
    ),
    "graphs under a memory saver": (
        [
            started(enable_memory_saver=True),
            death(1, HANDLES, frame="custom_all_reduce_v2.py").rstrip() + "\n\nDuring handling of the above exception, "
            "another exception occurred:\n\nException: Capture cuda graph failed: CUDA error: invalid argument\n",
        ],
        ("graph-capture", "--enable-memory-saver"),
    ),
    "a transport without RDMA": (
        [*steady(3), "I0420 transfer_engine.cpp:200] Topology discovery complete. Found 0 HCAs.\n", BOOTSTRAP],
        ("kv-transfer", "fell back to TCP"),
    ),
    "a transport that times out": (
        [
            *steady(3),
            "E0420 tcp_transport.cpp:136] TcpTransport: connect failed 10.0.0.9:15300: Connection timed out\n",
            BOOTSTRAP,
        ],
        ("kv-transfer", "connections to the other side timed out"),
    ),
    "NaN in float16": (
        [started(dtype="float16"), *steady(3, 1), f"{stamp(5)} Detected errors during sampling! NaN in the logits.\n"],
        ("non-finite-logits", "--dtype bfloat16"),
    ),
    "a stage that has no first layer": (
        [started(pp_size=2), death(1, "IndexError: list index out of range", "PP1", "memory_pool.py")],
        ("hybrid-draft-pool", "--pp-size 1"),
    ),
    "a message of a stranger": (
        [*steady(3), death(4, "_pickle.UnpicklingError: invalid load key, 'G'.", frame="zmq/_future.py")],
        ("foreign-message", "something else wrote to that port"),
    ),
    "a weight file that is none": (
        [death(1, "_pickle.UnpicklingError: invalid load key, 'v'.", frame="torch/serialization.py")],
        ("foreign-message", "Git LFS"),
    ),
    "no peer access for DeepEP": (
        [death(1, "RuntimeError: Failed: deep_ep.cpp:200 'peer access is not supported between these two devices'")],
        ("expert-transport", "nvidia-smi topo -p2p r"),
    ),
    "no fabric for DeepEP": (
        [death(1, "RuntimeError: deep_ep.cpp:52 'CUDA_ERROR_NOT_SUPPORTED' (CU_MEM_HANDLE_TYPE_FABRIC)")],
        ("expert-transport", "MNNVL"),
    ),
    "a template that meets other tools": (
        [
            *steady(3),
            f"{stamp(4)} Error in request: Traceback (most recent call last):\n"
            '  File "/srv/sglang/srt/entrypoints/openai/serving_chat.py", line 9, in _apply_jinja_template\n    x()\n'
            "TypeError: Object of type Undefined is not JSON serializable\n",
            answer(4, "POST /v1/chat/completions", "500 Internal Server Error"),
            *steady(3, 5),
        ],
        ("chat-template", "once without tools"),
    ),
    "offloaded weights that cannot be pinned": (
        [
            death(1, "RuntimeError: CUDA error: out of memory", frame="utils/common.py").replace(
                "in step", "in maybe_offload"
            )
        ],
        ("out-of-memory", "--cpu-offload-gb"),
    ),
    "experts that are moved for ever": (
        [
            *steady(3),
            f"{stamp(4)} [EPLBManager] rebalance start\n",
            f"{stamp(40)} Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.\n",
        ],
        ("unexplained-line", "once without --enable-eplb"),
    ),
    "weights that were replaced in part": (
        [*steady(3), f"{stamp(4)} Failed to update parameter online: 'a'. The full weights are partially updated.\n"],
        ("unexplained-line", "restart it"),
    ),
    "a build for another GPU": (
        ["FATAL: kernel `fmha` is for sm80-sm100, but was built for sm121\n"],
        ("no-kernel-image", "other architectures"),
    ),
    "an architecture that the release lacks": (
        [death(1, "ValueError: AForSequenceClassification has no SGlang implementation and none of Transformers fits")],
        ("wheels-do-not-fit", "no code for the model's architecture"),
    ),
    "ports of another server": (
        [
            "Port is already in use. dist_init_port=1 port_base=2\n",
            "ValueError: nccl_port at 2 is not available in 30 s\n",
        ],
        ("start-refused", "ss -ltnp"),
    ),
    "a circuit breaker that opens": (
        [
            SMG.format(1, "INFO", "finished processing request status_code=400"),
            SMG.format(2, "WARN", "Circuit breaker for http://a:8000 transitioned Closed -> Open (failures: 10)"),
        ],
        ("router", "mistakes (4xx)"),
    ),
    "the circuit breaker counts refusals": (
        [
            SMG.format(1, "WARN", "Request failed worker=http://a status=400 Bad Request retryable=false"),
            SMG.format(2, "WARN", "Circuit breaker state transition worker=http://a from=Closed to=Open"),
            SMG.format(3, "ERROR", "status=503 code=no_available_workers"),
        ],
        ("router", "mistakes (4xx)"),
    ),
    "no worker is left": ([SMG.format(1, "ERROR", "No available workers")], ("router", "its own judgement")),
    "a stale ring": (
        [SMG.format(1, "ERROR", "Failed to select PD pair error=Policy consistent_hashing failed to select a worker")],
        ("router", "restart that router"),
    ),
    "a request without its room": (
        [f"{stamp(1)} Invalid request: Disaggregated request received without boostrap room id. req.rid='a'\n"],
        ("router", "--pd-disaggregation"),
    ),
    "a router waits for files": (
        [
            SMG.format(1, "WARN", HUB),
            '  Warning  Unhealthy  9s  kubelet  Liveness probe failed: Get "http://a/health"\n',
        ],
        ("router", "--tokenizer-path"),
    ),
    "a router's vocabulary": (
        ["thread 'main' panicked at src/harmony/mod.rs:41:\n", "Failed to load Harmony encoding: error downloading\n"],
        ("weights-missing", "TIKTOKEN_ENCODINGS_BASE"),
    ),
    "an adapter is refused while others are served": (
        [*steady(3), f"{stamp(4)} {ADAPTER}\n", answer(4, "POST /load_lora_adapter", "400 Bad Request"), *steady(3, 5)],
        ("lora-refused", "--max-lora-rank"),
    ),
    "a prefill server went away": (
        [
            *steady(3),
            f"{stamp(4, 'TP0')} Lost connection with prefill instance (bootstrap_addr: 10.0.0.4:8998)\n",
            f"{stamp(30)} Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.\n",
        ],
        ("kv-transfer", "begin with the prefill server"),
    ),
    "NIXL refuses": ([*steady(3), NIXL, answer(9, "GET /health", "200 OK")], ("kv-transfer", "mooncake")),
    "the watchdog prints the pools of a batch that runs": ([*steady(3), WATCHDOG, BUSY], ("hang", "no progress")),
    "drafts and a grammar": (
        [*LOADED, death(3, "ValueError: Tokens not accepted: 1", frame="xgrammar_backend.py")],
        ("grammar-request", "without --speculative-algorithm"),
    ),
    "a grammar ends the process in native code": (
        [*LOADED, NATIVE, death(3, GONE, "DP6")],
        ("grammar-request", "refer to themselves"),
    ),
    "no FP8 E4M3": ([death(1, FP8)], ("no-fp8", "compute capability 8.9")),
    "a port between processes": ([death(1, STORE)], ("start-refused", "--nccl-port")),
    "HIP graphs": ([HIP], ("device-fault", "--disable-cuda-graph")),
    "a fault on an AMD GPU": (
        [*steady(3), "Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: code: 0x1016\n"],
        ("device-fault", "--disable-custom-all-reduce"),
    ),
    "logits of a whole prompt": (
        [*steady(3), death(4, "torch.OutOfMemoryError: CUDA out of memory.", frame="logits_processor.py")],
        ("out-of-memory", "logprob_start_len"),
    ),
    "a tokenizer of another release": (
        [death(1, "ValueError: Couldn't instantiate the backend tokenizer from one of:")],
        ("wheels-do-not-fit", "tokenizer_class"),
    ),
    "an operator for other devices": (
        [death(1, "NotImplementedError: Could not run 'sglang::fused' with arguments from the 'CPU' backend.")],
        ("wheels-do-not-fit", "has no implementation for this device"),
    ),
    "an instruction that the GPU has not": (
        [death(1, "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error")],
        ("wheels-do-not-fit", "--moe-runner-backend"),
    ),
    "a full queue": (
        [*steady(2), f"{stamp(3)} The request queue is full.\n", *steady(2, 4)],
        ("unexplained-line", "--max-queued-requests"),
    ),
    "an EAGLE3 head under EAGLE": (
        [started(speculative_algorithm="EAGLE", speculative_draft_model_path="a/b-EAGLE3"), *steady(9, 1, accept=1.0)],
        ("drafts-never-accepted", "--speculative-algorithm EAGLE3"),
    ),
    "a connection that a worker had closed": (
        ["2026-03-18 09:14:37 ERROR smg::routers::http::router: request failed: hyper::Error(IncompleteMessage)\n"],
        ("router", "SGLANG_TIMEOUT_KEEP_ALIVE"),
    ),
    "drafts of which one in twenty is accepted": (
        [started(speculative_algorithm="NEXTN"), *steady(9, 1, accept=1.05)],
        ("drafts-never-accepted", "check that the draft was made for this target"),
    ),
    "GPU memory over TCP": ([*steady(3), EFAULT, BOOTSTRAP], ("kv-transfer", "built for CUDA")),
    "a router's answer": ([NOBODY], ("router", "GET /workers")),
    "a position beyond the angles of a draft": (
        [*LOADED, death(3, ASSERTION, frame="rotary_embedding.py").replace("in step", "in forward_draft")],
        ("index-outside-tensor", "config.json of the draft"),
    ),
    "a position beyond the angles": (
        [
            *steady(3),
            death(4, "IndexError: index 8192 is out of bounds for dimension 0 with size 8192", frame="rope.py"),
        ],
        ("index-outside-tensor", "max_position_embeddings"),
    ),
    "a scheduler that was silent long before": (
        [*steady(3), HEARTBEAT.format("00:05:10", "00:00:03")],
        ("unexplained-line", "nothing for 307 s"),
    ),
    "a scheduler that was silent shortly before": (
        [*steady(3), HEARTBEAT.format("00:00:01", "23:59:58")],
        ("unexplained-line", "worked until then"),
    ),
    "a transfer from the host, before any batch line": (
        [death(1, "AssertionError", frame="swa_component.py").replace("in step", "in build_hicache_transfers")],
        ("other-crash", "--enable-hierarchical-cache"),
    ),
    "a queue that stands": (
        [prefill(1, queued=2), *(answer(second, "GET /health", "200 OK") for second in range(20, 120, 20))],
        ("queue-stands", "no batch has run for 99 s"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_leads(case):
    lines, (rule, words) = CASES[case]
    first = findings_by_place(found_in(lines))[0]
    assert first.rule == rule
    assert words in " ".join((first.cause, *first.advice))


def findings_by_place(found):
    assert found, "a log that tells of a failure is not healthy"
    return [finding for finding in found if finding.confidence is found[0].confidence]


def test_the_watchdogs_pools_are_no_leak():
    lines, _ = CASES["the watchdog prints the pools of a batch that runs"]
    assert "pool-leak" not in {finding.rule for finding in found_in(lines)}
    idle = [*steady(3), BUSY.partition("\n")[2].partition("\n")[2]]
    assert {(finding.rule, finding.confidence) for finding in found_in(idle)} == {("pool-leak", Confidence.CERTAIN)}


QUIET = {
    "a model that is not here": f"{stamp(4)} Error in request: model 'gpt-4o' not found\n",
    "a picture that is not there": f"{stamp(4)} Error in request: An exception occurred while loading multimodal data: "
    "Error while loading data https://example.org/x.jpg: 404 Client Error: Not Found for url\n",
    "a bad temperature": f"{stamp(4)} Error in request: temperature must be non-negative, got -1.0.\n",
    "a router that serves": SMG.format(4, "INFO", "Circuit breaker configured failure_threshold=10"),
    "a failure that is avoided": f"{stamp(4)} Driver >= 595: using the triton MoE kernel to avoid a SIGSEGV.\n",
    "a port of an inner process": f"{stamp(4)} Port 31001 is already in use, trying port 31002\n",
    "a kernel that is compiled": "2026-01-01 00:00:04 - INFO - flashinfer.jit: Loading JIT ops: cascade\n",
    "experts that are moved": f"{stamp(4)} [EPLBManager] rebalance start\n",
    "drafts that are left out": f"{stamp(4)} Parameter model.layers.61.eh_proj.weight not found in params_dict\n",
    "a buffer that is left out": f"{stamp(4)} model.layers.0.self_attn.rotary_emb.inv_freq not found in params_dict\n",
    "files of the hub": f"{stamp(4)} Downloading https://huggingface.co/a/b/resolve/main/x, retry 1/5\n",
}


@pytest.mark.parametrize("case", QUIET)
def test_what_a_server_that_works_says(case):
    assert found_in([*steady(4), QUIET[case], *steady(4, 5)]) == ()


@pytest.mark.parametrize("waits", [0, 1])
def test_a_pool_that_is_well_used_binds_nobody_who_does_not_wait(waits):
    lines = [decode(second, full=0.94, swa=0.6, queued=waits * (second % 2)) for second in range(30)]
    assert found_in(lines) == ()
    lasting = [decode(second, full=0.94, swa=0.6, queued=1) for second in range(30)]
    assert [finding.rule for finding in found_in(lasting)] == ["binding-pool"]


@pytest.mark.parametrize(("running", "is_the_ratio"), [(1, False), (2, True)])
def test_a_pool_that_is_full_with_one_request_is_no_question_of_the_ratio(running, is_the_ratio):
    lasting = [decode(second, full=0.94, swa=0.6, running=running, queued=1) for second in range(30)]
    (found,) = (finding for finding in found_in(lasting) if finding.rule == "binding-pool")
    assert ("lower --swa-full-tokens-ratio" in found.cause) is is_the_ratio
    assert ("locks on the prefix cache" in found.cause) is not is_the_ratio


@pytest.mark.parametrize(
    "line",
    [
        "Fixing v5 tokenizer component mismatch for a: decoder A -> B",
        "Removed corrupted blob: b",
        "AutoProcessor failed on feature extractor for a, constructing processor manually",
    ],
)
def test_a_log_that_ends_in_what_was_mended(line):
    assert found_in([*steady(4), f"{stamp(5)} {line}\n"]) == ()


def test_a_queue_that_has_just_begun_to_wait():
    assert found_in([prefill(1, queued=2), answer(20, "GET /health", "200 OK")]) == ()
    assert found_in([prefill(1, queued=0), answer(120, "GET /health", "200 OK")]) == ()


def test_suspects_of_a_hang_are_named():
    settings = {
        "enable_hierarchical_cache": True,
        "speculative_algorithm": "EAGLE",
        "enable_dp_attention": True,
        "pp_size": 2,
    }
    (finding,) = found_in([started(**settings), *steady(3, 1), WATCHDOG])
    told = " ".join(finding.advice)
    for switch in ("--enable-hierarchical-cache", "--speculative-algorithm", "--enable-dp-attention", "--pp-size"):
        assert switch in told


def test_what_died_in_its_loop_had_started():
    """A log that was cut has no batch line, and its traceback still tells of a scheduler that served."""
    loop = '  File "/srv/sglang/scheduler.py", line 9, in event_loop_overlap\n    self.run()\n'
    begun = death(1, "KeyError: 7").replace('  File "/srv', f'{loop}  File "/srv', 1)
    (finding,) = found_in([begun])
    assert "one at a time" in finding.advice[0]
    (finding,) = found_in([death(1, "KeyError: 7")])
    assert "the arguments of the start" in finding.advice[0]


def test_a_compilers_words_below_the_source_that_it_quotes():
    words = "triton.compiler.errors.CompilationError: at 3:4:\n    q = tl.load(x)\n    ^\nUnsupported rhs dtype fp8e5"
    (finding,) = found_in([*steady(3), death(4, words, frame="another.py")])
    assert "Unsupported rhs dtype fp8e5" in finding.evidence[0].value
    assert "tl.load" not in finding.evidence[0].value


@pytest.mark.parametrize(("count", "said"), [(1, "1 such line"), (2, "2 such lines")])
def test_how_often_the_router_said_it(count, said):
    (finding,) = found_in([SMG.format(second, "ERROR", "No available workers") for second in range(count)])
    assert finding.evidence[0].meaning.endswith(f"; {said}")
