"""Drafts are made and never accepted: speculation costs time and gives nothing."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over, pattern

_NONE, _HARDLY = 1.02, 1.1  # tokens per request and verify step; the target's own token is one of them
_LINES, _FEW = 5, 2


_OF_VLLM = pattern(r"\bAccepted: 0 tokens, Drafted: (\d+) tokens")
_MANY = 100  # drafted tokens


def _find(facts: LogFacts) -> Iterator[Finding]:
    if (told := facts.remarks.get("vllm_drafts")) and (found := _OF_VLLM.search(told.text)) and int(found[1]) >= _MANY:
        yield Finding(
            rule=RULE.id,
            cause="No draft token is accepted by vLLM: draft and target do not fit, or the draft's own weights are not "
            "what they were trained to be, as in a copy that quantises the layers of the draft (MTP) too.",
            confidence=Confidence.LIKELY,
            evidence=(at(facts, told.place, told.text, "its last count"),),
            ruled_out_if=("the same pair of checkpoints is accepted in another release or on another backend",),
            advice=(
                "a copy of the target whose draft layers (mtp.*) are not quantised, such as the publisher's, or that "
                "draft beside it",
                "check that the draft was made for this target",
            ),
        )
    for rank in facts.schedulers:
        length = rank.accept_length
        seen = sum(value is not None for value in rank.series.get("accept_length", ()))
        mixed_up = _mixed_up(facts)
        # Where the arguments say why, few lines are enough.
        if length is None or length > _HARDLY or seen < (_FEW if mixed_up and length <= _NONE else _LINES):
            continue
        policy = "draft_policy" in facts.remarks
        left_out = ", or the server leaves drafts out of its steps, which count as well" if policy else ""
        yield Finding(
            rule=RULE.id,
            cause=f"{'No' if length <= _NONE else 'Hardly a'} draft token is accepted{on_rank(rank.rank)}: draft and "
            f"target do not fit, or the draft reads other keys than the target wrote{left_out}.",
            confidence=Confidence.POSSIBLE if policy else Confidence.LIKELY,
            evidence=(
                over(facts, "decode lines", round(length, 2), f"accept len, mean over {rank.decode_lines} lines"),
                *of_settings(facts, "speculative_algorithm", "attention_backend", "quantization"),
            ),
            ruled_out_if=(
                "the same pair of checkpoints is accepted in another release or on another backend",
                *(
                    ("gemma4_triage_drafts in /server_info has steps_with_drafts 0, or accepted above 1",)
                    if policy
                    else ()
                ),
            ),
            advice=(
                *mixed_up,
                "check that the draft was made for this target, and that both have the same quantisation of the head",
            ),
            next_commands=("gemma4-triage repro mtp-zero-accept",),
        )
        return


def _mixed_up(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do if the draft's name is of EAGLE3 and the algorithm is not."""
    asked = facts.settings
    names_eagle3 = "eagle3" in asked.get("speculative_draft_model_path", "").lower().replace("-", "").replace("_", "")
    if names_eagle3 and asked.get("speculative_algorithm", "").upper() == "EAGLE":
        return ("--speculative-algorithm EAGLE3: by its name the draft is of EAGLE3, and EAGLE gives it other states",)
    return ()


RULE = Rule("drafts-never-accepted", "drafts are made and never accepted", _find)
