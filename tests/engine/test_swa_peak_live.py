"""What a request keeps of the sliding-window pool, by SGLang's own counters, against `Serving.swa_tokens`.

A count that is too small makes the policy choose pools that retract; one that is too large wastes memory.
"""

import itertools
from typing import Any

import pytest

from engine_records import FILE
from gemma4_repro.toys.language import held_out_prompts
from gemma4_runtime.pools.serving import Serving

# It is what swa-ratio-policy counts by, which is not ported: 0.5.23 gives back at each insert what the window has left,
# and keeps up to two pages more of a short prompt.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

WINDOW, CHUNK, RUNNING, DRAFTS = 32, 128, 8, 4
POOL = 4096
"""Tokens of the full pool; no load here comes near."""
LEAF = 2 * CHUNK + 16
"""Tokens of a prompt whose last chunk is a page, so that the cache locks the chunk before it too."""
ALONE = {
    "plain": ((10, 90), (127, 90), (LEAF, 90), (290, 20)),
    "mtp": ((33, 130), (LEAF, 130)),
    "no-cache-overlap": ((127, 20), (3 * CHUNK + 16, 20)),
    "page-1": ((2 * CHUNK + 30, 66),),
    "split": ((127, 90),),
}
"""Arm to (prompt, output) of requests that run one after the other."""
LARGEST = {"plain": (128, 110), "mtp": (128, 110)}
"""Each prompt fills a chunk by itself, and all of it stays locked."""


def serving(arm: str) -> Serving:
    return Serving(
        WINDOW,
        page_size=1 if arm == "page-1" else 16,
        chunk=CHUNK,
        chunks_in_flight=2 if "overlap" in arm else 1,
        draft_tokens=DRAFTS if arm.startswith("mtp") else 0,
        prefix_cache="no-cache" not in arm,
        split_leaf=arm == "split",
    )


def prompts(lengths: list[int]) -> list[list[int]]:
    """Return no two share a prefix."""
    texts = held_out_prompts(2 * len(lengths), 301, seed=61)
    return [(one + other)[:length] for one, other, length in zip(texts[::2], texts[1::2], lengths, strict=True)]


def pool_for(arm: str, requests: int) -> int:
    """Tokens: as the policy counts them for all that may run; for fewer, not a token more than those need."""
    one, swa = LARGEST[arm], serving(arm)
    return requests * swa.swa_tokens(*one) + (swa.swa_in_prefill(one[0]) if requests == RUNNING else 0)


def load(texts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    return {"prompts": texts, "new_tokens": new_tokens, "each_alone": True}


@pytest.fixture(scope="module")
def ran(engine_forks, tmp_path_factory, engine_arguments, mtp_arguments):
    """Arm to what was seen of each of its loads."""
    common = {"chunked_prefill_size": CHUNK, "max_total_tokens": POOL, "swa_full_tokens_ratio": 1.0}
    arms = {}
    for arm, sizes in ALONE.items():
        engine = (mtp_arguments if arm == "mtp" else engine_arguments) | common
        engine |= {"disable_radix_cache": "no-cache" in arm, "disable_overlap_schedule": "overlap" not in arm}
        if arm == "page-1":
            engine |= {"page_size": 1, "attention_backend": "triton"}
        texts = prompts([prompt for prompt, _ in sizes])
        loads = [load([text], output) for text, (_, output) in zip(texts, sizes, strict=True)]
        arms[arm] = {"engine": engine, "loads": loads}
    for arm, held in itertools.product(LARGEST, (RUNNING, RUNNING - 1)):
        engine = (mtp_arguments if arm == "mtp" else engine_arguments) | common
        # Half a token more, because SGLang rounds down.
        engine |= {"swa_full_tokens_ratio": (pool_for(arm, held) + 0.5) / POOL, "max_running_requests": RUNNING}
        prompt, output = LARGEST[arm]
        loads = [load(prompts([prompt] * (RUNNING + 1)), output)]
        arms[f"{arm}-{held}"] = {"engine": engine, "loads": loads}
    arms["split"]["environment"] = {"SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT": "1"}
    folder = tmp_path_factory.mktemp("peaks")
    environment = {"GEMMA4_TRIAGE_PATCHES": "default", FILE: str(folder / "steps")}
    spec = {
        "before": ["engine_records:record_pool_use", "engine_changes:silence_triton"],
        "arms": [arm | {"records": True} for arm in arms.values()],
    }
    run = engine_forks.run(folder, environment, 300, spec)
    assert run.returncode == 0, run.log[-4000:]
    return {
        name: [used(*load) for load in zip(arm["records"], arm["loads"], strict=True)]
        for name, arm in zip(arms, run.outputs, strict=True)
    }


def used(steps, answers):
    """Return the most tokens in use after a decode step and after any, the most requests at once, retractions."""
    return {
        "decoding": max(step["swa"] for step in steps if step["mode"] != "EXTEND"),
        "peak": max(step["swa"] for step in steps),
        "running": max(step["running"] for step in steps),
        "retracted": steps[-1]["retracted"] - steps[0]["retracted"],
        "lengths": [len(answer["tokens"]) for answer in answers],
    }


@pytest.mark.parametrize("arm", ALONE)
def test_one_request_never_keeps_more(ran, arm):
    swa = serving(arm)
    for (prompt, output), seen in zip(ALONE[arm], ran[arm], strict=True):
        assert seen["lengths"] == [output]
        assert seen["decoding"] <= swa.swa_tokens(prompt, output), (prompt, output)
        assert seen["peak"] <= swa.swa_tokens(prompt, output) + swa.swa_in_prefill(prompt)


@pytest.mark.parametrize("arm", ["plain", "mtp", "page-1"])
def test_it_keeps_nearly_as_much(ran, arm):
    """Two pages less at most; not where the last chunk covers a window, see the docstring of `swa_tokens`."""
    swa = serving(arm)
    for (prompt, output), seen in zip(ALONE[arm], ran[arm], strict=True):
        if prompt != 290:
            assert seen["decoding"] >= swa.swa_tokens(prompt, output) - 2 * swa.page_size, (prompt, output)


def test_without_a_cache_the_chunks_are_the_most(ran):
    arm = "no-cache-overlap"
    swa = serving(arm)
    for (prompt, output), seen in zip(ALONE[arm], ran[arm], strict=True):
        assert seen["peak"] >= swa.swa_tokens(prompt, output) - 2 * swa.page_size, (prompt, output)


def test_a_cut_last_node_keeps_a_window_of_the_prompt(ran):
    whole, cut = ran["plain"][1], ran["split"][0]
    assert cut["decoding"] <= whole["decoding"] - (CHUNK - 16 - WINDOW)


@pytest.mark.parametrize("arm", LARGEST)
def test_a_pool_for_all_that_may_run_retracts_nothing(ran, arm):
    (seen,) = ran[f"{arm}-{RUNNING}"]
    assert (seen["running"], seen["retracted"]) == (RUNNING, 0)
    assert seen["decoding"] <= pool_for(arm, RUNNING)
    assert set(seen["lengths"]) == {LARGEST[arm][1]}


@pytest.mark.parametrize("arm", LARGEST)
def test_a_pool_for_one_fewer_retracts(ran, arm):
    (seen,) = ran[f"{arm}-{RUNNING - 1}"]
    assert seen["retracted"] > 0
    assert set(seen["lengths"]) == {LARGEST[arm][1]}


def test_without_mtp_the_count_is_what_the_requests_held_to_the_token(ran):
    (seen,) = ran[f"plain-{RUNNING}"]
    assert seen["decoding"] == RUNNING * serving("plain").swa_tokens(*LARGEST["plain"])
