"""SGLang's own check refused something, and says what: the words are quoted, with the part that they concern.

Every `raise` and `assert` of SGLang with a message is one. Rules that know more of a failure come first; where none
does, the file names the part, and the words name what to change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.alarms import SURVIVABLE
from gemma4_triage.logs.facts import Death, LogFacts, Place
from gemma4_triage.logs.rule import (
    Wording,
    at,
    exception_text,
    is_of_a_kind_first,
    of_failure,
    of_settings,
    on_rank,
    pattern,
    written,
)
from gemma4_triage.logs.suspects import NAMED, NO_OVERLAP, as_the_draft_was_loaded, features, switched_on

ID = "refused-by-check"
TITLE = "a check of SGLang's own refused something, and says what"


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
_BACKEND = _part(
    r"layers/attention/",
    "the attention backend",
    "another --attention-backend (triton serves most models and GPUs), or a later release",
)
_SENT = (
    "names, shapes, dtype, quantisation and parallelism that the trainer sends have to be the server's; both of "
    "releases that fit each other (SGLang's, torch's and the trainer's); once with the weights on disk"
)
_LAUNCH = _part(
    r"entrypoints/.*(?:engine|http_server)",
    "how the server and its processes are started",
    "the first exception of any process counts; send a request that failed alone; then a later release",
)
_REQUEST = _part(
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
    _part(
        r"server_args|arg_groups/|utils/.*arg",
        "the arguments of the start",
        "change the arguments that its words name and start again; launch_server --help of this release names "
        "choices; where it compares None, such as on a CPU, give --mem-fraction-static, --chunked-prefill-size and "
        "--cuda-graph-max-bs",
    ),
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
    _LAUNCH,
    _REQUEST,
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
_TYPES = frozenset(
    {"ValueError", "AssertionError", "NotImplementedError", "RuntimeError", "ImportError", "TypeError", "Exception"}
    | {"KeyError", "ModuleNotFoundError", "FileNotFoundError", "OSError", "AttributeError", "MemoryError"}
)
CALL = pattern(r"([\w.]+\(\)) (?:got an unexpected keyword|missing \d+ required|takes \d+ positional)")
"""Of a function that is called with other arguments than it takes."""
_WORDS = pattern(r"[A-Za-z_]{2,}")
_FEWEST_WORDS = 3
# Words of torch's, CUDA's and Python's own, that a file of SGLang only passed on.
_NOT_ITS_OWN = pattern(
    r"CUDA error|HIP error|NCCL|out of memory|size of tensor|mat1 and mat2|must match the size|has no attribute|"
    r"Expected all tensors|died during initialization|NPU function error|not supported between instances|"
    r"Boolean value of Tensor|operand type|division by zero|cannot be interpreted as|unhashable|"
    r"unexpected keyword|positional argument|object is not|index out of range|broadcast|"
    r"invalid for input of size|must be Tensor, not|index k out of range|Expected reduction dim|INTERNAL ASSERT|"
    r"abstract class|is not defined|cannot unpack|unsupported operand|is not iterable|"
    r"has no len\(\)|not subscriptable|consecutive errors|expected str|invalid literal|values to unpack"
)
_TELLING = pattern(
    r"(?i)support|must|require|please|only|mismatch|invalid|incompatible|not compatible|cannot|unknown|should|need|"
    r"not found|missing|exceed|too (?:small|large|long|old)|increase|at least|not enough|expected|--\w"
)
_DTYPE = pattern(r"Supported dtypes: \[torch\.(\w+)")
_FLAG = pattern(r"--[a-z][\w-]+[a-z0-9]")
ASKED = pattern(
    r"(?:[Pp]lease|Consider|Try|Use|Set|Increase|Reduce|Raise|Upgrade|Enable|Disable)\b(?:[^.;]|\.(?=\d)){8,160}"
)
_LONGEST = 220


_DEFECT = (
    ", which does not hold. A state that its code does not expect is a defect of the release, for what this server was "
    "asked."
)
_ARGUMENT = pattern(r"server_args(?:\(\))?\.(\w+)|\bget_\w+\(\)\.((?:disable|enable)_\w+)")


def _condition(death: Death) -> str:
    """Return the condition that an assertion without words quotes, with its word assert; "" if there is none."""
    bare = death.type_name == "AssertionError" and not death.message.strip()
    return death.statement if bare and death.statement.startswith("assert ") else ""


def explains(death: Death) -> bool:
    """Say whether a check of SGLang's own raised it, with words that say what it refused."""
    said = _condition(death) or death.message
    return (
        bool(death.path)
        and death.type_name in _TYPES
        and len(_WORDS.findall(said)) >= _FEWEST_WORDS
        and (death.type_name != "KeyError" or " " in said)
        and _NOT_ITS_OWN.search(death.message) is None
        and part_of(death) is not None
        and not is_of_a_kind_first(death)
    )


def find(facts: LogFacts, unexplained: Iterable[Death]) -> Iterator[Finding]:
    """Yield one finding for each check that refused something.

    Args:
        facts: the log.
        unexplained: the deaths that no other rule knows, in the order of the log.
    """
    seen: set[tuple[str, str]] = set()
    for death in unexplained:
        if explains(death) and (key := (death.type_name, death.frame)) not in seen:
            seen.add(key)
            yield tell(facts, death, f"ended a process{on_rank(death.rank)}", of_failure(facts, death))


def survived(facts: LogFacts) -> Iterator[Finding]:
    """Yield what the last check refused that a request failed of, if the server answered it with a status of 500."""
    if (error := next(filter(explains, reversed(facts.errors)), None)) is not None:
        evidence = [at(facts, error.place, exception_text(error), f"what the request failed of, in {error.frame}")]
        yield tell(facts, error, "failed a request, and the server went on", evidence)
        return
    error = next((error for error in reversed(facts.errors) if error.frames and part_of_file(error.caller)), None)
    if error is None or (part := part_of(error) or part_of_file(error.caller)) is None:
        return
    # What serves HTTP starts the processes too, which it had done by then.
    part = _REQUEST if part is _LAUNCH else part
    call = CALL.search(error.message)
    of_input = next((one for one in written("refused_by_check.toml") if one.words.search(error.message)), None)
    why = "its exception is of that request, not of the load"
    lacks = _LACKS.search(error.message) if error.type_name == "AttributeError" else None
    if lacks is not None and lacks[1] in _PLAIN:
        of_input = _PLAIN_VALUE
    if call is not None:
        why = f"{call[1]} is called with other arguments than it takes, a defect of this build or two that do not fit"
    elif of_input is not None:
        why = of_input.cause
    elif lacks is not None:
        why = f"{lacks[1]} has no {lacks[2]} in this build, a defect of its code or two packages that do not fit"
    yield Finding(
        rule=ID,
        cause=f"A request failed of {error.type_name} in {error.frame}, which SGLang called for {part.what}, and the "
        f"server went on: {why}.",
        confidence=Confidence.LIKELY if call or of_input or lacks else Confidence.POSSIBLE,
        evidence=(at(facts, error.place, exception_text(error), f"what the request failed of, in {error.frame}"),),
        advice=(
            *(("another release or image of SGLang, with the packages that it pins",) if call or lacks else ()),
            *((of_input.advice,) if of_input else ()),
            *((_NO_TOKENIZER,) if facts.settings.get("skip_tokenizer_init") == "True" else ()),
            part.look,
        ),
    )


_NO_TOKENIZER = (
    "this server has --skip-tokenizer-init: ask /generate with input_ids, which answers with ids; texts and the OpenAI "
    "endpoints need the tokenizer"
)
_NAMED_FLAG = pattern(r"(?:(without|not) )?`?(--[a-z][\w-]+)")
_ANY_REFUSAL = Wording(
    pattern(""), "what the server's words say", "mend what those words name, in the client or the start"
)
_REFUSES = pattern(
    r"Error in request|BadRequest|This model does not appear|validation error|Skip invalid|preprocessing timed out|"
    r"Error code: 4|[Ee]rror: |['\"]message['\"]|exceeds the maximum allowed"
)
_NO_EMBEDDINGS = (
    "the server was not started for embeddings",
    "start it with --is-embedding; one server answers either chats or embeddings",
)


_OF_A_RERANKER = (
    "the server took the reranker for a model of another kind than it is",
    "one that generates yes or no (Qwen3-Reranker, Qwen3-VL-Reranker): without --is-embedding and with its own "
    "--chat-template (qwen3_reranker.jinja of SGLang's examples/chat_template); one that is a classifier (BGE): with "
    "--is-embedding; /v1/rerank takes query and documents",
)


_LACKS = pattern(r"'((?!NoneType)\w+)' object has no attribute '(\w+)'")
_PLAIN = ("str", "list", "dict", "int", "float", "bool", "tuple")
_PLAIN_VALUE = Wording(
    pattern(""),
    "it was given a plain value where it takes another, as a request's field in another form gives",
    "mend the client: the form that this endpoint's fields have (messages, content, tools); once without a chat "
    "template or processor of one's own",
)


class Refused(NamedTuple):
    """Requests that a server refused, the last of a kind.

    Attributes:
        place: where it says so.
        said: its words.
        why: what it refused them for, as a clause.
        look: what to change.
        of_the_start: whether that is an argument of the start.
    """

    place: Place
    said: str
    why: str
    look: str
    of_the_start: bool = False

    @property
    def text(self) -> str:
        """Return it in one line."""
        return f"line {self.place.line}: {self.said[:_LONGEST]}: {self.why}. {self.look[:1].upper()}{self.look[1:]}"


def refused(facts: LogFacts) -> Iterator[Refused]:
    """Yield what requests were refused for, which a server outlives and says in few words, or to the client alone."""
    failed = {alarm.place.line for alarm in facts.alarms if alarm.kind == "answered-500"}
    for name in ("refused_argument", "refused_length", "refused_request"):
        found = facts.remarks.get(name)
        if found is None or found.place.line in failed or not _REFUSES.search(found.text):
            continue
        said = found.text.partition("Error in request: ")[2] or found.text
        if "embedding model" in said and "rerank" in facts.settings.get("model_path", "").lower():
            yield Refused(found.place, said, *_OF_A_RERANKER, of_the_start=True)
            continue
        if name == "refused_argument" and (flag := _NAMED_FLAG.search(said)) is not None:
            turn = "without" if flag[1] else "with"
            why = f"the server was not started {turn} an argument that they need it to be {turn}"
            yield Refused(found.place, said, why, f"start it {turn} {flag[2]}", of_the_start=True)
            continue
        known = next((one for one in written("refused_by_check.toml") if one.words.search(said)), _ANY_REFUSAL)
        yield Refused(found.place, said, known.cause, known.advice)
    embeddings = facts.remarks.get("refused_embeddings")
    if embeddings is not None and facts.settings.get("is_embedding") == "False" and _unsaid(facts):
        yield Refused(embeddings.place, embeddings.text, *_NO_EMBEDDINGS, of_the_start=True)
    elif (answer := facts.remarks.get("answered_400") or embeddings) is not None and _unsaid(facts):
        if "/rerank" in answer.text and "rerank" in facts.settings.get("model_path", "").lower():
            yield Refused(answer.place, answer.text, *_OF_A_RERANKER, of_the_start=True)
            return
        why, look = _UNSAID
        yield Refused(answer.place, answer.text, why, look)


_UNSAID = (
    "the reason stands in the answer alone, which the client has",
    "read the body of such an answer; --log-requests --log-requests-level 2 shows the requests",
)


def _unsaid(facts: LogFacts) -> bool:
    return not any(name in facts.remarks for name in ("refused_argument", "refused_length", "refused_request"))


def refusals(facts: LogFacts) -> Iterator[Finding]:
    """Yield a finding where the server's start, or nothing but a refusal, is what the log shows.

    A server that works and refuses a request now and then is healthy.
    """
    last = max((line for rank in facts.schedulers for line in rank.series.get("line", ()) if line), default=0)
    ends = {alarm.place.line for alarm in facts.alarms if alarm.kind in SURVIVABLE}
    for one in refused(facts):
        alone = not facts.served and one.look != _UNSAID[1]
        if not (alone or one.place.line in ends or (one.of_the_start and one.place.line > last)):
            continue
        yield Finding(
            rule=ID,
            cause=f"Requests were refused, and the server went on: {one.why}.",
            confidence=Confidence.LIKELY,
            evidence=(at(facts, one.place, one.said[:_LONGEST], "the last of them"),),
            ruled_out_if=("the same request is answered by the same server later",),
            advice=(one.look,),
        )


def tell(facts: LogFacts, death: Death, what: str, evidence: list[Evidence]) -> Finding:
    """Return the finding of a check.

    Args:
        facts: the log.
        death: what it raised.
        what: what that did, as a clause.
        evidence: where it stands.
    """
    part = part_of(death)
    assert part is not None
    condition = _condition(death)
    said = " ".join((condition or death.message).split())
    asks = tuple(f"--{name.replace('_', '-')}" for found in _ARGUMENT.findall(condition) for name in found if name)
    flags = tuple(dict.fromkeys((*_FLAG.findall(said), *asks, *(_arguments_in(said) if part is _PARTS[0] else ()))))
    named = (name for name in facts.settings if re.search(rf"\b{name}\b|--{name.replace('_', '-')}\b", said))
    asked = ASKED.search(said)
    later = tuple(flag for flag in asks if said.startswith("assert not ") and _is_off(facts, flag))
    return Finding(
        rule=ID,
        cause=f"A check of SGLang's own, in {death.frame.partition(':')[0]}, {what}. It concerns {part.what}, and "
        f"says: {said[:_LONGEST]}{'…' if len(said) > _LONGEST else ''}{_DEFECT * bool(condition)}",
        confidence=Confidence.LIKELY if _TELLING.search(said) and not condition else Confidence.POSSIBLE,
        evidence=(*evidence, *of_settings(facts, *named)),
        ruled_out_if=("an earlier line tells of another failure: this one may then follow from it",),
        advice=(
            *((f"what it asks for: {asked[0].strip()}",) if asked else ()),
            *(
                (f"give {', '.join(later)} from the start: it was not asked for, and something has set it since",)
                if later
                else (f"change or leave out {', '.join(flags)}",)
                if flags
                else ()
            ),
            *((_OF_THE_DRAFT,) if later and facts.settings.get("speculative_algorithm", "None") != "None" else ()),
            *as_the_draft_was_loaded(facts, death),
            *(f"once {one.without}: its code raised it" for one in features(facts) if one.is_named(death)),
            *((NOT_YET,) if LACKING.search(said) and part is not _PARTS[0] else ()),
            *((f"--dtype {dtype[1]}",) if (dtype := _DTYPE.search(said)) else ()),
            _AT_START if part.look.startswith(_ALONE) and not facts.served and not facts.errors else part.look,
            *_others(facts, death, bool(condition)),
        ),
    )


def _others(facts: LogFacts, death: Death, bare: bool) -> Iterator[str]:
    """Yield what else to leave out of a server that had served: all of it where the check has no words of its own."""
    for one in switched_on(facts, death) if bare or facts.served else ():
        if not one.endswith(NAMED) and (bare or one != NO_OVERLAP):
            yield one


_OF_THE_DRAFT = (
    "once without --speculative-algorithm: the draft's part is set up after the target's, from the same arguments, and "
    "may change them for both"
)


def _is_off(facts: LogFacts, flag: str) -> bool:
    """Say whether the start line is there and has an argument switched off, or does not name it."""
    name = flag.removeprefix("--").replace("-", "_")
    return bool(facts.settings) and facts.settings.get(name, "False") in ("False", "None")


LACKING = pattern(
    r"(?i)(?:\bnot|n't|\bun|only)[\s-]?(?:yet |been |currently |been yet )?(?:support|implement|available|compatible)"
)
NOT_YET = "leave out what its words name, or have it otherwise, as they say; else a later release, which may serve it"
_ALONE = "send that request alone: its media"
_AT_START = (
    "it is of no request, for none was served: lines above it that something was not imported (Ignore import error) "
    "say why; transformers, torchvision and sglang-kernel of the releases in SGLang's pyproject, and the processor's "
    "files of the publisher's repository"
)
_SNAKE = pattern(r"\b(?<!-)[a-z]+(?:_[a-z0-9]+)+\b(?!\()")
_SPOKEN = (
    (pattern(r"(?i)\bdp[- ]attention"), "--enable-dp-attention"),
    (pattern(r"(?i)speculative decoding|\beagle\b|\bspec v2"), "--speculative-algorithm"),
    (pattern(r"(?i)overlap schedul"), "--disable-overlap-schedule"),
    (pattern(r"(?i)radix (?:cache|attention|tree)"), "--disable-radix-cache"),
    (pattern(r"(?i)(?<!piecewise )cuda graph"), "--disable-cuda-graph"),
    (pattern(r"(?i)piecewise"), "--disable-piecewise-cuda-graph"),
    (pattern(r"(?i)chunked[- ]prefill"), "--chunked-prefill-size"),
    (pattern(r"(?i)mixed[- ]chunk"), "--enable-mixed-chunk"),
    (pattern(r"(?i)\blora\b"), "--lora-paths"),
    (pattern(r"(?i)hierarchical cache|hicache"), "--enable-hierarchical-cache"),
    (pattern(r"(?i)pipeline parallel"), "--pp-size"),
    (pattern(r"(?i)expert parallel"), "--ep-size"),
    (pattern(r"(?i)tensor parallel"), "--tp-size"),
    (pattern(r"(?i)torch[. ]compile"), "--enable-torch-compile"),
    (pattern(r"(?i)deepep|a2a backend"), "--moe-a2a-backend"),
    (pattern(r"(?i)kv cache (?:d?type|quant)"), "--kv-cache-dtype"),
    (pattern(r"(?i)page size"), "--page-size"),
    (pattern(r"(?i)attention backend"), "--attention-backend"),
    (pattern(r"(?i)moe runner"), "--moe-runner-backend"),
    (pattern(r"(?i)two[- ]batch"), "--enable-two-batch-overlap"),
    (pattern(r"(?i)disaggregat"), "--disaggregation-mode"),
)
"""What checks of arguments call them in prose, and what the start calls them."""


def _arguments_in(said: str) -> Iterator[str]:
    """Yield the arguments that a check of arguments speaks of, by their names in its code and in prose."""
    yield from (f"--{name.replace('_', '-')}" for name in _SNAKE.findall(said))
    yield from (flag for words, flag in _SPOKEN if words.search(said))


def part_of(death: Death) -> Part | None:
    """Return the part of SGLang whose file raised it; None if it is another's file."""
    if not death.path:
        return None
    if (
        death.path.startswith("mem_cache/")
        and not death.path.startswith("mem_cache/storage/")
        and any(map(_OF_THE_HOST.match, death.frames))
    ):
        return _HOST_CACHE
    if not _HOST_CACHE.files.match(death.path) and any(map(_OF_STATES.match, death.frames[-2:])):
        return _STATES
    if _ANSWERS.match(death.frame) and death.path.startswith(("entrypoints/", "openai_api/")):
        return _ANSWER
    if _POOLS.files.match(death.path) and _LAID_OUT.match(death.frame):
        return _POOLS
    if _RUNS.match(death.path) and (step := next((one for name, one in _STEPS if name.match(death.frame)), None)):
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
    (r"\bmoe\b|\bexperts?\b|deep_?ep|topk_|fused_moe", "layers/moe/"),
    (r"quanti[sz]|\bfp[48]|nvfp4|\bawq|gptq|marlin|mat_[ab]\b|scaled_mm|_scale\b", "layers/quantization/"),
    (r"attention|flash_?attn|flashinfer|\bmla\b|num_splits|head_dim|kv_indptr|qo_indptr", "layers/attention/"),
    (r"\bradix|lru list|lock_ref|evict|unified ?(?:radix|tree)|\bswa\b|kv pool|token_to_kv", "mem_cache/"),
    (r"tokenizer|chat template|\bvocab", "tokenizer/"),
    (r"weights?\b|checkpoint|state_dict|safetensors", "model_loader/"),
    (r"cuda ?graph|captur", "model_executor/"),
)


def part_spoken_of(death: Death) -> Part | None:
    """Return the part of SGLang that an exception of which no frame is left speaks of; None if it names none."""
    if death.frames:
        return None
    return next((part_of_file(path) for words, path in _SPEAKS_OF if re.search(f"(?i){words}", death.message)), None)


def part_of_file(path: str) -> Part | None:
    """Return the part of SGLang that a file below its srt is of; None if there is no such file."""
    return next((part for part in _PARTS if part.files.match(path)), None) if path else None
