"""The device's memory ran out, or weights left none for the pools."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.flashinfer_workspace import of_fused_sums
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import reserved_pages
from gemma4_triage.logs.others_on_the_gpu import beside, of_a_list, of_another
from gemma4_triage.logs.pictures_on_the_gpu import PROCESS, kept_on_the_gpu, prepares_pictures
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import PLAN_POOLS, cause_in, of_death, of_memory, remarked
from gemma4_triage.logs.rules import graph_capture
from gemma4_triage.logs.scores_of_a_chunk import of_scores
from gemma4_triage.logs.shared_gpus import of_a_shared_gpu
from gemma4_triage.logs.since_the_start import grown_by_a_note, grown_since_start
from gemma4_triage.logs.trainers_memory import of_a_release, of_a_trainer

_ON_THE_DEVICE = "CUDA out of memory"
_TOO_SMALL = "Not enough memory. Please try to increase --mem-fraction-static"
_NO_POOL = "leave no GPU memory for the KV cache under --mem-fraction-static"
_UNBALANCED = "The memory capacity is unbalanced"
_HOST = "Not enough host memory available"
_CAUSES = {
    _ON_THE_DEVICE: "The device's memory ran out: pools and weights left too little for activations.",
    "CUDA error: out of memory": "The device's memory ran out, outside of torch's own allocator.",
    _UNBALANCED: "GPUs of this server do not have the same memory free: another process holds some of one.",
    _HOST: "The host has not the memory that the hierarchical cache asks for.",
    _TOO_SMALL: "Weights alone fill the share of memory that pools were to come from.",
    _NO_POOL: "Weights alone fill the share of memory that pools were to come from.",
}
_ABOVE = pattern(r"Raise --mem-fraction-static above (\d\.\d+)")
_TOWER = pattern(r"(?:\w*_)?(?:vision|vit|siglip|clip|audio)\w*\.py:|.* (?:get_image_feature|get_audio_feature)\w*$")
_PICTURES = pattern(r"(?:image_process\w*|video_process\w*|processing_\w+|(?!logits_)\w+_processor)\.py:")
_PINNED = pattern(r".* \w*(?:offload|pin_memory|host_register|alloc_host|pinned)\w*$|memory_pool_host\.py:")
_LOADS = pattern(r".* (?:load_model|_initialize_model|load_weights\w*|process_weights_after_loading)$")
_OF_WEIGHTS = (
    "The device's memory ran out while weights were loaded: they alone do not fit on each GPU. No share helps.",
    (
        "more GPUs (--tp), a quantised checkpoint, or larger GPUs; --cpu-offload-gb where slow steps do",
        "nvidia-smi before the start: what another process holds is missing here",
    ),
)
_COPIES = pattern(r".* (?:process_weights_after_loading|\w*(?:quant|repack|shuffle|swizzle|convert|fuse)\w*)$")
_ALL_AT_ONCE = pattern(r"\b(?:dict|list|sorted)\(weights")
_OF_COPIES = (
    "The device's memory ran out as weights were converted while they were loaded: what they are made into needs room "
    "beside what they are read from. No share helps.",
    (
        "a checkpoint that is in the form already (of --quantization, or the publisher's own of that kind), so that "
        "nothing is converted; more GPUs (--tp)",
        "a later release, whose loader converts a layer at a time; --load-format auto from a local folder meanwhile",
        "nvidia-smi before the start: what another process holds is missing here",
    ),
)
_FIRST = pattern(r".* (?:set_device|init_torch_distributed|init_device|_lazy_init|_cuda_init)$")
_OF_OTHERS = (
    "The GPU had no memory left before anything was loaded: another process holds it, mostly a server that has not "
    "ended, or was not ended whole.",
    (
        "nvidia-smi names the processes; end what is left of an earlier server, or choose another GPU: --base-gpu-id, "
        "CUDA_VISIBLE_DEVICES",
        "no share of memory helps; of another container's process nvidia-smi on the host tells",
    ),
)
_OF_PINNED = (
    "The host had no memory to pin (CUDA calls that out of memory too): what is kept on the host for the GPU is "
    "more than the host, its container or WSL lets be pinned.",
    (
        "less on the host: a smaller --cpu-offload-gb or --hicache-size, or 0",
        "docker: --ulimit memlock=-1 and more memory; WSL: memory= in .wslconfig; ulimit -l, free -g",
    ),
)
_TRAINS = pattern(r".* (?:update_weights\w*|resume_memory_\w+|\w*weights_from_\w+)$")
_PENALISES = pattern(r"(?:orchestrator|min_new_tokens|\w*penalt\w*|sampling_batch_info)\.py:")
_OF_A_TRAINER = (
    "The device's memory ran out as new weights were put into the running server, or as it took its memory back: what "
    "the trainer holds or sends is on the same GPU, beside weights and pools.",
    (
        "send weights in smaller buckets, and only those of this rank; free the trainer's copies and cache before",
        "--pp-size 1, if stages are in use: each may be sent the weights of all",
        "release the KV pool before (release_memory_occupation, --enable-memory-saver), and take it back behind",
    ),
)
_STATES = pattern(r".* _?(?:init|alloc|create)\w*mamba\w*$|.*\bMambaPool\b")
_STATE_TENSOR = pattern(r"\b(?:temporal|conv|ssm)_states?\b")
_OF_STATES = (
    "The device's memory ran out where the states of layers of linear attention (Mamba, Gated DeltaNet) are laid out: "
    "that pool holds so many requests, each with a state of fixed size, and is made before the KV pool.",
    (
        "fewer of them: a lower --max-running-requests, or --max-mamba-cache-size of its own; --mamba-ssm-dtype "
        "bfloat16 halves float32 states",
        "a later release, which fits that pool to what the weights leave; --disable-radix-cache keeps no states of "
        "prefixes",
        "more GPUs (--tp): each then has a part of every state",
    ),
)
_LOGITS = pattern(r"logits_processor\.py:")
_ASKED = pattern(
    r"Tried to allocate (\d+(?:\.\d+)?) ([MG])iB.*?total capacity of (\d+(?:\.\d+)?) GiB of which "
    r"(\d+(?:\.\d+)?) ([MG])iB"
)
_INNER = 3  # frames
_ROOM_GIB = 1.0  # for what else a step needs beside the allocation that failed
_DRAFT_SHARE = 0.2  # of the device, what a target's pools and graphs leave a draft's pool room in
_POOL_SHARE = 0.05  # of the device, the least that is of use as a KV pool
_MOST_SHARE = 0.95  # of the device, beside which a step finds room


def _explains(death: Death) -> bool:
    if graph_capture.RULE.explains(death):
        return False
    return bool(cause_in(death, _CAUSES)) or death.type_name == "OutOfMemoryError"


def _tell(facts: LogFacts, death: Death) -> Finding:
    too_small = _TOO_SMALL in death.message or _NO_POOL in death.message
    advice = (
        (*_whole_in_each_stage(facts), *(_named_share(death) or _larger_share(facts)))
        if too_small
        else _other_advice(facts, death) or _smaller_share(facts, death)
    )
    cause = cause_in(death, _CAUSES) or _CAUSES[_ON_THE_DEVICE]
    if _UNBALANCED in death.message and _after_the_target(facts, death):
        cause, advice = _OF_A_SECOND_CHECK, advice[::-1]
    elif death.usage is None and any(map(_LOADS.match, death.frames)) and _ON_THE_DEVICE in death.message:
        held = any(map(_COPIES.match, death.frames[-_INNER:])) or _ALL_AT_ONCE.search(death.statement)
        cause, advice = _OF_COPIES if held else _OF_WEIGHTS
    elif death.usage is None and any(_FIRST.match(frame) for frame in death.frames[-3:]) and not too_small:
        cause, advice = (cause, advice) if _UNBALANCED in death.message else _OF_OTHERS
    elif any(_PINNED.match(frame) for frame in death.frames[-3:]) and _HOST not in death.message:
        cause, advice = _OF_PINNED
    elif (draft := _of_the_draft(facts, death)) is not None and not too_small:
        cause, advice = draft
    elif any(_PICTURES.match(frame) for frame in death.frames[-3:]):
        cause, advice = _of_pictures(death)
    elif death.usage is None and _is_of_states(death) and not too_small:
        cause, advice = _OF_STATES
    elif any(_TOWER.match(frame) for frame in death.frames) and not too_small:
        cause = "The device's memory ran out in the image or audio encoder: pools and weights left it too little."
        advice = (*advice, "fewer or smaller images in a request and in a prefill: a smaller --chunked-prefill-size")
        if (handed := kept_on_the_gpu(facts)) is not None:
            cause, advice = handed[0], (*handed[1], *advice)
        elif (grown := grown_since_start(facts, death)) is not None:
            cause, advice = grown[0], (*grown[1], *advice)
    elif (trainer := of_a_trainer(facts, death) or of_a_release(facts)) is not None and not too_small:
        cause, advice = trainer
    elif any(map(_TRAINS.match, death.frames)) and not too_small:
        cause, advice = _OF_A_TRAINER[0], (*_OF_A_TRAINER[1], *advice[:1])
    elif any(_PENALISES.match(frame) for frame in death.frames[-4:]) and not too_small:
        cause = (
            "The device's memory ran out where sampling parameters of a batch are laid out: a row of the whole "
            "vocabulary for each request that sets a penalty, min_new_tokens or logit_bias."
        )
        advice = ("fewer requests at once (--max-running-requests), or none of those parameters", *advice)
    elif any(_LOGITS.match(frame) for frame in death.frames[-3:]) and not too_small:
        cause = (
            "The device's memory ran out where logits are made: a row of the whole vocabulary for each token asked for."
        )
        advice = (
            "prompt log probabilities ask for every prompt token: logprob_start_len near the end, fewer such requests",
            *advice,
        )
    elif (scores := of_scores(facts, death)) is not None and not too_small:
        cause, advice = scores[0], (*scores[1], *advice[:1])
    elif (fused := of_fused_sums(facts, death)) is not None and not too_small:
        cause, advice = fused
    if too_small and (shared := of_a_shared_gpu(facts, death)) is not None:
        cause, advice = shared
    if "req_to_token" in death.statement and not too_small:
        cause = (
            "The device's memory ran out where the table of requests and their tokens is laid out: a row of the whole "
            "--context-length for each request that may run."
        )
        advice = ("a smaller --context-length, or a smaller --max-running-requests: their product is its size", *advice)
    pictured = () if "pictures" in cause else prepares_pictures(facts, death)
    plain = cause == _CAUSES[_ON_THE_DEVICE] and not pictured
    another = of_another(death) or of_a_list(facts) if plain else None
    grown = grown_by_a_note(facts) if plain and another is None else None
    if another is not None or grown is not None:
        # A share that would have left what was asked for is of no use against what grows, or is not this server's.
        told = another or grown or (cause, ())
        cause, advice = told[0], (*told[1], *advice[1:])
    elif "pictures" not in cause:
        advice = (*pictured, *advice) if pictured else (*advice, *beside(death))
    if any(map(_FALLBACK.search, (death.statement, *death.frames[-_INNER:]))) and not too_small:
        advice = (_OF_A_FALLBACK, *advice)
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(*of_memory(facts, death), *_memory_lines(facts)),
        ruled_out_if=("another process used the same device",) if not (too_small or another) else (),
        advice=advice,
        next_commands=(PLAN_POOLS,),
        upstream=("SGLang 4330",) if too_small else (),
    )


def _is_of_states(death: Death) -> bool:
    """Say whether memory was asked for the pool of states."""
    inner = any(map(_STATES.match, death.frames[-_INNER:]))
    return inner or (_STATE_TENSOR.search(death.statement) is not None and "memory_pool" in death.frame)


_FALLBACK = pattern(r"\b\w+_(?:torch|naive|fallback|reference)(?:$|: )")
_OF_A_FALLBACK = (
    "a smaller --chunked-prefill-size (2048), then a shorter --context-length: it asked for it in a fallback in "
    "PyTorch, which holds as a whole what a kernel computes in pieces, and which this GPU or release has no kernel "
    "for; then a later release"
)


def _of_pictures(death: Death) -> tuple[str, tuple[str, ...]]:
    """Return cause and advice where pictures were being prepared, which the tokenizer's process does on the GPU."""
    others = sorted((float(used), process) for process, used in PROCESS.findall(death.message))
    small = f" {others[0][0]:.1f} GiB are held by process {others[0][1]}." if len(others) > 1 else ""
    return (
        "The device's memory ran out as pictures were prepared on the GPU, in the tokenizer's own process, beside what "
        f"the scheduler's process holds.{small}",
        (
            "--disable-fast-image-processor: pictures are then prepared on the CPU",
            "a later release, if that process grows with every picture (nvidia-smi): some have lost memory there",
            "a lower --mem-fraction-static leaves it room; limit the size of pictures",
        ),
    )


_OF_A_SECOND_CHECK = (
    "GPUs of this server do not have the same memory free as its draft starts: the target's pools and graphs took "
    "some before, and the check, which is meant for other processes, is made once more."
)


def _after_the_target(facts: LogFacts, death: Death) -> bool:
    """Say whether the graphs of the target had been captured, and a draft is set up."""
    graphs = facts.remarks.get("before_graphs") or facts.remarks.get("graphs_end")
    drafts = facts.settings.get("speculative_algorithm", "None") != "None"
    return drafts and graphs is not None and graphs.place.line < death.place.line


_HUGE = "reserved huge pages are not available to it: HugePages_Total in /proc/meminfo, sysctl vm.nr_hugepages"


def _other_advice(facts: LogFacts, death: Death) -> tuple[str, ...]:
    if _UNBALANCED in death.message:
        return (
            "nvidia-smi: end the process that holds memory, or keep that GPU out with CUDA_VISIBLE_DEVICES",
            "if none does, the check is too strict (a draft starts after the target's graphs): a later release, or "
            "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK=1",
        )
    if _HOST in death.message:
        return (
            *((reserved,) if (reserved := reserved_pages(facts)) else ()),
            "a smaller --hicache-size or --hicache-ratio; it is asked for once per rank of the host",
            *(() if reserved else (_HUGE,)),
        )
    return ()


def _memory_lines(facts: LogFacts) -> list[Evidence]:
    return [
        *remarked(facts, "before_weights", "memory before the weights"),
        *remarked(facts, "after_weights", "memory behind the weights"),
    ]


def _named_share(death: Death) -> tuple[str, ...]:
    """Return what to do about a share that the message itself names; empty if it names none."""
    if (above := _ABOVE.search(death.message)) is None:
        return ()
    more = float(above[1]) + _POOL_SHARE
    room = f"; {more:.2f} leaves a pool of a twentieth of the GPU" if more <= _MOST_SHARE else ""
    return (
        f"raise --mem-fraction-static above {above[1]}, where weights alone fit{room}",
        *(("more GPUs (--tp) or fewer bits: that share leaves next to nothing beside weights",) * (not room)),
    )


def _larger_share(facts: LogFacts) -> tuple[str, ...]:
    """Say from which --mem-fraction-static on a pool fits: SGLang gives it what is left less the share that is not."""
    before, after = facts.remarks.get("before_weights"), facts.remarks.get("after_weights")
    had = None if before is None else number_in(before.text, "avail mem")
    left = None if after is None else number_in(after.text, "avail mem")
    if not had or left is None:
        return (
            "raise --mem-fraction-static; if memory then runs out elsewhere, more GPUs (--tp) or a smaller checkpoint",
        )
    of_draft = _target_and_draft(facts)
    if of_draft is not None:
        return of_draft
    least = 1 - left / had
    if least + _POOL_SHARE > _MOST_SHARE:
        return (f"weights take {had - left:.1f} of {had:.1f} GB: no share leaves a pool; more GPUs or fewer bits",)
    return (
        f"weights take {had - left:.1f} of {had:.1f} GB: --mem-fraction-static has to be above {least:.2f}; "
        f"{least + _POOL_SHARE:.2f} leaves a pool of {_POOL_SHARE * had:.1f} GB, 0.90 one of {left - 0.1 * had:.1f} GB",
    )


_PARAMETERS = pattern(r"(?i)(?<![\w.])(\d+(?:\.\d+)?)B(?![a-z])")
_WHOLE = 0.75  # of what all weights take in two bytes each


def _whole_in_each_stage(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where each stage of a pipeline loaded the whole model; empty if none did."""
    stages, loaded = facts.settings.get("pp_size", "1"), facts.remarks.get("after_weights")
    size = _PARAMETERS.search(facts.settings.get("model_path", "").rpartition("/")[2])
    if loaded is None or size is None or stages in ("1", "None") or facts.settings.get("tp_size", "1") != "1":
        return ()
    used = number_in(loaded.text, "mem usage")
    if "dtype=torch.bfloat16" not in loaded.text or not used or used < _WHOLE * 2 * float(size[1]):
        return ()
    return (
        f"--tp {stages} in place of --pp-size {stages}: weights of {size[1]}B parameters take some "
        f"{2 * float(size[1]):.0f} GB in all, and one stage alone holds {used:.1f} GB of them: this release's class "
        "of the model does not split its layers by stages, so each has the whole. A later release splits them "
        "(SGLang 21070); a larger share only hides it",
    )


_TYPE = pattern(r"\btype=(\w+)")


_OF_A_DRAFT = pattern(r"\w*(?:eagle|draft|mtp|nextn|dflash|dspark|standalone)\w*\.py:")


def _of_the_draft(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where memory ran out as the draft came behind the target's pool; None elsewhere."""
    first, last = facts.remarks.get("first_before_weights"), facts.remarks.get("after_weights")
    second = facts.remarks.get("before_weights")
    if death.usage is not None or facts.served or not any(map(_OF_A_DRAFT.match, death.frames)):
        return None
    if first is None or last is None or second is None or first.place.line == second.place.line:
        return None
    had, used = number_in(first.text, "avail mem"), number_in(last.text, "mem usage")
    if not had or not used or last.place.line < second.place.line:
        return None
    asked = facts.settings.get("mem_fraction_static", "None")
    try:
        share = float(asked) - used / had - _POOL_SHARE
    except ValueError:
        share = 0.0
    lower = (
        f"--mem-fraction-static {share:.2f} ({asked} now)" if share > _POOL_SHARE else "a lower --mem-fraction-static"
    )
    return (
        f"The device's memory ran out as the draft was set up: the target's pool had taken its share first, and the "
        f"draft, which took {used:.1f} GB of {had:.1f} for its weights, comes with a pool of its own on top, which "
        "--mem-fraction-static does not count.",
        (
            f"{lower}: the draft's weights and its pool then have room behind the target's",
            "a smaller draft (a head of one layer, as EAGLE3's, in place of a whole model), fewer --cuda-graph-max-bs "
            "and draft tokens; a later release, which counts the draft",
        ),
    )


def _target_and_draft(facts: LogFacts) -> tuple[str, ...] | None:
    """Say what two models take together, by the memory that each has used; None where one alone was loaded."""
    first, last = facts.remarks.get("first_after_weights"), facts.remarks.get("after_weights")
    begin = facts.remarks.get("first_before_weights")
    if first is None or last is None or begin is None:
        return None
    names = [_TYPE.search(remark.text) for remark in (first, last)]
    weights = [number_in(remark.text, "mem usage") for remark in (first, last)]
    had = number_in(begin.text, "avail mem")
    if None in names or None in weights or not had or names[0][1] == names[1][1]:  # type: ignore[index]
        return None
    both, share = sum(filter(None, weights)), facts.settings.get("mem_fraction_static", "None")
    said = f"target and draft take {both:.1f} of {had:.1f} GB: raise --mem-fraction-static"
    if share != "None":
        said += f" above the {share} that it was"
    return (
        f"{said}, to {both / had + _DRAFT_SHARE:.2f} or more: graphs and the pools of both come on top of the weights",
        "if memory then runs out elsewhere: a smaller --cuda-graph-max-bs, fewer draft tokens, more GPUs (--tp)",
    )


def _smaller_share(facts: LogFacts, death: Death) -> tuple[str, ...]:
    share = facts.settings.get("mem_fraction_static", "")
    smaller = "a smaller --chunked-prefill-size or --max-running-requests needs less for activations"
    if (graphs := facts.remarks.get("prefill_graphs")) and (held := number_in(graphs.text, "mem usage")):
        smaller = (
            f"--cuda-graph-backend-prefill disabled (--disable-piecewise-cuda-graph before 0.5.14) gives back the "
            f"{held:.2f} GB that graphs of prefills hold here; {smaller}"
        )
    asked = _ASKED.search(death.message)
    try:
        now = float(share)
    except ValueError:
        now = None
    if asked is None:
        return ("lower --mem-fraction-static by 0.05", smaller)
    wanted = float(asked[1]) / (1024 if asked[2] == "M" else 1)
    total, free = float(asked[3]), float(asked[4]) / (1024 if asked[5] == "M" else 1)
    less = (wanted - free + _ROOM_GIB) / total
    if less <= 0 or (now is not None and less >= now):
        return ("another process holds memory of this device, or it is in pieces: nvidia-smi", smaller)
    if now is None:
        return (
            f"lower --mem-fraction-static by {less:.2f}: {wanted:.2f} GiB asked, {free:.2f} free",
            smaller,
        )
    needed = now - less
    return (f"--mem-fraction-static {needed:.2f} would have left the {wanted:.2f} GiB that were asked for", smaller)


RULE = of_death("out-of-memory", "memory of the device ran out", _explains, _tell, alarms=("no-memory", "answered-500"))
