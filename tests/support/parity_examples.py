"""Made-up runs for the comparison of live runs: 2 layers (sliding, full), window 4, vocabulary of 6."""

from dataclasses import replace

import numpy as np

from gemma4_repro.engine.outcome import Answer, ArmResult, Ending, IdleCheck, Outcome, Raised
from gemma4_repro.parity.runner import ArmRun, LiveRun
from gemma4_repro.parity.side import Side
from gemma4_repro.parity.tracks import Oracle, Track
from gemma4_repro.recorders.usage import Usage

WINDOW, VOCABULARY, LAYERS, HIDDEN = 4, 6, 2, 3
PROMPT, TOKENS = 3, 9
MODES = ("EXTEND",) * PROMPT + ("DECODE",) * (TOKENS - PROMPT - 1)


def track(prompt=0, seed=0):
    """Nine tokens, three of them the prompt's."""
    rng = np.random.default_rng([seed, prompt])
    logits = rng.normal(size=(TOKENS - 1, VOCABULARY))
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    states = rng.normal(size=(TOKENS - 1, LAYERS, HIDDEN)).astype(np.float32)
    greedy = logprobs.argmax(axis=1)
    return Track(prompt, (*range(PROMPT), *greedy[PROMPT - 1 :].tolist()), PROMPT, logprobs, states, MODES)


def oracle(*tracks):
    """Return two widths tried; every row is another in each."""
    tracks = tracks or (track(),)
    varied = {t.prompt: {keys: t.states + np.float32(keys / 100) for keys in (WINDOW - 1, WINDOW + 1)} for t in tracks}
    return Oracle(tracks, WINDOW, ("sliding_attention", "full_attention"), varied)


def changed(base, row, logprob=0.0, states=None, token=None):
    """Return the same track with one row's best logprob, states, or answer changed."""
    logprobs, all_states, tokens = base.logprobs.copy(), base.states.copy(), list(base.tokens)
    logprobs[row, logprobs[row].argmax()] += logprob
    if states is not None:
        all_states[row] = states
    if token is not None:
        tokens[row + 1] = token
    return replace(base, logprobs=logprobs, states=all_states, tokens=tuple(tokens))


def side(name="triton-mtp-off", **changes):
    return replace(Side(name, "triton", False, "default"), **changes)


def arm(folder, *tracks, column=None, ending=Ending.COMPLETED, raised=(), dumps=(), paths=None, reached=()):
    """Return an arm that said these tracks; without any it ended early. paths: counted. reached: target keys."""
    column = column or side()
    result = None
    if tracks:
        answers = tuple(Answer(prompt=t.prompt, output_ids=t.tokens[PROMPT:], verify_rounds=2) for t in tracks)
        idle = IdleCheck(
            leak_checker_ran=True, flush_succeeded=True, used_tokens_after_flush=0, used_share_after_flush=0
        )
        result = ArmResult(
            arm=column.id, sglang_version="0", start_s=1, load_s=2, answers=answers, idle=idle, paths=paths or {}
        )
    outcome = Outcome(column.id, ending, folder, 5.0, 0, None, tuple(Raised(*item) for item in raised), result)
    usage = Usage((0.1, 0.2), (0.3, 0.5))
    return ArmRun(column, outcome, tuple(tracks), usage, tuple(dumps), frozenset(reached))


def live_run(folder, *arms, said=None, compared=(), prompt_logprobs=True):
    return LiveRun(folder, "0.5.13.post1", 42.0, 9.0, said or oracle(), tuple(arms), tuple(compared), prompt_logprobs)
