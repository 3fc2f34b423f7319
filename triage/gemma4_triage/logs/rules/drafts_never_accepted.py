"""Drafts are made and never accepted: speculation costs time and gives nothing."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.notes_in_prose import kinds_noted
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over

_NONE, _HARDLY = 1.02, 1.1  # tokens per request and verify step; the target's own token is one of them
_LINES, _FEW = 5, 2
_OF_FEW = 1.05  # of two or three lines it has to be nearer to 1 than of many


_OF_VLLM = pattern(r"\bAccepted: 0 tokens, Drafted: (\d+) tokens")
_MANY = 100  # drafted tokens


_MEAN = pattern(r"Mean acceptance length: (\d+\.\d+)")
_DRAFTED = pattern(r"Drafted: (\d+) tokens")
_POSITIONS = pattern(r"Per-position acceptance rate: ((?:[01]\.\d+, )+[01]\.\d+)")
_SHORT, _FEWEST_POSITIONS, _ONE_IN = 1.35, 3, 0.05


def _hardly(text: str) -> str:
    """Return vLLM's mean acceptance length where it is near 1 and later positions accept nothing; else ""."""
    mean, rates, drafted = _MEAN.search(text), _POSITIONS.search(text), _DRAFTED.search(text)
    if not mean or not rates or float(mean[1]) > _SHORT:
        return ""
    positions = [float(rate) for rate in rates[1].split(", ")]
    some = [rate for rate in positions if rate]
    # Where no count is there, the smallest share says how many drafts it is of at least.
    many = int(drafted[1]) >= _MANY if drafted else bool(some) and min(some) <= _ONE_IN
    return mean[1] if many and len(positions) >= _FEWEST_POSITIONS and not any(positions[len(positions) // 2 :]) else ""


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
    elif told is not None and (hardly := _hardly(told.text)):
        yield Finding(
            rule=RULE.id,
            cause=f"vLLM's drafts are hardly accepted: {hardly} tokens a step, of which one is the target's own, and "
            "none of the later positions. Draft and target do not fit, or the draft does not see what it was trained "
            "to see: as where a release runs its sliding window layers as full ones, and the context outgrew them.",
            confidence=Confidence.POSSIBLE,
            evidence=(at(facts, told.place, told.text, "its last count"),),
            ruled_out_if=(
                "short prompts of another kind are accepted no better: then the draft knows such text little",
            ),
            advice=(
                "a later release (image), which honours the draft's sliding window layers; short and long contexts "
                "apart tell: if acceptance falls as a context grows, it is that",
                "fewer num_speculative_tokens: positions that are never accepted cost time alone",
                "check that the draft was made for this target and its chat template",
            ),
            upstream=("vLLM 40898",),
        )
    if "answers" in kinds_noted(facts):
        # Where answers are wrong too, the target's own steps are at fault.
        return
    for rank in facts.schedulers:
        length = rank.accept_length
        seen = sum(value is not None for value in rank.series.get("accept_length", ()))
        mixed_up = _mixed_up(facts)
        # Where the arguments say why, few lines are enough.
        if length is None or length > _HARDLY or seen < _FEW:
            continue
        few = seen < _LINES and not (mixed_up and length <= _NONE)
        if few and length > _OF_FEW:
            continue
        policy = "draft_policy" in facts.remarks
        left_out = ", or the server leaves drafts out of its steps, which count as well" if policy else ""
        yield Finding(
            rule=RULE.id,
            cause=f"{'No' if length <= _NONE else 'Hardly a'} draft token is accepted{on_rank(rank.rank)}: draft and "
            f"target do not fit, or the draft reads other keys than the target wrote{left_out}.",
            confidence=Confidence.POSSIBLE if policy or few else Confidence.LIKELY,
            evidence=(
                over(facts, "decode lines", round(length, 2), f"accept len, mean over {rank.decode_lines} lines"),
                *of_settings(facts, "speculative_algorithm", "attention_backend", "quantization"),
            ),
            ruled_out_if=(
                "the same pair of checkpoints is accepted in another release or on another backend",
                *((_ITS_ANSWERS,) if few else ()),
                *(
                    ("gemma4_triage_drafts in /server_info has steps_with_drafts 0, or accepted above 1",)
                    if policy
                    else ()
                ),
            ),
            advice=(
                *mixed_up,
                *(_of_its_types(facts) if (own := _of_its_index(facts)) else ()),
                *own,
                *_of_its_config(facts),
                _ITS_TARGET,
                *(() if own else _of_its_types(facts)),
            ),
            next_commands=("gemma4-triage repro mtp-zero-accept",),
        )
        return


_ITS_TARGET = "check that the draft was made for this target, and that both have the same quantisation of the head"
_ITS_ANSWERS = "answers are wrong too: then the target's own steps are at fault (NaN, a corrupt prefix), not its drafts"


def _of_its_types(facts: LogFacts) -> tuple[str, ...]:
    """Return what to look at where the target is quantised, which its draft may be read as too, or not be."""
    kind = facts.settings.get("quantization", "None")
    if kind in ("None", ""):
        return ()
    return (
        f"--speculative-draft-model-quantization of what the draft's weights are (unquant, or {kind}): the start has "
        "--quantization for the target, and a draft that is read as another type than it has answers noise",
    )


def _of_its_index(facts: LogFacts) -> tuple[str, ...]:
    """Return what to look at where the draft's layer lies in the model's own checkpoint (MTP, NEXTN)."""
    asked = facts.settings
    draft, model = asked.get("speculative_draft_model_path", "None"), asked.get("model_path", "")
    if asked.get("speculative_algorithm", "").upper() != "NEXTN" and (not model or draft != model):
        return ()
    return (
        "whether the draft's layer was read at all: it lies in the model's own checkpoint, and a file of it (mtp."
        "safetensors) that model.safetensors.index.json does not name is passed over without a word (grep -c mtp, or "
        "the number of the layer behind the last, in that index): its tensors into the index, or a later release",
    )


_READS_LAYERS = frozenset({"EAGLE3", "DFLASH", "DSPARK"})


def _of_its_config(facts: LogFacts) -> tuple[str, ...]:
    """Return what to look at in the draft's own files, where its kind reads states of the target's layers."""
    algorithm = facts.settings.get("speculative_algorithm", "").upper()
    if algorithm not in _READS_LAYERS:
        return ()
    names = "target_layer_ids (dflash_config)" if algorithm == "DFLASH" else "eagle_aux_hidden_state_layer_ids"
    return (
        f"the draft's config.json: {names} of the layers that it was trained on. Where it lacks, the server guesses, "
        f"and "
        "the draft reads other layers than it knows; a line of the start may name those in use (SGLang 37475)",
        "the draft's weights: one that ships no lm_head (or embed_tokens) and has a vocabulary of its own "
        "(draft_vocab_size) keeps a head that nothing filled; a later release takes the target's (SGLang 27908), "
        "else a draft that has it. Lines of the start that name weights not loaded say so",
    )


def _mixed_up(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do if the draft's name is of EAGLE3 and the algorithm is not."""
    asked = facts.settings
    names_eagle3 = "eagle3" in asked.get("speculative_draft_model_path", "").lower().replace("-", "").replace("_", "")
    if names_eagle3 and asked.get("speculative_algorithm", "").upper() == "EAGLE":
        return ("--speculative-algorithm EAGLE3: by its name the draft is of EAGLE3, and EAGLE gives it other states",)
    return ()


RULE = Rule("drafts-never-accepted", "drafts are made and never accepted", _find)
