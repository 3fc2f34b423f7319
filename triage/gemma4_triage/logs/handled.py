"""What a scheduler had in hand when something failed, by its innermost frames and the line of source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gemma4_triage.logs.facts import Death, LogFacts, Place
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.remarks import COMMANDED
from gemma4_triage.logs.rule import last_work


@dataclass(frozen=True)
class Handled:
    """What a scheduler had in hand.

    Attributes:
        functions: that take it.
        what: it is, as a sentence behind another.
        look: what to try first.
    """

    functions: re.Pattern[str]
    what: str
    look: str


_HANDLED = (
    Handled(
        pattern(r"(?:retract_\w+|resume_retracted\w*|(?:off)?load_kv_cache|(?:get|load)_cpu_copy)$"),
        " It retracted a request for want of room, or took one up again that it had retracted.",
        "room enough that none is retracted: fewer requests at once (--max-running-requests), a larger "
        "--mem-fraction-static, a higher --schedule-conservativeness, on a decode server a larger "
        "--num-reserved-decode-tokens; then a later release: not every pool can copy its KV to the host and back",
    ),
    Handled(
        pattern(r"\w*abort\w*$"),
        " It took an abort, of a request that was no longer there or not yet whole.",
        "a later release: an abort can race with its request's end; until then clients that wait longer and give up "
        "fewer requests at once",
    ),
    Handled(
        pattern(r"\w*log_?probs?\w*$|_normalize_decode_outputs$"),
        " It made up the log probabilities of a step, which a request had asked for.",
        "once with requests that ask for no log probabilities (logprobs, return_logprob, prompt_logprobs); a later "
        "release",
    ),
    Handled(
        pattern(r"init_weights_\w+|(?:destroy|update|receive|pull)_weights\w*|(?!download)\w*weights_from_\w+$"),
        " It put new weights into the running server, as a trainer asks for.",
        "restart it with those weights on disk; names, shapes, dtype and parallelism that the trainer sends have to be "
        "the server's",
    ),
    Handled(
        pattern(r"(?:release|resume)_memory_\w+|\w*(?:onload|wake_up)\w*$"),
        " It gave memory up or took it back, as a trainer asks for between two steps.",
        "no request may run meanwhile, or wait: pause_generation with mode abort (retract puts them back into the "
        "queue, which then never empties), then flush_cache; once without --enable-memory-saver; then a later release",
    ),
    Handled(
        pattern(r"\w*(?:encoder_info|_encoder_|mm_embed|multimodal)\w*$"),
        " It counted the tokens of an image's or a sound's encoder in a batch.",
        "once with --chunked-prefill-size -1: a chunk that ends inside such tokens miscounts them; one such request "
        "at a time; then a later release",
    ),
    Handled(
        pattern(r"\w*(?:stash|chunked_req)\w*$"),
        " It put a request that is prefilled in chunks away between two of them.",
        "a --chunked-prefill-size above the longest prompt (-1 for none), or shorter prompts: what fits in one chunk "
        "is never put away; then a later release. More memory does not help where pools are next to empty",
    ),
    Handled(
        pattern(r"\w*sanity_check\w*$"),
        " It looked through its own prefix cache, which it does while it is idle, or was asked to.",
        "unset SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK, if it is set: the check itself may be at fault; once with "
        "--disable-radix-cache; then a later release",
    ),
    Handled(
        pattern(r"flush_cache\w*$"),
        " It waited for the prefix cache to be flushed, which a server does only while nothing runs or waits.",
        "abort every request first (abort_request with abort_all), and flush when #running-req and #queue-req are 0; a "
        "request that stays at 1 was never ended: a later release",
    ),
    Handled(
        pattern(r"(?:pause|continue)_generation$"),
        " It was asked to pause or to go on (pause_generation), as a trainer does.",
        "pause while requests run, with mode abort, or not at all; then a later release",
    ),
    Handled(
        pattern(r"pop_(?:preallocated|transferred|bootstrapped)\w*$|_?pre_alloc\w*$|_?resolve_pending\w*$"),
        " It handed a request on between the queues of a split server.",
        "a later release on both servers, above all where the request had been aborted, retracted or timed out "
        "meanwhile; until then fewer requests at once, and once with the other of --disaggregation-transfer-backend "
        "mooncake and nixl",
    ),
    Handled(
        pattern(r"handle_(?:batch_)?(?:embedding|generate)_request$"),
        " It took up a request that had just come in.",
        "what sent the last request leaves a field out, or is of another release: a gRPC client, a router or its "
        "health check, or a client's own code; once without it; then a later release",
    ),
    Handled(
        pattern(r"\w*broadcast_(?:pyobj|reqs)\w*$|point_to_point_pyobj$"),
        " It handed requests on from one rank to the others.",
        "one way of sharing a model less at a time: --attn-cp-size 1, without --enable-dp-attention, --pp-size 1, --dp "
        "1; --tp stays; then a later release",
    ),
    Handled(
        pattern(r"_?(?:inject|wrap|apply|replace|run|set)_lora\w*$|\w*_lora_into_\w+$"),
        " It put or ran LoRA adapters at a layer.",
        "once without adapters; then another backend of that layer (--lora-backend, --moe-runner-backend; of vLLM "
        "Marlin's experts, VLLM_MXFP4_USE_MARLIN=1): not each takes adapters; a later release",
    ),
    Handled(
        pattern(r"\w*_session\w*$"),
        " It served a session of requests.",
        "once with requests without session_params; a later release",
    ),
    Handled(
        pattern(r"_?dump_snapshot$|_snapshot$|_cuda_memorySnapshot$|\w*memory_snapshot\w*$|_?record_memory_history$"),
        " It wrote down a snapshot of the device's memory, which a profile with the activity MEM asks for; no memory "
        "lacked.",
        "profile without the activity MEM (/start_profile with CPU and GPU alone; of vLLM without a memory profile), "
        "which torch does not serve on each platform (ROCm); a later torch, or release, that survives it",
    ),
    Handled(
        pattern(r"wrapper_custom$|get_CKGEMM_config$"),
        " It called a kernel of AITER (AMD's library), compiled at its first call, or as AITER was built.",
        "once with SGLANG_USE_AITER=0, which does without it; then AITER built anew for this GPU (GPU_ARCHS as "
        "rocminfo names it, PREBUILD_KERNELS=0: kernels then compile as they are called), of the commit that the "
        "image's Dockerfile names, or a later image",
    ),
    Handled(
        pattern(r"\w*(?:start|stop)_profile\w*$"),
        " It profiled itself, as somebody had asked for.",
        "do without the profile (/start_profile), or once with fewer activities; a later release",
    ),
)
_HANDLING = 3  # frames
# Of these the line that failed names the thing too.
_KEPT = (
    Handled(
        pattern(r"\w*grammar\w*$"),
        " It took requests with structured output (a schema, regex or grammar, or a tool that is forced) into a batch.",
        "once with requests without response_format, regex, ebnf and forced tools; another --grammar-backend; a later "
        "release",
    ),
    Handled(
        pattern(r"multimodal_inputs?$|mm_(?:inputs?|items?)$"),
        " It kept what a batch's requests hold beside text, such as images, or nothing.",
        "once with requests of text alone, and without sessions; a later release",
    ),
    Handled(
        pattern(r"spec_info$|draft_\w+$|accept_len\w*$"),
        " It kept the drafts of a batch's requests.",
        "once without --speculative-algorithm; a later release",
    ),
    Handled(
        pattern(r"req_pool_indices\w*$|out_cache_loc$"),
        " It handled the slots of a batch's requests in the pools, which give none back where no room is left.",
        "a larger --mem-fraction-static, or fewer requests at once (--max-running-requests); a later release",
    ),
    Handled(
        pattern(r"\w*_log_?probs?\w*$|\w*logprobs_(?:val|idx)$"),
        " It made up the log probabilities of a step, which a request had asked for.",
        "once with requests that ask for no log probabilities (logprobs, return_logprob, prompt_logprobs), of prompts "
        "first; a later release",
    ),
    Handled(
        pattern(r"lora\w*$|\w+_lora$"),
        " It kept the adapters of a batch's requests.",
        "once with requests that name no adapter; a later release",
    ),
    Handled(
        pattern(r"sampling_(?:info|params)$|\w*penal\w+$|logit_bias$"),
        " It kept the sampling parameters of a batch's requests.",
        "once with requests that set no penalties and no logit_bias; a later release",
    ),
)


_MORE_THAN_THERE_IS = Handled(
    pattern(r".*\bavailable_size\(\) <= .*\bsize\b"),
    " More of the pool is free than it has: something was given back twice.",
    "once without what gives back early or takes ahead (drafts, --disaggregation-mode decode, "
    "--enable-hierarchical-cache), and with --disable-overlap-schedule; then a later release",
)


_LOADED_AGAIN = Handled(
    pattern(r".*\bParameter' object has no attribute 'weight_loader'"),
    " It put new weights into the running server: the first load has made quantised parameters (FP8) ready for their "
    "kernels, and they have no loader any more.",
    "restart it with those weights on disk, or take a later release, which keeps the loaders; the checkpoint and its "
    "names are right",
)
_PUTS_WEIGHTS = pattern(r"\S+ (?:update|receive|pull)_weights\w*$")


def handling(death: Death) -> Handled | None:
    """Return what the innermost frames took in hand, by their functions and the line; None if those do not say."""
    if death.path.startswith("server_args"):
        # A check of the start has nothing in hand yet.
        return None
    if _MORE_THAN_THERE_IS.functions.match(death.statement):
        return _MORE_THAN_THERE_IS
    if _LOADED_AGAIN.functions.match(death.message) and any(map(_PUTS_WEIGHTS.match, death.frames)):
        return _LOADED_AGAIN
    # Whoever shortens a traceback may put the class, or the module, before the function.
    names = [frame.partition(" ")[2].rpartition(".")[2] for frame in reversed(death.frames[-_HANDLING:])]
    of_function = (one for name in names for one in _HANDLED if one.functions.match(name))
    words = [] if death.statement.startswith("raise ") else re.findall(r"\w+", death.statement)
    of_line = (one for name in (*names[:1], *words) for one in _KEPT if one.functions.match(name))
    return next(of_function, None) or next(of_line, None)


_PATH = pattern(r"/(\w+) HTTP/")
_RIGHT_ABOVE = 4  # lines


def commanded(facts: LogFacts, place: Place) -> tuple[str, str] | None:
    """Return what was asked of a server beside requests right above a place, as it ended, and what to try; else None.

    Args:
        facts: the log.
        place: where it tells of an end.
    """
    asked = facts.remarks.get(COMMANDED)
    if asked is None or not 0 < place.line - asked.place.line <= _RIGHT_ABOVE or last_work(facts) > asked.place.line:
        return None
    path = found[1] if (found := _PATH.search(asked.text)) else ""
    look = next((one.look for one in _HANDLED if one.functions.match(path)), "")
    return f"/{path} (line {asked.place.line})", look


def as_it_retracted(facts: LogFacts, death: Death) -> Handled | None:
    """Return the retraction to which an exception of a case without code belongs, by what is above or in it; else None.

    What copies KV to the host (get_cpu_copy) is called as a request is retracted.
    """
    if death.frames or death.type_name != "NotImplementedError":
        return None
    last = [rank.retractions.last.line for rank in facts.schedulers if rank.retractions.last is not None]
    above = any(0 < death.place.line - line <= _RIGHT_ABOVE for line in last)
    if not above and "get_cpu_copy" not in death.statement:
        return None
    usage = death.usage
    windows = usage is not None and (usage.swa or 0) >= _FULL and (usage.full or 0) <= (usage.swa or 0) - _APART
    return replace(_HANDLED[0], look=f"{_WINDOWS * windows}{_HANDLED[0].look}")


_FULL, _APART = 0.9, 0.2
_WINDOWS = "a larger --swa-full-tokens-ratio, as it is the pool of the sliding window that was full; "
