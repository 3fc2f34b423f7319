"""A conversation is prefilled anew in every turn: few cached tokens beside many new ones, and nothing was retracted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Place, RankFacts
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over

_TURNS = 5  # prefill lines in a row
_LONG = 2000  # tokens of a prompt
_CACHED_SHARE = 0.1
_SHARED = 16  # tokens that prompts have in common; a benchmark's random ones have fewer
_GROWTH = (0.98, 1.25)  # of the prompt from one turn to the next


class _Turn(NamedTuple):
    place: Place
    new: int
    cached: int

    @property
    def tokens(self) -> int:
        return self.new + self.cached


def _find(facts: LogFacts) -> Iterator[Finding]:
    for rank in facts.schedulers:
        turns = _turns(rank)
        if len(turns) < _TURNS or rank.retractions.events or len({turn.new for turn in turns}) <= len(turns) // 2:
            # As many new tokens each time are the chunks of a full queue.
            continue
        new, cached = sum(turn.new for turn in turns), sum(turn.cached for turn in turns)
        off = facts.settings.get("disable_radix_cache") == "True"
        yield Finding(
            rule=RULE.id,
            cause="Prompts that grow turn by turn are prefilled again nearly whole"
            f"{on_rank(rank.rank)}: the prefix cache gave {cached / (new + cached):.0%} of them"
            f"{', since it is switched off' if off else ''}, and nothing had been retracted.",
            confidence=Confidence.LIKELY if off else Confidence.POSSIBLE,
            evidence=(
                at(facts, turns[0].place, new, f"#new-token in {len(turns)} prefills in a row from here"),
                over(facts, "the same prefills", cached, "#cached-token"),
                *of_settings(facts, "disable_radix_cache", "enable_lora", "enable_hierarchical_cache", "page_size"),
            ),
            ruled_out_if=("the prompts are of different users and share only their first tokens",),
            advice=(
                "look at where two prompts of one conversation first differ: a date at the top ends the prefix",
                "the SWA part of a prefix is kept for a window only: what has been evicted there is prefilled again",
                "send one prompt twice, alone: its second prefill has to be cached but for the last tokens",
            ),
        )
        return


def _turns(rank: RankFacts) -> list[_Turn]:
    """Return the longest row of prefills that grow as a conversation does, each nearly whole new.

    Where a log is so long that a point of the series stands for several batch lines, nothing is returned.
    """
    best: list[_Turn] = []
    row: list[_Turn] = []
    chunk = max([new for new in rank.series.get("new_tokens", ()) if new], default=1)
    columns = (rank.series.get(name, ()) for name in ("batch_lines", "line", "time", "new_tokens", "cached_tokens"))
    for batch_lines, line, time, new, cached in zip(*columns, strict=True):
        if batch_lines > 1:
            return []
        if not new:
            continue
        if row and not cached and row[-1].new % chunk == 0:
            row[-1] = row[-1]._replace(new=row[-1].new + new)
            continue
        turn = _Turn(Place(line, time), new, cached)
        grows = not row or _GROWTH[0] <= turn.tokens / row[-1].tokens <= _GROWTH[1]
        anew = new >= _LONG and _SHARED <= cached <= _CACHED_SHARE * turn.tokens
        row = [] if not anew else [*row, turn] if grows else [turn]
        best = max(best, row, key=len)
    return best


RULE = Rule("prefix-not-reused", "a conversation is prefilled anew in every turn", _find)
