"""Claims that a start line, a pool or a split of servers narrows, and suspects of slow servers that load lines show."""

import pytest

from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import TRACEBACK, death, decode, died, found_in, only, prefill, stamp, started, told

STORE = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
STORE += "port: {}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
REFUSED = "Input length (90000 tokens) exceeds the maximum allowed length ({} tokens). Use a shorter input.\n"
POOLS = f"{stamp(0)} Use sliding window memory pool. full_layer_tokens=100000, swa_layer_tokens=20000\n"
NO_MODULE = (
    "ValueError: Cannot find target module name for base_model.model.model.layers.0.{}.lora_A.weight in {{'o_proj'}}"
)
NOT_STARTED = (
    "with exception KVTransferError(bootstrap_room=7): Request 7 timed out after 300.0s in KVPoll.Bootstrapping\n"
)
TIME_OUT = f"{stamp(9)} Decode transfer failed for request rank=0 decode_req.req.rid='a' {NOT_STARTED}"
COPIES = "disaggregation_decode_enable_offload_kvcache"
NO_ROOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.48 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 12.40 GiB is free. Process 20 has 46.02 GiB memory in use. Process 21 has 20.61 GiB memory in use.\n"
)
UNREAD = "Prefetch operation 0f failed to retrieve page 5b.\n"
SLOW = "E0714 22:51:09.771223  4410 transfer_task.cpp:204] Failed to complete transfers after 30 seconds for batch 1\n"


def shown(*lines: str) -> list[str]:
    return [one.id for one in suspects(read_log("server.log", ["".join(lines).encode()]))]


def test_a_port_that_the_start_names_was_not_chosen():
    asked = {"dist_init_addr": "10.0.0.1:20000", "nnodes": 2}
    of_replicas = only([started(dp_size=2, enable_dp_attention=False, **asked), death(1, STORE.format(20000))])
    assert "each of the 2 replicas" in of_replicas.cause
    of_one = only([started(dp_size=1, **asked), death(1, STORE.format(20000))])
    assert "ss -ltnp" in told(of_one)
    another = only([started(dp_size=2, **asked), death(1, STORE.format(43117))])
    assert "between choosing and using" in another.cause


@pytest.mark.parametrize(
    ("module", "words"),
    [("linear_attn.in_proj_qkvz", "merge the adapter"), ("mlp.down_proj", "--lora-target-modules all")],
)
def test_a_module_that_no_argument_adds_is_told_from_one_that_was_left_out(module, words):
    assert words in told(only([death(1, NO_MODULE.format(module), frame="lora/utils.py")]))


def test_a_limit_of_the_windows_pool_is_no_healthy_refusal_and_one_of_the_context_is():
    lines = [POOLS, prefill(1), f"{stamp(2)} {REFUSED.format(19994)}", decode(3)]
    finding = only(lines)
    assert finding.rule == "refused-for-room"
    assert "--disable-hybrid-swa-memory" in told(finding)
    assert found_in([POOLS, prefill(1), f"{stamp(2)} {REFUSED.format(65530)}", decode(3)]) == ()


def test_a_refusal_of_a_split_server_is_suspected_for_what_its_client_gets():
    lines = [prefill(1), f"{stamp(2)} {REFUSED.format(65530)}", decode(3)]
    assert shown(started(disaggregation_mode="prefill"), *lines)[0] == "refusal-behind-a-split"
    assert "refusal-behind-a-split" not in shown(started(disaggregation_mode="null"), *lines)


def test_a_full_pool_of_which_hardly_a_request_runs_is_no_want_of_capacity():
    start = started(disaggregation_mode="decode", **{COPIES: True})
    kept = only([start, decode(1, running=44), decode(2, running=0, full=0.97, graph=False), TIME_OUT])
    assert kept.rule == "kv-transfer"
    assert kept.advice[0].startswith(f"without --{COPIES.replace('_', '-')}")
    for last in (decode(2, running=40, full=0.97), decode(2, running=0, full=0.1)):
        assert "more decode capacity or fewer requests" in told(only([start, decode(1, running=44), last, TIME_OUT]))


def test_a_trainer_beside_a_server_is_not_told_of_activations():
    frames = '  File "/root/megatron/core/distributed/param_and_grad_buffer.py", line 741, in __init__\n    zeros()\n'
    lines = [POOLS, f"{stamp(2)} trainer\n{TRACEBACK}{frames}{NO_ROOM}"]
    told_of = told(only([started(enable_memory_saver=True), *lines]))
    assert "process 20 holds 46.0 GiB" in told_of
    assert "--disable-hybrid-swa-memory" in told_of
    assert "The trainer, not the server" not in told(only([started(enable_memory_saver=False), *lines]))


def test_pages_that_are_listed_and_not_read_are_of_a_store_that_lost_them():
    lines = [prefill(1), SLOW, f"{stamp(2)} {UNREAD}", SLOW, f"{stamp(3)} {UNREAD}", decode(4)]
    assert "take its segment out of the store" in told(found_in(lines)[0])
    assert "segment" not in told(found_in([line for line in lines if line is not SLOW])[0])


@pytest.mark.parametrize(
    ("settings", "lines", "suspect"),
    [
        (
            {"cuda_graph_max_bs": 24},
            [decode(1, running=24), decode(2, running=32, graph=False, rate=800)],
            "batches-above-the-graphs",
        ),
        ({"schedule_policy": "lpm"}, [prefill(1, new=1000, cached=9000, queued=5)], "longest-prefix-first"),
        (
            {"enable_hierarchical_cache": True, "hicache_write_policy": "write_back"},
            [POOLS, prefill(1)],
            "windows-not-written-back",
        ),
    ],
)
def test_load_lines_show_why_a_server_may_be_slow(settings, lines, suspect):
    assert suspect in shown(started(**settings), *lines)
    assert suspect not in shown(started(model_path="m"), *lines)
    assert suspect not in shown(started(**settings), decode(3))


class TestRoomsFeaturesAndGraphs:
    GONE = "FileNotFoundError: [Errno 2] No such file or directory: '/psm_9c2e41fa'"
    BUS = (
        'Fatal Python error: Bus error\n\nCurrent thread 0x1 (most recent call first):\n  File "/a/{}", line 7 in {}\n'
    )
    CAPTURED = f"{stamp(1)} Capture prefill cuda graph begin. backend=tc_piecewise\n"
    EAGER = f"{stamp(2)} Disable prefill CUDA graph because cuda_graph_config resolved\n"

    def test_features_that_a_rank_unpacks_are_not_gone_for_want_of_room(self):
        told_of = told(only([died(self.GONE, ("managers/mm_utils.py", "__setstate__", "x = f(y)"))]))
        assert ("something had removed" in told_of, "--shm-size" in told_of) == (True, False)

    @pytest.mark.parametrize(("file", "function", "room"), [("mm_utils.py", "wrap_shm_features", True),
                                                            ("reader.py", "read_table", False)])  # fmt: skip
    def test_a_bus_error_is_of_shared_memory_where_its_frame_is(self, file, function, room):
        finding = only([decode(1), self.BUS.format(file, function)])
        assert finding.rule == "bus-error"
        assert (finding.confidence.value == "likely", "--shm-size" in told(finding)) == (room, room)

    def test_a_graph_of_prefills_is_suspected_where_one_of_two_starts_has_it(self):
        assert "graph-of-prefills" in shown(self.EAGER, self.CAPTURED, decode(3))
        assert "graph-of-prefills" not in shown(self.CAPTURED, decode(3))


CIRCULAR = "(most likely due to a circular import)"
READER = (("json/__init__.py", "loads", "x = f(y)"), ("json/decoder.py", "raw_decode", "x = f(y)"))
REPOSITORY = "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-a)"
ALL_REDUCE = "RuntimeError: Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 '{}'"


class TestWordsOfSeveralCauses:
    """Words that a library has for more than one cause: what stands beside them tells which, or both are said."""

    def found(self, last: str, *frames: tuple[str, str]):
        return found_in([died(last, *((*frame, "x = f(y)") for frame in frames or (("managers/a.py", "step"),)))])[0]

    @pytest.mark.parametrize(
        ("last", "rule", "words"),
        [
            ("ImportError: /a/b.so: undefined symbol: cuTensorMapEncodeTiled", "wheels-do-not-fit", "-lcuda"),
            ("ImportError: /a/b.so: undefined symbol: cuGreenCtxStreamCreate", "wheels-do-not-fit", "driver is older"),
            (
                "ImportError: cannot import name 'f' from 'flash_attn' (unknown location)",
                "wheels-do-not-fit",
                "bare folder",
            ),
            ("AttributeError: module 'torch.distributed' has no attribute 'ReduceOp'", "wheels-do-not-fit", "Jetson"),
            (
                "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
                "wheels-do-not-fit",
                "torchvision was built without CUDA",
            ),
            (
                "ValueError: Couldn't instantiate the backend tokenizer from one of:",
                "wheels-do-not-fit",
                "pip list | grep -i -e sentencepiece",
            ),
            (
                "ValueError: Model architectures ['A'] are not supported for now. Supported architectures: x",
                "wheels-do-not-fit",
                "Ignore import error",
            ),
            (REPOSITORY, "weights-missing", "misspelt"),
            (
                "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-a)",
                "weights-missing",
                "accept the licence",
            ),
            (
                "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://cdn.example.com/a.jpg",
                "weights-missing",
                "image",
            ),
            (
                "huggingface_hub.errors.EntryNotFoundError: 404 Client Error. (Request ID: Root=1-a)",
                "weights-missing",
                "no file of the name",
            ),
            ("safetensors_rust.SafetensorError: device npu:0 is invalid", "weights-missing", "files are whole"),
            ("AttributeError: '_OpNamespace' '_C' object has no attribute 'f'", "told-by-words", "vllm._C"),
            (
                "AttributeError: '_OpNamespace' 'sglang' object has no attribute 'f'",
                "told-by-words",
                "in Python itself",
            ),
            ("AttributeError: '_OpNamespace' 'symm_mem' object has no attribute 'f'", "told-by-words", "torch's own"),
            (ALL_REDUCE.format("invalid argument"), "told-by-words", "CUDA IPC"),
            ("ModuleNotFoundError: No module named 'cuda.tile'", "told-by-words", "cuda-tile"),
            ("ModuleNotFoundError: No module named 'cutlass.utils.a'", "told-by-words", "of another release"),
            ("ModuleNotFoundError: No module named 'deep_ep_cpp'", "told-by-words", "clone"),
            ("OSError: Can't load tokenizer for 'org/name'. If you", "told-by-words", "HF_HUB_OFFLINE"),
            (
                "ValueError: Cannot find any of ['desc_act'] in the model's quantization config.",
                "told-by-words",
                "--quantiz",
            ),
            (
                f"AttributeError: partially initialized module 'torchvision' has no attribute 'a' {CIRCULAR}",
                "told-by-words",
                "index",
            ),
            (
                f"ImportError: cannot import name 'A' from partially initialized module 'sglang.srt.a' {CIRCULAR}",
                "told-by-words",
                "SGLang 7919",
            ),
            (
                f"AttributeError: partially initialized module 'cv2' has no attribute 'a' {CIRCULAR}",
                "told-by-words",
                "every opencv-*",
            ),
            ("RuntimeError: mbind: Invalid argument", "told-by-words", "--cpuset-mems"),
            ("RuntimeError: SO_ERROR: Connection refused, remote=[127.0.0.1]:20345", "told-by-words", "on one node"),
            (
                "ValueError: Unable to find matching target for mtp.layers.0.fc in the compressed-tensors config.",
                "told-by-words",
                "layer mtp.layers.0.fc",
            ),
            (
                "DSLCudaRuntimeError: (b'cudaErrorInsufficientDriver') (error code: 35)",
                "told-by-words",
                "cuda-python<13",
            ),
            ("RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", "told-by-words", "is missing"),
            ("zmq.error.Again: Resource temporarily unavailable", "host-limits", "no limit of the host"),
            ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "host-limits", "ulimit -u"),
            ("RuntimeError: can't start new thread", "host-limits", "20.10.10"),
            ("RuntimeError: ibv_reg_mr failed: Bad address [14]", "host-limits", "nvidia_peermem"),
            ("RuntimeError: ibv_create_qp failed", "expert-transport", "Mooncake"),
            (
                "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `a`",
                "kernel-failed",
                "LD_LIBRARY_PATH",
            ),
            (
                "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `a`",
                "kernel-failed",
                "first is not the one",
            ),
            (STORE.format(29500), "start-refused", "what is left of an earlier server"),
            (
                "ClientConnectorError: Cannot connect to host localhost:1 [Cannot assign requested address]",
                "start-refused",
                "IPv6",
            ),
            (
                "PicklingError: Can't pickle <class 'transformers_modules.a.B'>: it's not",
                "start-refused",
                "HF_MODULES_CACHE",
            ),
            ("RuntimeError: rank 3 waited, and its time exceeded the limit", "refused-by-check", ""),
            ("RuntimeError: it has no such CAPABILITY", "refused-by-check", ""),
        ],
    )
    def test_what_the_words_name(self, last, rule, words):
        finding = self.found(last)
        assert (finding.rule, words in told(finding)) == (rule, True)

    @pytest.mark.parametrize(
        ("last", "rule", "words"),
        [
            ("ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints.", "told-by-words", "vLLM 45040"),
            ("ValueError: LoRA adapter path /a does not exist", "lora-refused", "not mounted"),
            ("ValueError: LoRA adapter a is not loaded", "lora-refused", "/v1/models"),
            ("RuntimeError: Unsupported hidden size 2816", "expert-transport", "DeepEP"),
            ("RuntimeError: cuMemCreate: CU_MEM_HANDLE_TYPE_FABRIC", "expert-transport", "nvidia-imex"),
            ("RuntimeError: Cannot find any model weights with `/models/m`", "weights-missing", "links into blobs"),
            ("RuntimeError: HTTP server did not become live at http://[::1]:1/liveness", "told-by-words", "IPv6"),
            ("RuntimeError: Triton Error [CUDA]: invalid argument", "told-by-words", "the triton that torch pins"),
            (
                "AttributeError: 'CudaGraphConfig' object has no attribute 'a'",
                "wheels-do-not-fit",
                "of the server's own",
            ),
            (
                "AttributeError: 'Qwen3Config' object has no attribute 'a'",
                "wheels-do-not-fit",
                "The model's Qwen3Config",
            ),
            (
                "ValueError: Unrecognized configuration class <class 'a.b.AConfig'> to build an AutoTokenizer.",
                "weights-missing",
                "no AutoTokenizer for",
            ),
            ("NotImplementedError: The page size of the layer is not divisible by", "told-by-words", "VLLM_PP_LAYER"),
            (
                "ValueError: No available memory for the cache blocks. Try",
                "told-by-words",
                "a second server on one card",
            ),
            ("DetectedError: The adapter has use_dora set", "told-by-words", "merge_and_unload"),
            (
                "RuntimeError: The detected CUDA version (12.4) mismatches the version that was used to compile\n"
                "PyTorch (13.0). Please make sure to use the same CUDA versions.",
                "wheels-do-not-fit",
                "toolkit of CUDA 12.4",
            ),
        ],
    )
    def test_what_else_the_words_may_be_of(self, last, rule, words):
        finding = self.found(last)
        assert (finding.rule, words in told(finding)) == (rule, True)

    @pytest.mark.parametrize(
        "last",
        [
            "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'use_dora'",
            "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://a.example/b.jpg",
            "RuntimeError: it requires sm >= 90, but got 80",
            "RuntimeError: it requires python >= 3.10, but found 3.9",
        ],
    )
    def test_what_only_looks_like_such_words_is_not_told_so(self, last):
        assert self.found(last).rule not in ("told-by-words", "weights-missing")

    @pytest.mark.parametrize(
        ("said", "confidence", "words"),
        [
            ("HTTP server did not become ready at http://[::1]:1/health", "likely", "127.0.0.1 or 0.0.0.0"),
            ("Invalid port: ':1]'", "likely", "no_proxy"),
            ("the third wheel came off", "possible", "real requests would mostly meet it too"),
        ],
    )
    def test_a_first_request_that_failed_is_not_always_unheard(self, said, confidence, words):
        finding = found_in([f"Server warmup failed; aborting startup: {said}\n"])[0]
        assert (finding.confidence.value, words in told(finding)) == (confidence, True)

    @pytest.mark.parametrize(
        ("last", "confidence"),
        [
            (ALL_REDUCE.format("an illegal memory access was encountered"), "possible"),
            (
                "RuntimeError: Failed to apply AProcessor on data={'text': 'x'} with kwargs={'truncation': False}",
                "possible",
            ),
            (
                "RuntimeError: Failed to apply AProcessor on data={'text': 'x'} with kwargs={'use_audio_in_video': 1}",
                "likely",
            ),
            ("triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error", "possible"),
            (STORE.format(29500), "likely"),
        ],
    )
    def test_how_sure_it_is(self, last, confidence):
        assert self.found(last).confidence.value == confidence

    @pytest.mark.parametrize(
        ("last", "frames", "rule", "words"),
        [
            (
                "OSError: [Errno 5] Input/output error",
                (("logging/__init__.py", "emit"),),
                "told-by-words",
                "the terminal",
            ),
            ("OSError: [Errno 5] Input/output error", (("loader.py", "read"),), "told-by-words", "dmesg -T"),
            (
                "UnicodeDecodeError: 'ascii' codec can't decode byte 0xe2",
                (("hub.py", "read"),),
                "told-by-words",
                "UTF8=1",
            ),
            ("binascii.Error: Incorrect padding", (("load.py", "load_tiktoken_bpe"),), "told-by-words", "vocabulary"),
            ("binascii.Error: Incorrect padding", (("utils.py", "load_image"),), "told-by-words", "request's image"),
            (
                "socket.gaierror: [Errno -3] Temporary failure in name resolution",
                (("connection.py", "_new_conn"),),
                "told-by-words",
                "HF_ENDPOINT",
            ),
            (
                "RuntimeError: CUDART error: out of memory",
                (("a.py", "create_shared_buffer"),),
                "told-by-words",
                "no room",
            ),
            ("torch.OutOfMemoryError: CUDA out of memory. ", (("vit_cuda_graph_a.py", "run"),), "out-of-memory", "mem"),
        ],
    )
    def test_where_it_stands_tells_which(self, last, frames, rule, words):
        finding = self.found(last, *frames)
        assert (finding.rule, words in told(finding)) == (rule, True)

    @pytest.mark.parametrize(
        ("said", "file", "function", "words"),
        [
            ("Expecting value: line 1 column 1 (char 0)", "function_call/a_detector.py", "parse", "tool call"),
            ("Expecting value: line 1 column 1 (char 0)", "transformers/configuration_utils.py", "read", "config.json"),
            ("Expecting value: line 1 column 1 (char 0)", "disaggregation/conn.py", "poll", "the other side failed"),
            ("Expecting property name enclosed in double quotes", "function_call/a_detector.py", "parse", "max_tokens"),
            ("Expecting property name enclosed in double quotes", "server_args.py", "parse", "in single quotes"),
        ],
    )
    def test_who_read_the_json_is_asked_behind_its_reader(self, said, file, function, words):
        frames = ((file, function, "x = f(y)"), *READER)
        assert words in told(found_in([died(f"json.decoder.JSONDecodeError: {said}", *frames)])[0])

    @pytest.mark.parametrize(
        ("last", "frame", "words"),
        [
            ("HfHubHTTPError: Invalid credentials in Authorization header", "a.py step", "hf auth whoami"),
            ("SafetensorError: File does not contain tensor a.b", "a.py step", "no tensor a.b"),
            (
                "EntryNotFoundError: Entry Not Found for url: https://h/a/b/resolve/main/c.json.",
                "a.py step",
                "file c.json",
            ),
            (
                "Error: Failed to pull image: failed to register layer: no space left on device",
                "a.py step",
                "images lie",
            ),
            ("Error: toomanyrequests: You have reached your pull rate limit", "a.py step", "docker login"),
            ("BlockingIOError: [Errno 11] write could not complete without blocking", "a.py step", "its pipe"),
            ("DSLCudaRuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS", "a.py step", "CUDA_LAUNCH_BLOCKING=1"),
            ("RuntimeError: MPS client failed to connect to the MPS control daemon", "a.py step", "another user"),
            ("RuntimeError: Error 802: system not yet initialized", "a.py step", "conf-compute"),
            ("RuntimeError: 0/9 nodes are available: 9 Insufficient nvidia.com/gpu", "a.py step", "kubectl get pvc"),
            ("RuntimeError: No HIP GPUs are available", "a.py step", "Ray or Slurm"),
            ("RuntimeError: CUDA-capable device(s) is/are busy or unavailable", "a.py step", "MIG"),
            ("RuntimeError: Failed to initialize NVML: Unknown Error", "a.py step", "cgroups v2"),
            ("RuntimeError: set_mempolicy: Operation not permitted", "a.py step", "SYS_NICE"),
            ("ValueError: Can't find 'adapter_config.json' at 'a/b'", "a.py step", "not mounted here"),
            ("TypeError: flash_attn_varlen_func() got an unexpected keyword argument 'ver'", "a.py step", "flash-attn"),
            ("JSONDecodeError: Extra data: line 1 column 30 (char 29)", "a.py step", "a bracket too many"),
            ("KeyError: 'timestamps'", "a.py _get_prompt_updates", "transformers that the server's release pins"),
            (
                "RuntimeError: The size of tensor a (32000) must match the size of tensor b (152064) at",
                "logits_processor.py step",
                "without drafts",
            ),
            (
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                "a.py flush_cache",
                "earlier kernel",
            ),
            ("TypeError: cannot pickle 'module' object", "a.py step", "whose object it is"),
            ("OSError: [Errno 98] Address already in use", "a.py step", "--disaggregation-bootstrap-port"),
            ("RuntimeError: the launch timed out and was terminated", "a.py step", "TdrDelay"),
            ("AssertionError: assert self.chunked_req is None", "a.py step", "SGLang 2255"),
            ("RuntimeError: Could not find CUDA lib directory.", "a.py step", "with such a GPU"),
            ("RuntimeError: Mismatched number of arguments when calling: `f`", "a.py step", "tvm-ffi"),
            ("AttributeError: Tried to instantiate class '_core_C.A', but", "a.py step", "import vllm._C"),
            ("RuntimeError: deep_ep: cudaIpcOpenMemHandle failed", "a.py step", "--ipc=host"),
            (
                f"AttributeError: partially initialized module 'a' has no attribute 'b' {CIRCULAR} (/h/a.py)",
                "b.py step",
                "rename that file",
            ),
        ],
    )
    def test_what_was_added_to_a_cause_or_its_steps(self, last, frame, words):
        file, _, function = frame.partition(" ")
        assert words in told(self.found(last, (file, function)))

    def test_an_answer_that_is_no_json_is_of_the_first_request_where_that_was_asked(self):
        asked = ("models.py", "json")
        sure = self.found("requests.exceptions.JSONDecodeError: x", ("http_server.py", "_wait_and_warmup"), asked)
        assert (sure.rule, sure.confidence.value) == ("start-refused", "likely")
        other = self.found("requests.exceptions.JSONDecodeError: x", ("conn.py", "poll"), asked)
        assert (other.confidence.value, "another server that it asked" in told(other)) == ("possible", True)
