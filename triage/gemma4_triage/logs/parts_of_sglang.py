"""The parts of SGLang: which one a frame's file or function is of, or the words of an exception without frames."""

from __future__ import annotations

import re
from typing import NamedTuple

from gemma4_triage.logs.facts import Death
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.tracebacks import FOLDER_OF


class Part(NamedTuple):
    """A part of SGLang.

    Attributes:
        files: where its code lies, below sglang/srt.
        what: what a refusal there concerns.
        look: what to do about it beside what its words say.
    """

    files: re.Pattern[str]
    what: str
    look: str


def _part(files: str, what: str, look: str) -> Part:
    return Part(pattern(files), what, look)


ARGUMENTS = _part(
    r"server_args|arg_groups/|utils/.*arg",
    "the arguments of the start",
    "change the arguments that its words name and start again; launch_server --help of this release names "
    "choices; where it compares None, such as on a CPU, give --mem-fraction-static, --chunked-prefill-size and "
    "--cuda-graph-max-bs",
)
_HOST_CACHE = _part(
    r"mem_cache/(?:hi|.*host)|managers/cache_controller",
    "the hierarchical cache",
    "once without --enable-hierarchical-cache; --hicache-size, --hicache-mem-layout and --hicache-io-backend",
)
_STATES = _part(
    r"mem_cache/.*mamba|layers/attention/(?:mamba|linear|fla)/",
    "models that keep states (Mamba, GDN), with the prefix cache of their states",
    "once with --disable-radix-cache; pages that this cache takes (--page-size 1, or the extra_buffer strategy of "
    "--mamba-radix-cache-strategy, --mamba-scheduler-strategy in earlier releases); more states "
    "(--max-mamba-cache-size, --mamba-full-memory-ratio) or fewer requests at once (--max-running-requests); then a "
    "later release",
)
_OF_STATES = pattern(r".* \w*mamba\w*$|\w*mamba\w*\.py:")
_ANSWER = _part(
    r"entrypoints/|openai_api/",
    "how an answer is put together, behind the model",
    "what the answer lacks is mostly that of a request that was aborted, retracted or cut short before its first "
    "token, or of a field that was asked for (logprobs, usage, weight_version): that request alone; then a later "
    "release",
)
_ANSWERS = pattern(r".* \w*(?:_response|response_|_stream|_chunk|_output|_usage)\w*$")
_POOLS = _part(
    r"mem_cache/.*memory_pool",
    "how the KV pools are laid out",
    "what this server was asked for beside the model's own choice: once without --kv-cache-dtype, --page-size and "
    "--attention-backend; not every GPU and model has every form of them; then a later release",
)
_LAID_OUT = pattern(r".* (?:__init__|_?create_\w*|_?init_\w*)$")
_OF_THE_HOST = pattern(
    r".* \w*(?:hicache|load_back|write_back|writing_check|loading_check|backup|prefetch_from|host)\w*$"
)
_WEIGHTS = _part(
    r"model_loader/",
    "how the weights are loaded",
    "--load-format and --quantization have to be the checkpoint's; see that all its files are there; once the "
    "publisher's own checkpoint",
)
_RANKS = _part(
    r"distributed/|layers/dp_attention|managers/data_parallel",
    "how ranks are set up",
    "--tp, --dp, --ep, --pp, --nnodes and --node-rank have to fit each other and the GPUs on every node",
)
OF_IMAGES = _part(
    r"layers/attention/vision",
    "the attention of the image encoder, which --attention-backend does not set",
    "--mm-attention-backend sdpa (on a CPU, or where fa3 is refused) or triton_attn; then a later release, which "
    "chooses it by the device",
)
_BACKEND = _part(
    r"layers/attention/",
    "the attention backend",
    "another --attention-backend (triton serves most models and GPUs), or a later release",
)
_SENT = (
    "names, shapes, dtype, quantisation and parallelism that the trainer sends have to be the server's; both of "
    "releases that fit each other (SGLang's, torch's and the trainer's); once with the weights on disk"
)
LAUNCH = _part(
    r"entrypoints/.*(?:engine|http_server)",
    "how the server and its processes are started",
    "the first exception of any process counts; send a request that failed alone; then a later release",
)
REQUEST = _part(
    r"entrypoints/|openai_api/|managers/(?:tokenizer|multi_tok|template|io_struct)",
    "a request, before the scheduler sees it",
    "send that request alone and mend what its words name; if it is well formed, a later release",
)
_RUNS = pattern(r"model_executor/|managers/tp_worker")
_STEPS = (
    # What the code that runs a model is about to do, by the function that does it.
    (pattern(r".* _?(?:load_model|load_weights\w*|get_model\w*|initialize_model)$"), _WEIGHTS),
    (pattern(r".* _?(?:init_torch_distributed|init_distributed\w*|initialize_model_parallel)$"), _RANKS),
    (
        pattern(r".* _?(?:profile_max\w*|init_memory_pool\w*|init_pools?|\w*max_total_num_tokens|set_num_token\w*)$"),
        _part(
            r"$^",
            "how much memory the KV pools get",
            "--mem-fraction-static up by 0.05 if the weights leave too little, down if something else needs memory; "
            "--max-total-tokens and --max-running-requests as they fit; nvidia-smi: what else lies on the GPU",
        ),
    ),
    (pattern(r".* _?(?:init_attention_backend\w*|get_attention_backend\w*)$"), _BACKEND),
    (
        pattern(r".* \w*(?:update_weights|update_bucketed|unwrap_tensor|weights_update|weight_sync)\w*$"),
        _part(r"$^", "new weights that a trainer puts into the running server", _SENT),
    ),
)
# The first whose files fit counts.
_PARTS = (
    ARGUMENTS,
    _part(
        r"configs/",
        "the model's configuration",
        "compare config.json with the publisher's; a release of SGLang (with its transformers) that knows this model; "
        "then what overrides it: --context-length, --dtype, --quantization, --json-model-override-args",
    ),
    _WEIGHTS,
    _part(
        r"layers/quantization/|.*(?:quant|fp[48]|awq|gptq|marlin)",
        "quantised layers",
        "leave --quantization out where config.json names the method; a later release, or the model in bfloat16",
    ),
    _part(
        r"layers/moe/|eplb/|elastic_ep/",
        "the experts of a MoE model",
        "another --moe-runner-backend or --moe-a2a-backend, or a --tp and --ep that fit the number of experts",
    ),
    OF_IMAGES,
    _BACKEND,
    _part(
        r"disaggregation/encode",
        "the split of an image encoder from the language model",
        "the encoder's and the language model's servers have to be of one release; look into both logs",
    ),
    _part(
        r"disaggregation/|distributed/.*mooncake",
        "the split of prefill and decode servers",
        "both sides: one release, one model, page size and KV type, and a --tp that the transfer backend allows; once "
        "with the other of --disaggregation-transfer-backend mooncake and nixl",
    ),
    _part(
        r"mem_cache/storage/",
        "the storage behind the hierarchical cache",
        "see that its service runs and that --hicache-storage-backend-extra-config is right; once without "
        "--hicache-storage-backend",
    ),
    _HOST_CACHE,
    _STATES,
    _part(r"mem_cache/", "the KV pools or the prefix cache", "once with --disable-radix-cache; a later release"),
    _part(
        r"lora/",
        "LoRA adapters",
        "--max-lora-rank and --lora-target-modules have to cover the adapter, which has to be the model's; where "
        "shapes differ a --tp of at most the model's KV heads, then a later release; once without the adapter",
    ),
    _part(
        r"multimodal/|managers/(?:mm_utils|multimodal)",
        "images, video or sound of a request",
        "send that request alone: its media may be damaged, of another format or more than the model takes; its "
        "prompt has to hold one mark of an image for each, and input_ids that the client's own processor expanded are "
        "expanded once more: send text; then a later release",
    ),
    _part(
        r"speculative/",
        "speculative decoding",
        "once without --speculative-algorithm; the draft has to be made for this model and this algorithm",
    ),
    _part(
        r"constrained/",
        "structured output",
        "send that request's schema, regex or grammar alone; another --grammar-backend",
    ),
    _RANKS,
    _part(
        r"sampling/", "the sampling parameters of a request", "mend the request: its client sent what its words name"
    ),
    _part(
        r"function_call/|parser/",
        "the parsers of answers",
        "--tool-call-parser and --reasoning-parser have to be the model's",
    ),
    LAUNCH,
    REQUEST,
    _part(
        r"models/",
        "this release's code of the model",
        "once the publisher's own checkpoint, and once with --tp 1; then a later release, whose code of it differs",
    ),
    _part(
        r"layers/", "a layer of the model", "once with other backends and --disable-cuda-graph; then a later release"
    ),
    _part(
        r"hardware_backend/mlx/",
        "how models run on Apple's GPUs (MLX)",
        "this release's MLX runner serves models with plain attention: a later release for others (such as with linear "
        "attention, Qwen3.5), or mlx-lm itself",
    ),
    _part(
        r"model_executor/|hardware_backend/",
        "how the model is run",
        "once with --disable-cuda-graph; then another --attention-backend, or a later release",
    ),
    _part(
        r"(?:utils/)?hf_transformers|utils/tokenizer|tokenizer/",
        "the checkpoint's configuration, tokenizer and processor",
        "these files anew from the publisher's repository; the transformers of SGLang's pyproject, or a later release "
        "of both; --trust-remote-code if the repository has code",
    ),
    _part(
        r"managers/detokenizer",
        "how tokens become text",
        "the publisher's own tokenizer; once without --speculative-algorithm; fewer requests at once; then a later "
        "release",
    ),
    _part(
        r"utils/|environ|configs",
        "what the server found around it: its ports, devices, packages and environment variables",
        "mend what its words name in the server's environment, then start again",
    ),
    _part(
        r"observability/|metrics/|tracing/",
        "metrics and traces of the server",
        "once without --enable-metrics, --enable-trace, --enable-forward-pass-metrics and request logging; "
        "PROMETHEUS_MULTIPROC_DIR of a folder of its own; then a later release",
    ),
    _part(
        r"compilation/",
        "compiled graphs of prefills, and torch.compile",
        "--disable-piecewise-cuda-graph (--cuda-graph-backend-prefill disabled from 0.5.14), without "
        "--enable-torch-compile; then a later release, with the torch that it pins",
    ),
    _part(
        r"batch_overlap/|two_batch|operations",
        "the overlap of two halves of a batch",
        "without --enable-two-batch-overlap and --enable-single-batch-overlap; then a later release",
    ),
    _part(
        r"connector/|weight_cache/",
        "weights that are read from another machine or from a cache of them",
        "once from a local folder with --load-format auto, and without --weight-cache-mode; the address, its rights "
        "and the client's package (boto3, redis, azure)",
    ),
    _part(
        r"weight_sync/|checkpoint_engine/",
        "new weights that a trainer puts into the running server",
        _SENT,
    ),
    _part(
        r"dllm/",
        "language models that write by diffusion",
        "--dllm-algorithm has to be the model's; once with --disable-cuda-graph and --disable-radix-cache; a later "
        "release",
    ),
    _part(r"multiplex/", "prefill and decode on shares of one GPU", "without --enable-pdmux; then a later release"),
    _part(
        r"state_capturer/",
        "what a trainer asks to be returned of inner states (routed experts, indices)",
        "without --enable-return-routed-experts and --enable-return-indexer-topk; then a later release",
    ),
    _part(r"beam_search/", "requests that search with beams", "once without beams; then a later release"),
    _part(
        r"session/",
        "sessions of requests",
        "once with requests without session_params, and without --enable-streaming-session; then a later release",
    ),
    _part(
        r"platforms/|kernel_plugins/|plugins/|batch_invariant|rust_|kernels/|jit_kernel/",
        "kernels and plug-ins for this device",
        "another --attention-backend, --moe-runner-backend and --sampling-backend, without "
        "--enable-deterministic-inference; kernels compiled here need nvcc of torch's CUDA, and "
        "rm -r ~/.cache/tvm-ffi once; SGLang's image for this device",
    ),
    _part(r"ray/", "processes of the server that Ray starts", "once without --use-ray; ray status and ray logs"),
    _part(
        r"kv_canary/|debug_utils/",
        "SGLang's own aids for debugging",
        "once without --kv-canary and dumps: the aid itself may be at fault",
    ),
    _part(
        r"multimodal_gen/.*(?:loader|weights)",
        "how the parts of a diffusion pipeline are loaded",
        "the publisher's own repository, whole, of a pipeline that this release lists; --quantization only if each "
        "part is made with it; diffusers and transformers of SGLang's pyproject; then a later release",
    ),
    _part(
        r"multimodal_gen/",
        "a diffusion pipeline (images, video)",
        "once without offload (--text-encoder-cpu-offload, --dit-cpu-offload, --dit-layerwise-offload, "
        "--vae-cpu-offload: false), with --attention-backend torch_sdpa, with --num-gpus 1, and without "
        "--enable-torch-compile; then a later release",
    ),
    _part(
        r"bench_|benchmark/|test/",
        "a benchmark or a test, which is a client and not the server",
        "the server's own log at that time; its release and that of the benchmark the same; the files and the "
        "tokenizer that the benchmark was given",
    ),
    _part(
        r"lang/",
        "SGLang's front-end language, which is a client and not the server",
        "the server's own log at that time; the release of both the same",
    ),
    _part(
        r"managers/",
        "the scheduler's own bookkeeping",
        "once with --disable-overlap-schedule; send the last requests again, one at a time; then a later release",
    ),
)


_WHILE_SERVING = pattern(r".* (?:event_loop_\w+|run_batch|recv_requests)$")


def _asked_by(death: Death) -> Part | None:
    """Return whose part called a helper of SGLang's while it served, for which it is of no part; None if nobody did."""
    if not any(map(_WHILE_SERVING.match, death.frames)):
        return None
    files = (frame.partition(":")[0] for frame in reversed(death.frames[:-1]))
    return next((part_of_file(f"{FOLDER_OF[file]}/{file}") for file in files if file in FOLDER_OF), None)


_LOOP = pattern(r"\S+\.py:\S+ (?:run_scheduler_process|run_event_loop|dispatch_event_loop|event_loop_\w+)$")


def _with_file(death: Death) -> str:
    """Return the innermost frame whose file is shown; "" if there is none."""
    return next((frame for frame in reversed(death.frames) if not frame.startswith(" ")), "")


def is_shortened(death: Death) -> bool:
    """Say whether the innermost file shown only holds the loop of a scheduler: what raised it was left out."""
    with_file = _with_file(death)
    own = death.frames[-1:] == (with_file,) and death.statement.startswith(("raise ", "assert "))
    return _LOOP.match(with_file) is not None and not own


def part_of(death: Death) -> Part | None:
    """Return the part of SGLang whose file raised it; None if it is another's file, or was left out."""
    if not death.path or is_shortened(death):
        return None
    if death.path.startswith("utils/") and (asked := _asked_by(death)) is not None:
        return asked
    if (
        death.path.startswith("mem_cache/")
        and not death.path.startswith("mem_cache/storage/")
        and any(map(_OF_THE_HOST.match, death.frames))
    ):
        return _HOST_CACHE
    if not _HOST_CACHE.files.match(death.path) and any(map(_OF_STATES.match, death.frames[-2:])):
        return _STATES
    frame = _with_file(death)
    if _ANSWERS.match(frame) and death.path.startswith(("entrypoints/", "openai_api/")):
        return _ANSWER
    if _POOLS.files.match(death.path) and _LAID_OUT.match(frame):
        return _POOLS
    if _RUNS.match(death.path) and (step := next((one for name, one in _STEPS if name.match(frame)), None)):
        return step
    return part_of_file(death.path)


_SPEAKS_OF = (
    # What an exception without its frames speaks of, and a file of that part.
    (r"\bgrammar|xgrammar|json_schema|structural_tag|token bitmask", "constrained/"),
    (r"\blora\b|\badapter", "lora/"),
    (r"speculat|\bdraft|\beagle|\bmtp\b|spec_info|verif(?:y|ied)_", "speculative/"),
    (r"mooncake store|hicache.?storage|\bhf3fs|storage backend", "mem_cache/storage/"),
    (r"hicache|hierarchical|load_back|write_back|host (?:pool|memory pool|indices)", "mem_cache/hiradix_cache.py"),
    (r"\bmamba|\bgdn\b|linear attention|conv_state", "mem_cache/mamba_radix_cache.py"),
    (r"disaggregat|bootstrap|\bprefill (?:server|instance|worker)|kv transfer|nixl|mooncake", "disaggregation/"),
    (r"\bimages?\b|\bvideo|\baudio|multimodal|pixel_values|\bmm_|vision", "multimodal/"),
    (r"topk_indices_offset|\bindexer\b|page_table|block_tables?\b", "layers/attention/"),
    (r"\bmoe\b|\bexperts?\b|deep_?ep|topk_|fused_moe", "layers/moe/"),
    (r"quanti[sz]|\bfp[48]|nvfp4|\bawq|gptq|marlin|mat_[ab]\b|scaled_mm|_scale\b", "layers/quantization/"),
    (r"attention|flash_?attn|flashinfer|\bmla\b|num_splits|head_dim|kv_indptr|qo_indptr", "layers/attention/"),
    (r"\bradix|lru list|lock_ref|evict|unified ?(?:radix|tree)|\bswa\b|kv pool|token_to_kv", "mem_cache/"),
    (r"tokenizer|chat template|\bvocab", "tokenizer/"),
    (r"weights?\b|checkpoint|state_dict|safetensors", "model_loader/"),
    (r"cuda ?graph|captur", "model_executor/"),
)


def part_spoken_of(death: Death) -> Part | None:
    """Return the part of SGLang that an exception without frames of its own speaks of; None if it names none."""
    return None if death.frames and not is_shortened(death) else _spoken_of(death.message)


def _spoken_of(text: str) -> Part | None:
    return next((part_of_file(path) for words, path in _SPEAKS_OF if re.search(f"(?i){words}", text)), None)


_CALLS = pattern(r"(?:[\w, .\[\]]+ = |return |yield )?[\w.]+(?:\[[^\]]*\])?\(")


def called_from_a_model(death: Death) -> Part | None:
    """Return whose part a message speaks of where the innermost frame is a model's class that only calls others."""
    called = death.path.startswith("models/") and death.statement[:6] != "raise " and _CALLS.match(death.statement)
    return _spoken_of(death.message) if called else None


def part_of_file(path: str) -> Part | None:
    """Return the part of SGLang that a file below its srt is of; None if there is no such file."""
    return next((part for part in _PARTS if part.files.match(path)), None) if path else None
