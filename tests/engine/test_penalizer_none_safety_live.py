"""MTP steps whose batch has no sampling_info, or no penalizers, on the live engine: the tokens are those of any step.

What is refused is in tests/unit/test_fix_penalizer_none_safety.py.
"""

import pytest

from gemma4_repro.toys.language import held_out_prompts
from lifecycle import load_of

# The V1 worker that died of it is gone since 0.5.14.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

LIMIT_S = 180
PENALTIES = (
    {},
    {"repetition_penalty": 2.0},
    {"frequency_penalty": 2.0, "presence_penalty": 2.0},
    # Rounds are counted, not tokens: SGLang's penalties are relaxed under speculation.
    {"min_new_tokens": 3, "logit_bias": {"1": 200.0}, "ignore_eos": False},
)


@pytest.fixture
def serve(mtp_arguments, engine_forks, tmp_path):
    """Return a function of patches and rounds to a Run."""

    def run(patches, *rounds):
        arm = {"engine": mtp_arguments, "loads": [load_of(one) for one in rounds]}
        spec = {"before": ["engine_changes:lose_what_requests_ask"], "arms": [arm]}
        return engine_forks.run(tmp_path, {"GEMMA4_TRIAGE_PATCHES": patches}, LIMIT_S, spec)

    return run


def a_round(lost, penalties=PENALTIES):
    return [
        {
            "prompt": prompt,
            "sampling": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 48, "custom_params": {"lost": lost}}
            | penalty,
        }
        for prompt, penalty in zip(held_out_prompts(4, 30, seed=18), penalties, strict=True)
    ]


NO_PENALTY = ({},) * 4


def test_with_the_fix_a_step_gives_the_same_tokens(serve):
    run = serve(
        "default",
        a_round(None),
        a_round("orchestrator"),
        a_round(None, NO_PENALTY),
        a_round("sampling_info", NO_PENALTY),
    )
    assert run.returncode == 0, run.log[-4000:]
    penalised, summed, plain, made_anew = run.outputs[0]["loads"]
    assert summed == penalised
    assert made_anew == plain
    changed = [a["tokens"] != b["tokens"] for a, b in zip(penalised, plain, strict=True)]
    assert changed == [False, True, True, True], "each penalty says something in this round"
    assert penalised[3]["matched"] == 1
    assert len(penalised[3]["tokens"]) > 3, "the end was kept back"


def test_without_the_fix_the_scheduler_dies(serve):
    run = serve("default,-penalizer-none-safety", a_round("orchestrator"))
    assert run.returncode != 0
    assert "AttributeError: 'NoneType' object has no attribute 'is_required'" in run.log
