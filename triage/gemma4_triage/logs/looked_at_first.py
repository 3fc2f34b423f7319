"""What a log itself names as the thing to look at first, beside what a failure's own words say of it."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.remarks import number_in

_STATES = pattern(r"linear_attn|mamba|conv1d|\bgdn\b|delta_net")


def weights_left_out(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where weights of the checkpoint had no place, before anything was computed; empty if all had.

    Args:
        facts: of a server whose numbers are wrong.
    """
    said = facts.remarks.get("first_left_out") or facts.remarks.get("left_out")
    if said is None:
        return ()
    of_states = " (such layers of linear attention are left as they are in a copy, and built quantised here)"
    return (
        f"begin with line {said.place.line}: weights of the checkpoint have no place in the model's class, so those "
        f"layers hold what was in memory{of_states * bool(_STATES.search(said.text))}. The publisher's own copy (of "
        "ModelOpt, FP8 or bfloat16), or a later release, whose names fit; neither kernels nor drafts are at fault",
    )


_ROWS = pattern(
    r"does not match qo_indptr|repeats can ?not be negative|must match the size of tensor|Sizes of tensors must match"
)
_PROBES = pattern(r"(?i)/health\w*\b|\bhealth[ -]?(?:checks?|probes?)\b|\b(?:liveness|readiness) probes?\b")
_OF_RERANKERS = pattern(r"forward_(?:batch_)?embedding|/roberta|\bxlm_?roberta|(?i:rerank)")
_TYPES_LACK = (
    " Of rerankers and encoders such a request has no token types, where the others in its batch have (SGLang 17491)."
)


def health_checks_in_the_batch(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where checks of health may be in the batch whose rows differ; empty where none is told of."""
    if not _ROWS.search(death.message):
        return ()
    asked = next((alarm for alarm in facts.alarms if alarm.kind == "health"), None)
    notes = facts.remarks.get("notes")
    if asked is not None and asked.place.line < death.place.line:
        said = f"line {asked.place.line} tells of checks that timed out"
    elif notes is not None and _PROBES.search(notes.text):
        said = "the notes tell of probes that ask for its health meanwhile"
    else:
        return ()
    spoken = " ".join((notes.text if notes else "", death.statement, *death.frames))
    return (
        f"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false, or probe /v1/models instead of /health: {said}; each is a "
        "request of one token, those that timed out stay in the scheduler, and a batch with them has come to other "
        "rows than its index counts (SGLang 35884)."
        f"{_TYPES_LACK if _OF_RERANKERS.search(spoken) else ''} Then a later release",
    )


_HANDS_OUT = pattern(r".*\balloc(?:_\w+)?_kernel$|.* alloc_(?:decode|extend)\w*$")
_FULL = 0.97


def hands_out_of_a_full_pool(death: Death) -> tuple[str, ...]:
    """Return what to do where the kernel that hands out pages failed while the pool was full; empty if it did not."""
    usage = death.usage
    full = usage is not None and max(usage.full or 0, usage.swa or 0) >= _FULL
    if not full or not any(map(_HANDS_OUT.match, death.frames[-2:])):
        return ()
    return (
        "keep the pool from running full: a lower --max-running-requests, or a larger pool (--mem-fraction-static, "
        "--kv-cache-dtype fp8_e4m3): the kernel that hands out pages runs before anybody looks whether there are as "
        "many, and reads past the list of free ones (SGLang 22035). Then a later release",
    )


_OF_ANOTHER = pattern(r"\bDP[1-9]\d*\b")


def groups_without_attention(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where a later data parallel group of several ranks stands, and none shares attention."""
    asked = facts.settings
    several = all(asked.get(name, "1") not in ("1", "None") for name in ("tp_size", "dp_size"))
    if not several or asked.get("enable_dp_attention") == "True" or not _OF_ANOTHER.search(death.rank):
        return ()
    return (
        "--enable-dp-attention, or one server of --dp 1 for each group behind a router: with --tp and --dp above 1 and "
        "plain attention the ranks of the second group have been addressed as those of the first (SGLang 4149), and "
        "wait for ever; then a later release",
    )


def served_by_a_generic_class(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where vLLM says that the class of transformers serves the model; empty if it does not."""
    said = facts.remarks.get("generic_class")
    if said is None:
        return ()
    return (
        f"a later release of vLLM, which has a class of its own for this model: line {said.place.line} says that one "
        "of transformers stands in for it, which quantises layers too that the copy left as they were (of images, "
        "embedders). Until then the model in bfloat16",
    )


def reserved_pages(facts: LogFacts) -> str:
    """Return what to do about huge pages that the log shows to be reserved; "" if it shows none."""
    said = facts.remarks.get("huge_pages")
    count = number_in(said.text.replace(":", " "), "HugePages_Total") if said is not None else None
    if said is None or not count:
        return ""
    return (
        f"sysctl -w vm.nr_hugepages of fewer, or 0: line {said.place.line} shows {count:.0f} huge pages reserved, "
        "which are taken off the host's memory and which this cache cannot use"
    )


_BELOW = 60  # lines


def clients_that_left(facts: LogFacts, line: int) -> tuple[str, ...]:
    """Return what to do where a request failed since its client had gone, and the server ended; empty elsewhere.

    Args:
        facts: the log.
        line: of the failed request.
    """
    said, ended = facts.remarks.get("cancelled"), facts.remarks.get("sigterm")
    if said is None or not 0 < said.place.line - line <= _BELOW:
        return ()
    then = f", and the server ended right behind it (line {ended.place.line})" if ended is not None else ""
    return (
        "longer timeouts of clients, of the proxy and of its retries, so that nobody leaves a long prefill; then a "
        f"later release: line {said.place.line} has the wait for a request's disconnection cancelled as its client "
        f"went{then}. Neither the model nor that request is at fault (SGLang 39216)",
    )


_ALLOTS_PAGES = pattern(r"Prefill out of memory")


def whole_pages(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where a prefill found no slots, and pages may have several tokens; empty if they have one."""
    page = facts.settings.get("page_size", "")
    if page == "1" or not _ALLOTS_PAGES.search(death.message):
        return ()
    if not page and facts.settings:
        return ()
    return (
        f"with a --page-size above 1{f' ({page} now)' * bool(page)}: a later release, or once a smaller page: earlier "
        "ones count the tokens of a prefill, in chunks above all, without rounding up to whole pages, and let in more "
        "than fits (SGLang 5081, SGLang 7353)",
    )
