"""What a log's batch lines say of its load, as the numbers that records of suspects ask for."""

from __future__ import annotations

import re
from itertools import pairwise

from gemma4_triage.logs.facts import LogFacts, RankFacts
from gemma4_triage.logs.late_pattern import pattern


def numbers_of_load(facts: LogFacts) -> dict[str, str]:
    """Return what the batch lines say of the load, as whole numbers by the names that records of suspects use."""
    ranks = facts.schedulers
    prompts = sum(rank.new_tokens + rank.cached_tokens for rank in ranks)
    found = {
        "log_prefills": sum(rank.prefill_lines for rank in ranks),
        "log_decodes": sum(rank.decode_lines for rank in ranks),
        "log_running": max((value or 0 for rank in ranks for value in rank.series.get("running_max", ())), default=0),
        "log_end_running": max(
            (rank.series["running_max"][-1] or 0 for rank in ranks if rank.series["line"]), default=0
        ),
        "log_cached": 100 * sum(rank.cached_tokens for rank in ranks) / prompts if prompts else 0,
    }
    if adapters := facts.arguments.get("lora_paths", ""):
        found["log_adapters"] = len(re.findall(r"=|lora_path", adapters)) or 1
    found["log_queued"] = max((value or 0 for rank in ranks for value in rank.series.get("queued_max", ())), default=0)
    usage = [one for rank in ranks for one in rank.series.get("full_usage_max", ())[-1:] if one is not None]
    found |= {"log_usage": 100 * max(usage)} if usage else {}
    if (paused := facts.remarks.get("paused")) is not None:
        last = max((rank.series["line"][-1] for rank in ranks if len(rank.series["line"])), default=0)
        found["log_since_pause"] = int(last > paused.place.line)
    found["log_windows"] = facts.pool_tokens.get("swa", 0)
    if (above := _above_graphs(facts)) is not None:
        found["log_above_graphs"], found["log_largest_graph"] = above
    full = [share for rank in ranks if (share := _full_chunks(rank)) is not None]
    found |= {"log_full_chunks": 100 * max(full)} if full else {}
    if (serves := facts.remarks.get("vllm_serves")) and (hits := _HITS.search(serves.text)):
        found["log_vllm_hits"] = float(hits[1])
    if serves and (load := _ENGINE_LOAD.search(serves.text)):
        names = ("log_vllm_rate", "log_vllm_running", "log_vllm_waiting", "log_vllm_used")
        found |= dict(zip(names, map(float, load.groups()), strict=True))
    if (slowed := _slowed(facts)) is not None:
        found["log_slowed"], found["log_slowed_from"] = slowed
    if (behind := max(map(_turns_behind, ranks), default=0)) >= _TURNS:
        found["log_turns_behind"] = behind
    if (fell := _accept_fell(facts)) is not None:
        found["log_accept_fell"], found["log_accept_best"] = fell
    if (places := _places_of_a_stage(facts)) is not None:
        found["log_places_of_a_stage"] = places
    at_work = [rank.rank for rank in ranks if rank.decode_lines or rank.prefill_lines]
    found["log_later_rank"] = int(len(at_work) == 1 and _LATER_RANK.search(at_work[0]) is not None)
    if lengths := [rank.accept_length for rank in ranks if rank.accept_length is not None]:
        found["log_accept"] = 100 * min(lengths)
    return {name: f"{value:.0f}" for name, value in found.items()}


def _above_graphs(facts: LogFacts) -> tuple[int, int] | None:
    """Return the fewest requests of a decode batch that no graph was large enough for, and the largest graph."""
    asked = facts.settings.get("cuda_graph_max_bs", "")
    sizes = [int(size) for size in re.findall(r"\d+", facts.arguments.get("cuda_graph_bs", ""))]
    largest = max(sizes, default=int(asked) if asked.isdecimal() else 0)
    eager = [rank.eager for rank in facts.schedulers if rank.eager is not None]
    if not largest or not any(one.graph_lines for one in eager):
        return None
    fewest = min(one.smallest for one in eager)
    return (fewest, largest) if fewest > largest else None


_FELL = 0.6


def _accept_fell(facts: LogFacts) -> tuple[float, float] | None:
    """Return the last accept length, and the best one before, in hundredths, where it is far below that; else None."""
    for rank in facts.schedulers:
        lengths = [length for length in rank.series.get("accept_length", ()) if length]
        if len(lengths) > 1 and lengths[-1] < _FELL * max(lengths[:-1]):
            return 100 * lengths[-1], 100 * max(lengths[:-1])
    return None


def _places_of_a_stage(facts: LogFacts) -> int | None:
    """Return how many requests each stage of a pipeline has room for; None of a server without stages, or a limit."""
    stages, most = (facts.settings.get(name, "") for name in ("pp_size", "max_running_requests"))
    if not (stages.isdecimal() and most.isdecimal()) or int(stages) <= 1:
        return None
    return int(most) // int(stages)


_TURNS = 5  # in a row


def _turns_behind(rank: RankFacts) -> int:
    """Return how many prefills in a row found more cached than the one before, and never all of that prompt."""
    columns = (rank.series[name] for name in ("batch_lines", "new_tokens", "cached_tokens"))
    turns = [(new, cached) for lines, new, cached in zip(*columns, strict=True) if new and lines == 1]
    best = row = 0
    for (new, cached), (_, later) in pairwise(turns):
        row = row + 1 if cached < later < 0.9 * (new + cached) else 0
        best = max(best, row)
    return best


_SLOWED = 0.4


def _slowed(facts: LogFacts) -> tuple[float, float] | None:
    """Return the rate of the last decode line and of the first where it fell far at as many requests; else None."""
    for rank in facts.schedulers:
        columns = (rank.series[name] for name in ("generated_per_s", "running_max"))
        rates = [(rate, running) for rate, running in zip(*columns, strict=True) if rate and running]
        if len(rates) < _FEWEST_RATES or rates[0][1] != rates[-1][1]:
            continue
        first, before, last = rates[0][0], rates[-2][0], rates[-1][0]
        if max(before, last) < _SLOWED * first:
            return last, first
    return None


_FEWEST_RATES = 4  # decode lines
_LATER_RANK = pattern(r"\bDP[1-9]")
_ENGINE_LOAD = pattern(
    r"generation throughput: (\d+(?:\.\d+)?) tokens/s, Running: (\d+) reqs, (?:Waiting|Pending): (\d+) reqs,.{0,40}?"
    r"KV cache usage: (\d+(?:\.\d+)?)%"
)
_HITS = pattern(r"Prefix cache hit rate: (\d+(?:\.\d+)?)%")
_CHUNK = 2048  # tokens


def _full_chunks(rank: RankFacts) -> float | None:
    """Return the share of prefills that were as large as any while others waited; None where no line tells."""
    columns = (rank.series[name] for name in ("batch_lines", "new_tokens", "queued_max"))
    sizes = [(new, queued) for lines, new, queued in zip(*columns, strict=True) if new and lines == 1]
    largest = max((new for new, _ in sizes), default=0)
    if len(sizes) < _FEWEST or largest < _CHUNK:
        return None
    return sum(new >= 0.9 * largest and bool(queued) for new, queued in sizes) / len(sizes)


_FEWEST = 8  # prefill lines
