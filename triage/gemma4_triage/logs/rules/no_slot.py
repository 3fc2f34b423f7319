"""A step found no slot in one of the two KV pools."""

from __future__ import annotations

import math

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import whole_pages
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import (
    PLAN_POOLS,
    cause_in,
    of_death,
    of_memory,
    of_settings,
    over,
    remarked,
)

_CAUSES = {
    "Decode out of memory": "A decode step found no slot in one of the pools, and there was nothing to retract.",
    "Prefill out of memory": "A prefill found no slots in one of the pools.",
    "ut of memory. Try to lower your batch size": "A step found no slots in one of the pools.",
    "No space left for only one request": "One request alone needs more tokens than a pool has left.",
    "Out of memory even after retracting all other requests": "One request alone needs more tokens than a pool has.",
    "an not alloc mamba cache": "No slot for the state of a request (Mamba, GDN) was free, and none could be evicted.",
    "alloc_req_slots runs out of memory": "More requests were taken in than there are rows for requests.",
}
_ADVICE = (
    "these are tokens of a KV pool, not bytes: a larger pool (--mem-fraction-static, --kv-cache-dtype fp8_e5m2)",
    "or less at once: --max-running-requests, --chunked-prefill-size, a higher --schedule-conservativeness",
)
_PREALLOCATED = (
    "a decode server sets tokens aside for requests that are still on their way (#prealloc-req, #transfer-req): fewer "
    "requests at once (--max-running-requests), a larger --num-reserved-decode-tokens; later releases end such a "
    "request alone"
)
_DRAFTS = pattern(r"\w*(?:eagle|mtp|spec_|ngram|dflash)\w*\.py:")
_OF_DRAFTS = (
    "once without --speculative-algorithm, or with fewer --speculative-num-draft-tokens: each request needs slots for "
    "all of its drafts at once, which retraction and admission do not count in every release (SGLang 14942)"
)
_IN_FLIGHT = (
    "once with --disable-overlap-schedule, and without drafts if it has any: what a retracted request holds is free "
    "only when the step in flight has ended, and drafts ask for more slots than were counted; then a later release"
)
_MIXED = (
    "without --enable-mixed-chunk: a batch that prefills and decodes has taken pages for its prompts that its decodes "
    "needed in the same step"
)
_OF_WINDOWS = (
    "the pool of the sliding layers alone is empty, the full one is not: a larger --swa-full-tokens-ratio (now {now}), "
    "or a smaller --chunked-prefill-size and --max-running-requests"
)
_NEVER_FREED = (
    ". It filled with requests whose transfer is only pretended (fake), which some releases neither cache nor free: "
    "they leak, and a larger pool or less at once only delays it."
)
_OF_A_FAKE = (
    "a real decode server and router in place of --disaggregation-transfer-backend fake and of bootstrap_host 2.2.2.2 "
    "in requests; or --disable-radix-cache for a test of prefill alone; then a later release (SGLang 38094)"
)
_ROWS = pattern(r"available_size\(\)=(\d+).*num_reqs=(\d+)")
_ROOMY = 0.8  # a fuller pool may have had no slot for a batch; an emptier one should have
_SERVE = "gemma4-triage serve --debug 1 -- --model-path MODEL"


def _explains(death: Death) -> bool:
    return bool(cause_in(death, _CAUSES))


def _tell(facts: LogFacts, death: Death) -> Finding:
    usage = death.usage
    roomy = usage is not None and max(usage.full or 0, usage.swa or 0) < _ROOMY
    cause, advice, sure = cause_in(death, _CAUSES), (_larger(facts), *_ADVICE[1:]), True
    if "mamba cache" in death.message:
        return _of_states(facts, death)
    if "alloc_req_slots" in death.message:
        return _of_rows(facts, death)
    counted = _of_numbers(facts, decoding="Decode" in death.message)
    if counted is not None:
        roomy, sums = counted
    if roomy:
        advice, cause, sure = _not_given(facts)
    elif counted is not None:
        cause = f"{cause.removesuffix('.')}: {sums}."
        if "Decode" in death.message and (in_pages := _short_of_pages_alone(facts)):
            advice = (in_pages, *advice)
    if not roomy and (pages := whole_pages(facts, death)):
        advice = (*pages, *advice) if facts.settings.get("page_size") else (*advice, *pages)
    retracted = any(rank.retractions.requests for rank in facts.ranks)
    if facts.settings.get("disaggregation_mode") == "decode":
        advice = (_PREALLOCATED, *advice)
    if not roomy and _of_windows_alone(facts):
        now = facts.arguments.get("swa_full_tokens_ratio", "not named")
        advice = (_OF_WINDOWS.format(now=now), *advice[1:])
    if "Decode" in death.message and facts.arguments.get("enable_mixed_chunk") == "True":
        advice = (_MIXED, *advice)
    alone = "Prefill" in death.message and not roomy and _one_prompt(facts, death)
    if alone:
        cause = f"{cause.removesuffix('.')}. One prompt alone filled the pool, chunk by chunk, while nothing else ran."
        advice = (_ALONE, advice[0])
    if not roomy and facts.settings.get("disaggregation_transfer_backend") == "fake":
        cause = f"{cause.removesuffix('.')}{_NEVER_FREED}"
        advice = (_OF_A_FAKE, *advice)
    drafts = any(map(_DRAFTS.match, death.frames))
    if drafts:
        cause = cause.replace("A step found", "Drafts, or their verification, found").replace(
            "A decode step found", "Drafts, or their verification, found"
        )
        advice = (*advice, _OF_DRAFTS)
    elif retracted and "Decode" in death.message:
        cause = cause.replace(", and there was nothing to retract", ", although requests had been retracted")
        advice = (*advice, _IN_FLIGHT)
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        evidence=(*of_memory(facts, death), *_numbers(facts, counted)),
        advice=advice,
        next_commands=(_SERVE,) if roomy else (PLAN_POOLS,),
        upstream=("SGLang 7909",) if roomy else (),
    )


def _short_of_pages_alone(facts: LogFacts) -> str:
    """Return what to do where a pool has the tokens that a decode asks for, and not a page for each; "" if not."""
    page, asked, free = facts.settings.get("page_size", "1"), _number(facts, "asked", "Try to allocate"), _free(facts)
    if not page.isdecimal() or int(page) < 2 or asked is None or asked > min(free.values()):
        return ""
    return (
        "a release that counts whole pages before a decode (SGLang 4913), or --page-size 1: as many tokens are free as "
        f"are asked for, but each request may need a page of {page}, and a check that counts tokens lets such a step "
        "begin and retracts nobody"
    )


def _larger(facts: LogFacts) -> str:
    """Return how the pool becomes larger: a number of tokens that the start names holds, whatever the share is."""
    tokens = facts.arguments.get("max_total_tokens", "None")
    if not tokens.isdecimal():
        return _ADVICE[0]
    return (
        f"these are tokens of a KV pool, not bytes: a larger --max-total-tokens than the {tokens} that this server was "
        "given, or without it; --mem-fraction-static makes no pool larger than that"
    )


_WHICH_POOL = (
    " The other pool lacked nothing: what the cache was asked to evict of each (evict_from_tree_cache: num_tokens, "
    "swa_num_tokens) may be exchanged, or asked of one alone."
)


def _free_and_kept(facts: LogFacts, pool: str) -> tuple[int | None, int | None]:
    """Return how many tokens a pool had free, and how many the cache counts as evictable; None where not said."""
    text = found.text if (found := facts.remarks.get(pool)) else ""
    free, kept = (int(match[1]) if (match := words.search(text)) else None for words in (_FREE, _KEPT))
    return free, kept


def _not_given(facts: LogFacts) -> tuple[tuple[str, ...], str, bool]:
    """Return what to do where the pools had room and did not give it, the cause, and whether the numbers tell it."""
    asked = _number(facts, "asked", "Try to allocate")
    states = "free_mamba" in facts.remarks
    advice = (
        "once with --disable-radix-cache: nothing has then to be evicted",
        "a lower --max-running-requests and --chunked-prefill-size ask for less at once",
        *(("more states: a larger --max-mamba-cache-size, or --mamba-full-memory-ratio",) if states else ()),
        "then a later release",
    )
    pools = {"free_full": "full pool", "free_swa": "sliding-window pool"}
    counts = {pool: _free_and_kept(facts, pool) for pool in pools}
    for pool, name in pools.items():
        free, kept = counts[pool]
        others = [one for other, (one, _) in counts.items() if other != pool and one is not None]
        if asked is not None and free is not None and kept and free < asked:
            held = name + (", beside states" if states else "")
            said = (
                f"A step asked for {asked:.0f} tokens, {free} were free, and the prefix cache did not give up any of "
                f"the {kept} that it counts as evictable ({held}): a defect of the release, not too small a pool."
            )
            if any(one >= asked for one in others):
                said += _WHICH_POOL
            return advice, said, True
    said = "A step found no slot although the pools had room: pages are lost, or one pool refused what the other gave."
    return advice, said, False


_ALONE = (
    "fewer requests at once do not help. If that prompt is longer than the pool: a smaller --context-length, or a "
    "larger pool; if it is shorter, its earlier chunks are held again with each new one: once with "
    "--chunked-prefill-size -1, refuse bootstrap_host of clients that ask one server alone (SGLang 36855), then a "
    "later release"
)
_CHUNKS = 3  # lines


def _one_prompt(facts: LogFacts, death: Death) -> bool:
    """Say whether the last batches before it were chunks of one prompt, none of which came from the prefix cache."""
    for rank in facts.schedulers:
        columns = (rank.series[name] for name in ("line", "new_tokens", "running_max", "queued_max"))
        rows = [row for row in zip(*columns, strict=True) if row[0] is not None and row[0] < death.place.line]
        last = rows[-_CHUNKS:]
        same = {new for _, new, _, _ in last}
        if len(last) == _CHUNKS and same == {max(same, default=0) or None} and not any(r or q for _, _, r, q in last):
            return True
    return False


_AVAILABLE = {
    "full": ("Available full tokens", "Available tokens", "Avaliable tokens"),
    "swa": ("Available swa tokens", "Available swa"),
}
"""How releases name what a pool has left."""
_FREE = pattern(r"available_size(?:\(\))?_?=(\d+)")
_KEPT = pattern(r"evictable_size(?:\(\))?_?=(\d+)")


def _of_states(facts: LogFacts, death: Death) -> Finding:
    host = facts.settings.get("enable_hierarchical_cache") == "True"
    return Finding(
        rule=RULE.id,
        cause="No slot for the state of a request (Mamba, GDN) was free, and none could be evicted: requests that run, "
        "and copies on their way to or from the host, hold them all. Later releases go on without the copy.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_memory(facts, death),
            *of_settings(facts, "max_running_requests", "max_mamba_cache_size", "mamba_full_memory_ratio"),
        ),
        advice=(
            "fewer requests at once (--max-running-requests), or more states: --max-mamba-cache-size, a larger "
            "--mamba-full-memory-ratio",
            *(("once without --enable-hierarchical-cache",) if host else ()),
            "once with --disable-radix-cache: the prefix cache then holds no states; then a later release",
        ),
        next_commands=(PLAN_POOLS,),
    )


def _of_rows(facts: LogFacts, death: Death) -> Finding:
    rows = _ROWS.search(death.message)
    said = f": {rows[2]} asked, {rows[1]} free" if rows else ""
    if rows and int(rows[1]) >= int(rows[2]):
        return Finding(
            rule=RULE.id,
            cause=f"The table of requests gave no rows although it had enough{said}. No load and no setting explains "
            "that: the code that hands rows out is at fault.",
            confidence=Confidence.LIKELY,
            evidence=(*of_memory(facts, death),),
            advice=("compare SGLang's sources with those of its release, and report it",),
            # The thread is of the same words; its cause is that there were too few.
            upstream=("SGLang 10408",),
        )
    return Finding(
        rule=RULE.id,
        cause=f"The scheduler took in more requests than it has rows for{said}. Rows are no memory: the pools "
        f"are not full.",
        confidence=Confidence.LIKELY,
        evidence=(*of_memory(facts, death), *of_settings(facts, "max_running_requests", "speculative_algorithm")),
        advice=(
            "a larger --max-running-requests makes more rows; a smaller one does not help, whatever the message says",
            "chunked and retracted requests still hold a row that admission does not count: a later release",
        ),
        upstream=("SGLang 10408",),
    )


def _of_numbers(facts: LogFacts, decoding: bool) -> tuple[bool, str] | None:
    """Return whether the pools had room for what was asked, and the sum in words; None where a number lacks.

    Args:
        facts: the log.
        decoding: whether each token that was asked for is of another request, which may need a page of its own.
    """
    asked = _number(facts, "asked", "Try to allocate")
    known = _free(facts)
    if asked is None or not known:
        return None
    page = float(size) if (size := facts.settings.get("page_size", "1")).isdecimal() else 1
    pages = asked if decoding else math.ceil(asked / page)
    said = [f"{asked:.0f} tokens asked"]
    if page > 1:
        said.append(f"that is up to {pages:.0f} pages of {page:.0f}")
    said += [f"{count:.0f} {pool} tokens free" for pool, count in known.items()]
    return all(count >= pages * page for count in known.values()), ", ".join(said)


def _of_windows_alone(facts: LogFacts) -> bool:
    """Say whether nothing was free for the sliding layers and more than was asked for everywhere else."""
    asked, free = _number(facts, "asked", "Try to allocate"), _free(facts)
    return free.get("swa") == 0 and asked is not None and free.get("full", 0) > asked


def _free(facts: LogFacts) -> dict[str, float]:
    """Return of each pool how many tokens are free or could be, as far as that is said."""
    known: dict[str, float] = {}
    for pool, names in _AVAILABLE.items():
        for words in names:
            count = _number(facts, f"free_{pool}", f"{words}:")
            if count is not None:
                known.setdefault(pool, count)
    return known


def _number(facts: LogFacts, name: str, words: str) -> float | None:
    found = facts.remarks.get(name)
    return None if found is None else number_in(found.text, words)


def _numbers(facts: LogFacts, counted: tuple[bool, str] | None) -> list[Evidence]:
    found = [
        *remarked(facts, "asked", "what was asked for"),
        *remarked(facts, "free_full", "full pool, with what can be evicted"),
        *remarked(facts, "free_swa", "SWA pool, with what can be evicted"),
        *remarked(facts, "free_mamba", "states, with what can be evicted"),
    ]
    if counted is not None:
        found.append(over(facts, "asked against free", counted[1], "there was room" if counted[0] else "too little"))
    retracted = sum(rank.retractions.requests for rank in facts.ranks)
    return [*found, over(facts, "retractions", retracted, "requests before it")] if retracted else found


RULE = of_death("no-slot", "a step found no slot in a KV pool", _explains, _tell, alarms=("no-memory",))
