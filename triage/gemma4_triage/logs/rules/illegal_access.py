"""An illegal memory access, and how full the sliding-window pool was before it.

The known cause with a nearly full SWA pool: a draft's attention backend follows full-pool page ids into the smaller SWA
buffer (SGLang issue 26957; published at about 85% SWA usage). Ids pass the end of the buffer only once the full pool
hands out ids beyond it, which is when the SWA pool is nearly used up.
"""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs import adapters_of_experts, graphs_of_vllm
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import hands_out_of_a_full_pool
from gemma4_triage.logs.options_near import named_by
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import at, exception_text, of_death, on_rank, over, usage_text
from gemma4_triage.logs.rules import library_kernel
from gemma4_triage.logs.suspects import of_files
from gemma4_triage.logs.switched_on import CHOSEN, NO_OVERLAP, switched_on, variables

SWA_PRESSED_AT = 0.8
_SENTENCES = (
    "illegal memory access",
    "cudaSuccess (700",
    "operation not supported on global/shared address space",
)
_SERVE = "gemma4-triage serve --debug 1 -- --model-path MODEL"


def _explains(death: Death) -> bool:
    return any(sentence in death.message for sentence in _SENTENCES)


def _tell(facts: LogFacts, death: Death) -> Finding:
    # A library's own line stands before the traceback of the same fault.
    if not death.frames:
        death = next((one for one in facts.deaths if one.frames and "illegal memory access" in one.message), death)
    pressed = death.usage is not None and (death.usage.swa or 0) >= SWA_PRESSED_AT
    if not pressed:
        return _of_anything(facts, death)
    # Only a log that shows the arguments can say that there are no drafts.
    without = bool(facts.settings) and facts.settings.get("speculative_algorithm", "None") == "None"
    return _of_the_pool(facts, death) if without else _of_the_draft(facts, death)


def _of_the_draft(facts: LogFacts, death: Death) -> Finding:
    drafts = facts.settings.get("speculative_algorithm", "None")
    known = "trtllm_mha" in _backends(facts) and drafts != "None"
    return Finding(
        rule=RULE.id,
        cause="A kernel left its buffer while the sliding-window pool was nearly full, as it does when a draft follows "
        "full-pool page ids into the SWA buffer.",
        confidence=Confidence.LIKELY if known else Confidence.POSSIBLE,
        evidence=(*_evidence(facts, death), *_settings(facts)),
        ruled_out_if=(
            "the server ran without speculative decoding",
            "it happens with GEMMA4_TRIAGE_PATCHES=default too: gemma4-triage patches",
            "a trap names another table or buffer",
        ),
        advice=(
            "a release with the change of SGLang 26966",
            "until then without drafts (no --speculative-algorithm), or with --attention-backend triton",
        ),
        next_commands=(_SERVE, "gemma4-triage repro e4b-trtllm"),
        fix="swa-state-swap",
        upstream=("SGLang 26957", "SGLang 26966"),
    )


def _of_the_pool(facts: LogFacts, death: Death) -> Finding:
    ratio = facts.settings.get("swa_full_tokens_ratio")
    given = [over(facts, "server_args", ratio, "swa_full_tokens_ratio")] if ratio else []
    return Finding(
        rule=RULE.id,
        cause="A kernel left its buffer while the sliding-window pool was nearly full and no drafts ran: a page "
        "id of the "
        "full pool, or one that had been freed, led into the smaller SWA buffer.",
        confidence=Confidence.POSSIBLE,
        evidence=(*_evidence(facts, death), *given, *_settings(facts)),
        ruled_out_if=("a trap names another table or buffer", "it happens while the SWA pool is half empty"),
        advice=(
            "it is a defect of the release's SWA bookkeeping: take a later release; until then keep that pool "
            "from filling",
            "--swa-full-tokens-ratio at its default or above, a lower --max-running-requests, another "
            "--attention-backend",
        ),
        next_commands=(_SERVE,),
    )


def _of_anything(facts: LogFacts, death: Death) -> Finding:
    tuned = any(map(_TUNES.search, death.frames))
    return Finding(
        rule=RULE.id,
        cause=f"A kernel left its buffer{_AS_TUNED * tuned}. {_noticed(facts, death)}",
        confidence=Confidence.LIKELY if tuned or (_named(facts, death) and _blocks(facts)) else Confidence.POSSIBLE,
        evidence=(*_evidence(facts, death), *_settings(facts)),
        ruled_out_if=("the probes trap nothing before the same crash",),
        advice=(
            *graphs_of_vllm.apart(facts, death),
            *_of_the_runner(facts, death),
            *_together(facts, death),
            *adapters_of_experts.beside_expert_parallel(facts, death),
            *hands_out_of_a_full_pool(death),
            *_with_its_own_ratio(facts),
            *_apart(facts, death),
        ),
        next_commands=(_SERVE,),
    )


_USUAL = 0.8  # swa_full_tokens_ratio, where the start names none


def _with_its_own_ratio(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where the start makes the pool of the sliding window smaller than it is by itself."""
    asked = facts.arguments.get("swa_full_tokens_ratio", "")
    if not re.fullmatch(r"0?\.\d+", asked) or float(asked) >= _USUAL:
        return ()
    return (
        f"once without --swa-full-tokens-ratio {asked}: the smaller the pool of the sliding layers is beside the full "
        "one, the sooner an id that was not translated, or was given back, lies beyond it (SGLang 23375); then a later "
        "release",
    )


def _noticed(facts: LogFacts, death: Death) -> str:
    """Say where it was noticed: a library that launches kernels itself asks for errors as it does."""
    if kernel := _named(facts, death):
        return kernel
    if copied := _COPY.search(death.statement):
        return (
            f"It was noticed at {copied[0]}{_of_source(death)}, which copies memory, mostly between host and GPU: that "
            "copy, or a kernel before it."
        )
    if (kernel := dumped(facts))[0]:
        return f"Line {kernel[1]} names the kernel: {kernel[0]}."
    if death.frame.startswith("_ops.py:") and (caller := " ".join(death.frames[-2:-1])):
        return f"It was noticed as {caller} called a compiled kernel: that one, or one before it."
    if not death.package and not death.path and _LAUNCHES.match(death.frame):
        return f"It was noticed in {death.frame}, which launches one: that kernel, or one before it."
    if death.package not in _LAUNCHERS:
        return "The log does not say which: such an error is noticed after the kernel."
    function = death.frames[-1].partition(" ")[2]
    return (
        f"It was noticed as {death.package} launched {function or 'a kernel'}"
        f"{f', on {alike} ranks alike' if (alike := _alike(facts, death)) > 1 else ''}: that kernel, or one before it."
    )


def _of_source(death: Death) -> str:
    source = _SOURCE.search(death.statement)
    return f" ({source[1]})" if source else ""


_COPY = pattern(r"\b(?:cuda|hip)Memcpy\w*")
_DUMPED = pattern(r"coredump(?:: kernel| names(?: the kernel)?) ([\w:]+)")


def dumped(facts: LogFacts) -> tuple[str, int]:
    """Return the kernel that a dump of the GPU names, and the line that says so; "" and 0 if none does."""
    said = facts.remarks.get("dumped_kernel")
    found = _DUMPED.search(said.text) if said is not None else None
    return (found[1], said.place.line) if said is not None and found is not None else ("", 0)


_SPARSE = (
    "another --dsa-decode-backend (flashmla_sparse, tilelang) and --dsa-topk-backend (--nsa-... in earlier releases): "
    "attention reads the places that the sparse index picked, of which some releases leave some unset; then a later "
    "release"
)
_REPLACED = (
    "a later FlagGems, or once without its own kernel in place of this operator of torch's (its list of operators to "
    "leave out, or the plug-in off): it counts offsets in 32 bits, which a large tensor (states of Mamba, a pool) "
    "passes in long requests"
)
_MARLIN = pattern(r".*(?:marlin|wna16)\w*")
_QUANTISED_EXPERTS = (
    "a later release of SGLang with the sgl-kernel that it pins: kernels of quantised experts (Marlin) have left "
    "buffers at large batches; until then a smaller --chunked-prefill-size (4096) and --max-running-requests; "
    "CUDA_LAUNCH_BLOCKING=1 says whether it is that kernel"
)
# Of a line without the path of its file; what launches kernels is named for the library and the part.
_LAUNCHES = pattern(r"\S+ (?!forward)\w*(?:trtllm|cutlass|cutedsl|marlin|deep_?gemm|cudnn)\w*$")
_SOURCE = pattern(r"([\w.-]+\.(?:cuh?|hip)):\d+")


def _blocks(facts: LogFacts) -> bool:
    """Say whether each kernel was waited for, so that the traceback is of the one that failed."""
    return facts.arguments.get("CUDA_LAUNCH_BLOCKING", "0") != "0"


def _named(facts: LogFacts, death: Death) -> str:
    """Return the kernel that an exception names by its own source file, or that a launch waited for; "" if none."""
    source = _SOURCE.search(death.message[:_FAR])
    if source is None and not (_blocks(facts) and death.frames):
        return ""
    surely = "it is that kernel, as CUDA_LAUNCH_BLOCKING is set" if _blocks(facts) else "that kernel, or one before it"
    called = f", called by {death.frames[-2]}" if len(death.frames) > 1 else ""
    name = f"{source[1]} ({death.frame}{called})" if source else f"{death.frame}{called}"
    return f"It was noticed in {name}: {surely}."


_LAUNCHERS = frozenset(
    {"deep_gemm", "flashinfer", "flash_attn", "flash_mla", "sgl_kernel", "triton", "tilelang", "deep_ep"}
)


def _alike(facts: LogFacts, death: Death) -> int:
    """Return how many ranks died alike in one frame."""
    return len({one.rank for one in facts.deaths if (one.type_name, one.frame) == (death.type_name, death.frame)})


def _together(facts: LogFacts, death: Death) -> tuple[str, ...]:
    together = (
        "all ranks fell at one call: it is the request, and no card. Send the last one alone, then half as long; "
    )
    together += "if only long ones do it, --context-length bounds them until a later release"
    return (together,) if _alike(facts, death) > 1 else ()


def _apart(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to change, one at a time: what is switched on, then backends of the frames."""
    asked = facts.settings
    copied = _COPY.search(death.statement) is not None
    moe = asked.get("moe_runner_backend", "auto")
    experts = moe not in ("auto", "None", "triton")
    of_drafts = any(map(_DRAFTS.match, death.frames))
    drafts = of_drafts or (asked.get("speculative_algorithm", "None") != "None" and not _named(facts, death))
    part = of_files(death.frames[-_INNER:])
    found = [f"once without {one} in its environment" for one in variables(facts)]
    found += [f"{one}. {CHOSEN}" for one in (named_by(facts, death) if copied else ())]
    if death.package == "flag_gems":
        found.append(_REPLACED)
    if _named(facts, death):
        found.append(
            "send the last request alone, then half as long: if only long ones do it, a lower --context-length keeps "
            "them out until a release in which that kernel is mended (a later one, or the one before); report it with "
            "its file and line"
        )
        if of_its_part := library_kernel.part_named(f"{death.frame} {' '.join(death.frames[-2:-1])}"):
            found.append(f"it computes {of_its_part.what}: {of_its_part.look}")
    if not death.package and _LAUNCHES.match(death.frame) and (named := library_kernel.part_named(death.frame)):
        found.append(f"{named.look}: what was launched computes {named.what}")
    if any(map(_TUNES.search, death.frames)):
        found.insert(0, _NOT_TUNED)
    too_long = facts.remarks.get("refused_length")
    if facts.arguments.get("cuda_graph_backend_prefill", "disabled") not in ("disabled", "None", "auto"):
        found.insert(0, _PREFILL_GRAPHS)
    if any(map(_OVERLAPS.match, death.frames)) and not drafts:
        found.insert(0, NO_OVERLAP)
    if too_long is not None and too_long.place.line < death.place.line:
        found.append(
            f"line {too_long.place.line} tells of an input that is too long, which some releases run all the same "
            "(embeddings): cut such inputs at the client, or --allow-auto-truncate; then a later release"
        )
    if library := library_kernel.of_path(death.message[:_FAR]):
        found.append(library)
    if any(map(_PREFILL_GRAPH.match, death.frames)):
        found.append(_PREFILL_GRAPHS)
        if asked.get("tp_size", "1") not in ("1", "None") and asked.get("disable_custom_all_reduce") != "True":
            found.append("once with --disable-custom-all-reduce, whose buffers such a graph has to know (SGLang 14193)")
    topk = asked.get("speculative_eagle_topk", "None")
    if drafts and topk not in ("None", "1"):
        found.append(
            f"once with --speculative-eagle-topk 1 in place of {topk}: a tree of drafts has page tables and masks of "
            "its own, which backends and sliding windows follow less often than a chain (SGLang 24402)"
        )
    if drafts:
        found.append("once without --speculative-algorithm: if it then serves, a draft's step is at fault")
    if drafts and experts:
        found.append("once with --speculative-moe-runner-backend triton: the draft's layers are of another type")
    if experts:
        found.append(f"once with another --moe-runner-backend than {moe}")
    if experts and asked.get("ep_size", "1") not in ("1", "None"):
        found.append("once with --ep-size 1 (--tp alone): each rank then has a share of every expert (SGLang 28170)")
    if death.package in _LAUNCHERS and (computes := library_kernel.part_of(death)) is not None:
        found.insert(0, f"{library_kernel.look_beside(computes, death)}: what was launched computes {computes.what}")
    if asked.get("enable_two_batch_overlap") == "True" and any(map(_TWO_BATCHES.match, death.frames)):
        found.append(
            "once without --enable-two-batch-overlap: its halves run beside each other, and share buffers (SGLang 7511)"
        )
    if any(map(_DEEP_GEMM.match, death.frames[-_INNER:])):
        found.append(
            "once with SGLANG_ENABLE_JIT_DEEPGEMM=0, or another build of DeepGEMM (another image): its kernels have "
            "left buffers at some sizes of the batch (SGLang 26541)"
        )
    for name in ("enable_hierarchical_cache", "enable_dp_attention"):
        if asked.get(name) == "True" and not _named(facts, death):
            found.append(f"once without --{name.replace('_', '-')}")
    if _long_chunks(facts, death):
        found.insert(
            0 if death.package == "triton" else len(found),
            "once with --chunked-prefill-size 8192 (--max-prefill-tokens too): offsets of kernels in Triton (experts, "
            "attention, convolutions of states) pass what 32 bits hold in a long prefill; a later release counts in 64 "
            "(SGLang 4856, SGLang 20389)",
        )
    of_triton = _counts_in_32_bits(facts, death)
    if of_triton and _MANY_TOKENS.search(_notes(facts)):
        found.insert(0, _FEWER_TOKENS)
    if asked.get("attention_backend") in ("dsa", "nsa"):
        found.insert(0, _SPARSE)
    if any(map(_MARLIN.match, death.frames[-_INNER:])):
        found.insert(0, _QUANTISED_EXPERTS)
    if wide := _wide_pool(facts):
        found.insert(0, wide)
    backend = asked.get("attention_backend", "None")
    if backend not in ("None", "triton"):
        found.append(f"once with another --attention-backend than {backend}, of the draft too")
    if part is not None and (drafts is False or part.id != "drafts"):
        found.append(f"once without {part.without}")
    if of_triton:
        found.append(_FEWER_TOKENS)
    if not _blocks(facts) and asked.get("disable_cuda_graph") != "True" and (part is None or part.id != "cuda-graphs"):
        found.append("once with --disable-cuda-graph and CUDA_LAUNCH_BLOCKING=1: the traceback then names the kernel")
    return (
        *dict.fromkeys(found),
        *(one for one in switched_on(facts, death) if one not in found),
        *((_PREFILL_GRAPHS,) if _captures_prefills(facts) and _PREFILL_GRAPHS not in found else ()),
    )


_PREFILL_GRAPH = pattern(r"(?:piecewise|prefill|breakable)_cuda_graph\w*\.py:")
_PREFILL_GRAPHS = (
    "once without graphs of prefills: --cuda-graph-backend-prefill disabled (--disable-piecewise-cuda-graph in "
    "releases before 0.5.14)"
)


_BY_THE_RUNNER = (
    "once with --cuda-graph-backend-prefill disabled: line {0} says that it was the runner of prefills' graphs, whose "
    "buffers have been used again while a later graph still read them. Then another of its backends than {1}, or a "
    "later release; decode keeps its graphs"
)
_BACKEND_OF_GRAPHS = pattern(r"backend:? (\w+)")


def _of_the_runner(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where the server says beside the fault that it ran a prefill's graph; empty if it does not."""
    said = facts.remarks.get("prefill_runner")
    if said is None or not 0 <= said.place.line - death.place.line <= _RIGHT_BEHIND:
        return ()
    named = _BACKEND_OF_GRAPHS.search(said.text)
    return (_BY_THE_RUNNER.format(said.place.line, named[1] if named else "this one"),)


_RIGHT_BEHIND = 12  # lines


def _captures_prefills(facts: LogFacts) -> bool:
    """Say whether prefills may run in graphs: later releases capture them unless they are told not to."""
    asked = facts.settings
    off = ("disable_cuda_graph", "disable_piecewise_cuda_graph")
    return (
        bool(asked)
        and asked.get("cuda_graph_backend_prefill") != "disabled"
        and not any(asked.get(name) == "True" for name in off)
    )


def _long_chunks(facts: LogFacts, death: Death) -> bool:
    """Say whether prefills may be longer than kernels of Triton count, where it was noticed in one."""
    size = facts.settings.get("chunked_prefill_size", "")
    long = size == "-1" or (size.isdecimal() and int(size) > _LONG_CHUNK)
    return long and any(map(_TRITON.match, death.frames[-_INNER:]))


_OF_TRITON = pattern(r"(?:fused_moe\w*|extend_attention|decode_attention|prefill_attention)\.py:")
_MANY_TOKENS = pattern(
    r"(?i)\b\d[\d,]*k? (?:sequences|requests|prompts|tokens)\b.{0,80}\b(?:fine|works?|ok|no crash|holds)\b|"
    r"\bint32\b|32[- ]bit|2\^3[12]"
)
_FEWER_TOKENS = (
    "fewer tokens in one prefill batch: --chunked-prefill-size 8192 and --max-prefill-tokens as small: offsets of "
    "kernels in Triton (attention, experts, convolutions of states) are a token's place times the width of all heads, "
    "which passes what 32 bits hold (2^31) in one large batch; a later release counts in 64 (SGLang 4856, SGLang 20389)"
)


def _notes(facts: LogFacts) -> str:
    said = facts.remarks.get("notes")
    return said.text if said is not None else ""


def _counts_in_32_bits(facts: LogFacts, death: Death) -> bool:
    """Say whether it was noticed in a kernel of Triton's, and nothing says how long its prefills may be."""
    return "chunked_prefill_size" not in facts.settings and any(map(_OF_TRITON.match, death.frames[-_INNER:]))


_WIDE_POOL = 2_000_000  # tokens: at 1024 numbers for each, more than 32 bits count


def _wide_pool(facts: LogFacts) -> str:
    """Return what to do about a pool whose last places kernels of Triton may not reach; "" if it is not so large."""
    pools = facts.remarks.get("pools")
    tokens = number_in(pools.text, "max_total_num_tokens") if pools is not None else None
    if tokens is None or tokens < _WIDE_POOL or "triton" not in _backends(facts):
        return ""
    return (
        f"once with --max-total-tokens 1000000 ({tokens:.0f} now), or another --attention-backend than triton: places "
        "so far up in a pool, times the width of a token, pass what 32 bits hold in kernels of some releases; a later "
        "release counts in 64 (SGLang 9344)"
    )


_AS_TUNED = " as FlashInfer's autotuner tried its tactics, before any request"
_TUNES = pattern(r"(?i)autotun")
_NOT_TUNED = (
    "once without FlashInfer's autotuner, which tries every tactic of a kernel at sizes of its own as a server starts, "
    "also one that leaves its buffer: --disable-flashinfer-autotune"
)
_LONG_CHUNK = 16384
_TRITON = pattern(r"(?:fused_moe\w*|extend_attention|\w*triton\w*|ep_moe\w*|jit|runtime)\.py:|.*forward_extend$")
_DRAFTS = pattern(r"\w*(?:eagle|mtp|ngram|draft|nextn|spec_)\w*\.py:")
_INNER = 5  # frames
_FAR = 400  # characters
_OVERLAPS = pattern(r"tp_worker_overlap_thread\.py:")
_TWO_BATCHES = pattern(r"(?:two_batch_overlap|operations\w*)\.py:|.* \w*_tbo\w*$")
_DEEP_GEMM = pattern(r"(?i:\w*deep_?gemm\w*\.py:|.* \w*deep_?gemm\w*$)")


def _evidence(facts: LogFacts, death: Death) -> tuple[Evidence, ...]:
    what = f"what the process died of{on_rank(death.rank)}{', in ' + death.frame if death.frame else ''}"
    found = (at(facts, death.place, exception_text(death), what),)
    if death.usage is None:
        return found
    usage = death.usage
    return (*found, at(facts, usage.place, usage_text(usage.full, usage.swa), "the last pool usage before it"))


def _settings(facts: LogFacts) -> tuple[Evidence, ...]:
    drafts = facts.settings.get("speculative_algorithm")
    if drafts is None:
        return ()
    backends = ", ".join(sorted(_backends(facts))) or "SGLang's choice"
    return (over(facts, "server_args", f"{drafts}, {backends}", "drafts and attention backends of this server"),)


def _backends(facts: LogFacts) -> set[str]:
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    return {value for name in names if (value := facts.settings.get(name, "None")) != "None"}


RULE = of_death("illegal-access", "a kernel left its buffer", _explains, _tell, alarms=("device", "signalled"))
