"""What is switched on and has been at fault elsewhere: tried one at a time, it narrows down what no log can show.

A log shows crashes, hangs and rates; it shows no wrong answer. One record per part serves both where the log has
nothing to say (`suspects`, from the start line) and where an unknown exception stands in a part's file (`of_files`).
More of what a start or a load is known for is data, in known_issues/records/quiet: each engine has a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.load_in_numbers import numbers_of_load
from gemma4_triage.logs.notes_in_prose import difference, kinds_noted
from gemma4_triage.logs.other_platform import platform
from gemma4_triage.logs.split_sides import made_alike
from gemma4_triage.logs.started import Started
from gemma4_triage.logs.told_for_devices import on_device
from gemma4_triage.logs.told_for_vllm import of_vllm

Kind = Literal["answers", "form", "speed", "silence", "memory"]
"""What somebody sees: wrong answers, calls and JSON in the wrong place, a slow server, one that does not answer, or
memory that grows."""
MOST_SHOWN: dict[Kind, int] = {"answers": 4, "form": 3, "speed": 2, "silence": 2, "memory": 1}
"""Suspects of each kind."""


NOTED_DIFFERENCE = "noted-difference"
"""The suspect that a note names: with what, or without what, all is well."""


@dataclass(frozen=True)
class Part:
    """A part of SGLang that can be left out or changed for one try.

    Attributes:
        id: as JSON names it.
        without: what is left out, as "once without {without}" says it.
        why: what it has done elsewhere, and to which answers; {names} are those of `Started.words`.
        threads: public threads of it, as "SGLang 5700".
        on: whether the start line has it switched on, or lacks what should be there.
        instead: the change to try, where leaving it out is not one.
        of: what somebody sees of it.
        files: where its code stands, as a traceback names files.
        broad: whether most starts have it, so that what few have comes first.
    """

    id: str
    without: str
    why: str = ""
    threads: tuple[str, ...] = ()
    on: Callable[[Started], bool] = lambda start: False
    instead: str = ""
    of: Kind = "answers"
    files: re.Pattern[str] | None = None
    broad: bool = False


@dataclass(frozen=True, slots=True)
class Suspect:
    """A part that one server had switched on.

    Attributes:
        id: of the part.
        change: what to try once, as "without --enable-mixed-chunk".
        why: what it has done elsewhere.
        threads: public threads of it.
        of: what somebody sees of it.
        shown: whether the log itself shows a sign of it, and not its start line alone.
        ahead: whether it is of what this start names by hand, or of this very model, more than what is said of all.
        broad: whether most starts have it, so that what few have comes first.
    """

    id: str
    change: str
    why: str
    threads: tuple[str, ...]
    of: Kind = "answers"
    shown: bool = False
    ahead: bool = False
    broad: bool = False

    @property
    def text(self) -> str:
        """Return it in one line."""
        threads = f" ({', '.join(self.threads)})" if self.threads else ""
        return f"{self.change}: {self.why}{threads}"


_GEMMA_3 = pattern(r"gemma[-_ ]?3(?![n\d.])")
"""In a path or an architecture, whatever stands behind it; gemma-3n is another model."""


def _gemma3_without_windows(start: Started) -> bool:
    # Where no line names the release, an argument that later ones have tells them apart.
    old = start.older_than(0, 4, 5) if start.release else not start.has("swa_full_tokens_ratio")
    return _GEMMA_3.search(start.model) is not None and old


def _images_without_template(start: Started) -> bool:
    # Their start line shows a template and has no argument that came with the registry of later releases.
    old = start.older_than(0, 4, 6) if start.release else not start.has("swa_full_tokens_ratio")
    small = start.of("gemma-3-1b", "gemma-3-270m")
    return old and start.lacks("chat_template") and not small and start.of(*_WITH_IMAGES)


_WITH_IMAGES = ("gemma-3-", "gemma3for", "qwen2-vl", "qwen2.5-vl", "llava", "minicpm-v", "deepseek-vl", "-vision")
_APART = frozenset(
    {
        "flashinfer",
        "flashmla",
        "cutlass_mla",
        "trtllm_mha",
        "trtllm_mla",
        "aiter",
        "fa4",
        "torch_native",
        "tokenspeed_mla",
    }
    | {"ascend", "intel_amx", "intel_xpu", "wave", "dual_chunk_flash_attn"}
)
"""Attention backends of which each serves some models and GPUs; what serves most is what to hold them against."""
_OF_A_PLATFORM = frozenset({"ascend", "intel_amx", "intel_xpu", "wave"})
"""Of these no other serves the same device."""

PARTS: tuple[Part, ...] = (
    # The first that fit are shown: what is known of one kind of model, then what is known of all.
    Part(
        "dp-attention-of-gpt-oss",
        "--enable-dp-attention",
        "gpt-oss has written nothing but repeated channel marks with it, and answered well on plain --tp with the "
        "same checkpoint",
        ("SGLang 37187",),
        on=lambda start: start.on("enable_dp_attention") and start.of("gpt-oss", "gptoss"),
    ),
    Part(
        "dp-attention-of-deepseek-v4",
        "--enable-dp-attention",
        "DeepSeek-V4 has written worse and worse text with it as more requests ran at once, with the same checkpoint",
        ("SGLang 33397",),
        on=lambda start: start.on("enable_dp_attention") and start.of("deepseek-v4", "deepseekv4"),
    ),
    Part(
        "trtllm-attention-of-gemma-4",
        "",
        "with trtllm_mha a Gemma-4 MoE in NVFP4 has answered nonsense, and well with triton",
        ("SGLang 26791",),
        on=lambda start: (
            start.value("attention_backend", "") == "trtllm_mha"
            and start.of("gemma-4-26b", "gemma-4-moe")
            and start.of("nvfp4")
        ),
        instead="with --attention-backend triton",
    ),
    Part(
        "fp8-kv-cache",
        "the quantised KV cache",
        "{kv_cache_dtype} keys and values{no_scales} lose range; with fa3 whole answers have become nonsense. Or "
        "with scales that were calibrated, or another --attention-backend (flashinfer, triton)",
        ("SGLang 5700", "SGLang 18818"),
        on=lambda start: start.value("kv_cache_dtype", "auto") not in ("auto", "bfloat16", "float16", "bf16"),
        instead="with --kv-cache-dtype auto",
    ),
    Part(
        "float16",
        "--dtype float16",
        "values of this model can be larger than float16 holds: NaN, <pad> or nonsense. float32 where there is no "
        "bfloat16",
        on=lambda start: (
            # Kernels of AWQ and GPTQ are of float16 themselves.
            start.is_float16 and start.of("gemma", "t5", "qwen2-", "qwen2.5") and not start.of("awq", "gptq")
        ),
        instead="with --dtype bfloat16",
    ),
    Part(
        "images-model-without-template",
        "",
        "this start names none, and releases of that time take none from the checkpoint of a model with images: its "
        "prompt then has no turns, and answers, short ones too, have nothing to do with the question",
        ("SGLang 5122",),
        on=_images_without_template,
        instead="with --chat-template of the model's (gemma-it for Gemma-3, qwen2-vl for Qwen-VL, llama_3_vision)",
    ),
    Part(
        "gemma-3-windows",
        "",
        "earlier releases give the attention backend no window for Gemma-3: short prompts are right, those beyond some "
        "1000 tokens turn into garbage. Then once with another --attention-backend (triton, flashinfer, fa3)",
        ("SGLang 4823", "SGLang 4807"),
        on=_gemma3_without_windows,
        instead="with SGLang 0.4.5 or later",
    ),
    Part(
        "gemma3n-shared-layers",
        "",
        "layers of Gemma-3n that take their keys and values from an earlier layer do not get them on fa3 and "
        "FlashInfer: its answers repeat themselves or say nothing",
        ("SGLang 36690",),
        on=lambda start: start.of("gemma-3n", "gemma3n"),
        instead="with a Gemma-4 E model, or another server",
    ),
    Part(
        "drafts-of-states",
        "",
        "as the cache of states fills, drafts begin from another state than the model: token id 0 for ever, loops",
        ("SGLang 36537", "SGLang 35821"),
        on=lambda start: (
            bool(start.value("speculative_algorithm")) and start.keeps_states and not start.on("disable_radix_cache")
        ),
        instead="with --mamba-radix-cache-strategy extra_buffer_lazy (a release that has it), or --disable-radix-cache",
    ),
    Part(
        "windows-without-prefix-cache",
        "--disable-radix-cache",
        "its cache has given up tokens that were still inside the sliding window",
        ("SGLang 8649", "SGLang 25402"),
        on=lambda start: start.on("disable_radix_cache") and start.of("gemma-", "gemma4", "gpt-oss", "llama-4", "mimo"),
    ),
    Part(
        "mixed-chunk-of-states",
        "--enable-mixed-chunk",
        "with the prefix cache of a model that keeps states (Mamba, GDN) a state that was never written is given to "
        "later requests: answers change only while requests run together. Or once with --disable-radix-cache",
        ("SGLang 39342",),
        on=lambda start: start.on("enable_mixed_chunk") and start.keeps_states and not start.on("disable_radix_cache"),
    ),
    Part(
        "other-tool-call-parser",
        "",
        "this server has --tool-call-parser {tool_call_parser}, which reads the calls of other models: what this one "
        "writes stays in the content",
        on=lambda start: start.has_other_tool_parser,
        instead="with --tool-call-parser {tool_parser}, if calls come back as text",
        of="form",
    ),
    Part(
        "other-reasoning-parser",
        "",
        "this server has --reasoning-parser {reasoning_parser}, which reads the thoughts of other models: answers may "
        "be taken for thoughts, or thoughts for answers",
        on=lambda start: start.has_other_thought_parser,
        instead="with --reasoning-parser {thought_parser}, if thoughts and answers are mixed up",
        of="form",
    ),
    Part(
        "no-tool-call-parser",
        "",
        "this server has no --tool-call-parser, so what the model writes to call a tool stays in the content, and "
        "tool_calls is empty",
        on=lambda start: start.lacks("tool_call_parser") and "tool_parser" in start.words,
        instead="with --tool-call-parser {tool_parser}, if calls come back as text",
        of="form",
    ),
    Part(
        "no-reasoning-parser",
        "",
        "this server has no --reasoning-parser, so thoughts and their marks stay in the content",
        on=lambda start: start.lacks("reasoning_parser") and "thought_parser" in start.words,
        instead="with --reasoning-parser {thought_parser}, if thoughts stand in the answer",
        of="form",
    ),
    Part(
        "data-parallel-attention",
        "attention data parallelism (--dp)",
        "ranks then hold other heads and other requests than with plain --tp, and not every backend is right there",
        ("SGLang 19247",),
        on=lambda start: start.on("enable_dp_attention"),
        instead="without --enable-dp-attention",
        files=pattern(r"(?:dp_attention|data_parallel_controller)\.py"),
    ),
    Part(
        "attention-backend",
        "the attention backend in use (another --attention-backend; look at the answers too)",
        "kernels of one backend have been wrong for a model, a GPU or a type of KV where another's were right: the "
        "same prompt at temperature 0 with both tells",
        ("SGLang 13044", "SGLang 9704"),
        on=lambda start: (
            start.value("attention_backend") in _APART - _OF_A_PLATFORM and not start.of("gemma-4", "gemma4")
        ),
        instead="with another --attention-backend than {attention_backend} (triton, fa3)",
        files=pattern(r"(?:\w*attention\w*|flash\w*|\w+_mha\w*|triton_backend|aiter_backend|\w*attn\w*)\.py"),
        broad=True,
    ),
    Part(
        "quantisation",
        "quantisation (the same model in bfloat16)",
        "a checkpoint whose kernels overflow, or whose scales do not fit, writes only '!' or <pad>, which is NaN",
        ("SGLang 16289",),
        on=lambda start: start.value("quantization") not in ("", "fp8"),
        instead="with the same model that is not quantised, or the publisher's own quantisation",
        files=pattern(r"(?:\w*fp[48]\w*|awq\w*|gptq\w*|modelopt\w*|compressed_tensors\w*|marlin\w*|\w*quant\w*)\.py"),
        broad=True,
    ),
    Part(
        "hierarchical-cache",
        "--enable-hierarchical-cache",
        "pages and states that come back from the host have been stale or read too early: rare nonsense, or an answer "
        "to another prompt, in prefixes that had been evicted",
        ("SGLang 22811", "SGLang 30321", "SGLang 39830"),
        on=lambda start: start.on("enable_hierarchical_cache"),
        files=pattern(
            r"(?:hiradix|hicache|cache_controller|memory_pool_host|hybrid_cache)\w*\.py|"
            r"[\w.]+:\d+ \w*(?:hicache|load_back|write_backup|host_leaf|evict_host|to_host)\w*$"
        ),
    ),
    Part(
        "lora",
        "the LoRA adapters (--enable-lora, --lora-paths), or with another --lora-backend (triton)",
        files=pattern(r"\w*(?:lora|punica)\w*\.py"),
    ),
    Part(
        "drafts",
        "drafts (--speculative-algorithm)",
        "at temperature 0 drafts may change the speed and not the answer; a draft with another vocabulary changes it",
        ("SGLang 24051",),
        on=lambda start: bool(start.value("speculative_algorithm")),
        instead="without --speculative-algorithm {speculative_algorithm}",
        files=pattern(r"(?:eagle|mtp|spec|draft|ngram)\w*\.py"),
        broad=True,
    ),
    Part(
        "streamed-tool-calls",
        "",
        "drafts bring several tokens at once, of which parsers of many models lose or shift a call or its arguments; "
        "the same answer whole is read well. Then a later release",
        ("SGLang 37634", "SGLang 35564"),
        on=lambda start: bool(start.value("tool_call_parser")) and bool(start.value("speculative_algorithm")),
        instead="with requests with tools that do not stream, if calls are missing, doubled or without arguments",
        of="form",
    ),
    Part(
        "piecewise-graphs",
        "piecewise CUDA graphs",
        "a graph of prefills has cost accuracy or left only <pad>",
        ("SGLang 17839", "SGLang 13469"),
        on=lambda start: start.on("enable_piecewise_cuda_graph") or start.on("enforce_piecewise_cuda_graph"),
    ),
    Part("cuda-graphs", "CUDA graphs (--disable-cuda-graph)", files=pattern(r"(?:cuda_graph|piecewise)\w*\.py")),
    Part(
        "grammar",
        "structured output (the request's schema or grammar)",
        files=pattern(r"(?:grammar|xgrammar|outlines|llguidance)\w*\.py"),
    ),
    Part(
        "split-server",
        "the split of prefill and decode, or with the same --tp on both sides",
        files=pattern(r"(?:disaggregation|mooncake(?!_store)\w*|nixl(?!_?hi)\w*|conn)\.py|.* \w*disagg\w*$"),
    ),
    Part(
        "moe",
        "the MoE kernels in use (another --moe-runner-backend or --moe-a2a-backend)",
        files=pattern(
            r"(?!topk\.py:\d+ \w*transform)"
            r"(?:topk|fused_moe\w*|moe\w*|\w+_moe|deepep|token_dispatcher\w*|mooncake_ep\w*)\.py"
        ),
    ),
    Part(
        "prefix-cache",
        "the prefix cache (--disable-radix-cache)",
        files=pattern(r"(?:\w*radix\w*|memory_pool|\w*allocator\w*)\.py"),
    ),
    Part(
        "own-all-reduce",
        "SGLang's own all-reduce (--disable-custom-all-reduce)",
        files=pattern(r"(?:parallel_state|communication_op|pynccl\w*|custom_all_reduce\w*|communicator)\.py"),
    ),
    Part(
        "parsers",
        "parsers of answers (--tool-call-parser, --reasoning-parser)",
        files=pattern(r"(?:function_call\w*|\w*_detector|reasoning_parser|\w*tool_?call\w*)\.py"),
    ),
    Part(
        "images",
        "images in the requests",
        files=pattern(
            r"(?:mm_utils|multimodal|(?!scheduler_output|logits_|logprob_|batch_result)\w*processor|vision)\w*\.py"
        ),
    ),
)


_READY = frozenset({"ready", "http_ready", "no_workers", "router_starts", "abort"})


def suspects(facts: LogFacts) -> tuple[Suspect, ...]:
    """Return what to try if something is wrong that the log does not show: the first few of each kind, in order."""
    answered = facts.served or "answer" in facts.understood or "vllm_serves" in facts.remarks
    if not (answered or facts.settings or _READY & facts.remarks.keys() or kinds_noted(facts)):
        return ()
    start = Started(facts)
    found: dict[str, Suspect] = {}
    vllm = of_vllm(facts)
    for part in () if vllm else PARTS:
        if part.on(start):
            change = (part.instead or f"without {part.without}").format_map(start.words)
            suspect = Suspect(
                part.id, change, part.why.format_map(start.words), part.threads, part.of, broad=part.broad
            )
            # What is known of this very model stands for the same switch of all models.
            found.setdefault(change, suspect)
    # Of a start that never came to its end nobody has seen answers.
    shown = _READY & facts.remarks.keys() or "bench_prefill" in facts.remarks or "note" in facts.understood
    if answered or shown or kinds_noted(facts):
        for suspect in _of_records(facts, start, vllm):
            found.setdefault(suspect.change, suspect)
    device = platform(facts)
    held = [fit for one in found.values() if (fit := _on_device(one, device)) is not None]
    kinds = {kind: [one for one in held if one.of == kind] for kind in MOST_SHOWN}
    for listed in kinds.values():
        listed.sort(key=lambda one: (not one.shown, not one.ahead, one.broad))
    noted = kinds_noted(facts)
    order = sorted(MOST_SHOWN, key=lambda kind: (kind not in noted, not any(one.shown for one in kinds[kind])))
    return tuple(one for kind in order for one in kinds[kind][: MOST_SHOWN[kind]])


def _on_device(one: Suspect, device: str) -> Suspect | None:
    """Return a suspect in the words of the server's device; None where that device has no such thing."""
    told = on_device(f"{one.change}: {one.why}", device)
    if not told:
        return None
    change, _, why = told.partition(": ")
    return replace(one, change=change, why=why)


def _of_records(facts: LogFacts, start: Started, vllm: bool) -> Iterator[Suspect]:
    # What reads records takes time to import.
    from gemma4_triage.known_issues.catalog import quiet_suspects
    from gemma4_triage.known_issues.match import has_value
    from gemma4_triage.logs.second_try import ELSEWHERE, second_tries

    known = {**facts.arguments, **facts.settings, **numbers_of_load(facts)}

    def holds(value: str | None, wanted: str) -> bool:
        if "&" in wanted:
            return all(holds(value, part) for part in wanted.split("&"))
        if wanted.startswith("not "):
            return not holds(value, wanted.removeprefix("not "))
        return any(has_value(value, part) for part in wanted.split("|"))

    engine, other = ("vllm", "sglang") if vllm else ("sglang", "vllm")
    of_engine = [said for said in quiet_suspects() if said.get("both") or not vllm]
    of_engine += quiet_suspects("vllm.toml") if vllm else []
    signs = [{**said, "sign": True} for said in quiet_suspects("shown.toml") if said.get("engine", engine) != other]

    def that_hold(records: Iterable[dict[str, Any]]) -> Iterator[Suspect]:
        for said in records:
            if (
                all(holds(known.get(name), wanted) for name, wanted in said.get("on", {}).items())
                and ("model" not in said or re.search(said["model"], start.model))
                and all(facts.remarks.keys() & {name, name.replace("_", " ")} for name in said.get("seen", "").split())
                and said.get("unless") not in facts.remarks
            ):
                change, why = (said[name].format_map(known) for name in ("change", "why"))
                threads, broad = tuple(said.get("threads", ())), "broad" in said and not vllm
                ways = ("sign" in said, "ahead" in said, broad)
                yield Suspect(said["id"], change, why, threads, said["of"], *ways)

    tried_out = [name for name, value in known.items() if _EXPERIMENTAL.search(name) and value.lower() in ("1", "true")]
    if tried_out and not vllm:
        change = f"without {', '.join(tried_out[:_NAMED_MOST])} in its environment (unset)"
        yield Suspect("experiments", change, _OF_EXPERIMENTS, (), "answers", shown=True)
    # What the log shows by itself says more than what somebody tried, and this more than a start.
    yield from that_hold(signs)
    if alike := made_alike(facts):
        yield Suspect("sides-of-a-split", f"with {alike}", _OF_A_SPLIT, ("SGLang 17212",), "answers", shown=True)
    if (noted := difference(facts)) is not None:
        change = f"{noted.change}, as line {noted.place.line} has it"
        seen = kinds_noted(facts)
        of: Kind = "answers"
        for kind in reversed(seen):
            of = kind if kind != "requests" else of
        yield Suspect(NOTED_DIFFERENCE, change, WELL_WITH_IT, (), of, shown=True)
    for one in second_tries(facts, vllm):
        yield Suspect(one.id, one.change, one.why, (), one.of, shown=one.id != ELSEWHERE)
    yield from that_hold(of_engine)


_OF_A_SPLIT = "nonsense from the second token on where one server alone answers well; then a later release on both"
WELL_WITH_IT = (
    "a note here says that all is well with it: what this option brings is then at fault in this release, and neither "
    "weights, prompt nor sampling. Leave it so, and take a later release"
)
"""Why a change is tried that a note names."""
_EXPERIMENTAL = pattern(r"^SGLANG_(?:\w*EXPERIMENTAL|OPT_)\w*$")
_NAMED_MOST = 4
_OF_EXPERIMENTS = (
    "these switch on paths of code that the release itself does not take, and few have tried under load: kernels that "
    "are right for one adapter, size or request have been wrong for several (SGLang 28091). Then one at a time"
)


def of_files(frames: Iterable[str]) -> Part | None:
    """Return the first part whose file stands in one of these frames; None if there is none."""
    inner = reversed(tuple(frames))
    return next((part for frame in inner for part in PARTS if part.files and part.files.match(frame)), None)
