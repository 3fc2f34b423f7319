"""swa-ratio-policy in the live engine: what it chooses is applied and said, and a ratio that was given stays."""

import re

import pytest

import engine_changes
from gemma4_repro.toys.language import held_out_prompts
from gemma4_runtime.optimisations.pool_decisions import KEY
from gemma4_runtime.pools.arithmetic import TokenBytes
from gemma4_runtime.pools.ratio_policy import Start, choose
from gemma4_runtime.pools.serving import Serving

# swa-ratio-policy is not ported: 0.5.23 profiles memory in mem_cache/kv_cache_configurator.py.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

POOL_BYTES = 20_000_000
POOLS = re.compile(r"full_layer_tokens=(\d+), swa_layer_tokens=(\d+)")
OWNERS, ALL = TokenBytes(512, 1280), TokenBytes(1024, 1536)


def expected(cell, **changes):
    """Return the choice for toy-e4b on a server like the arms below."""
    serving = Serving(window=32, page_size=16, chunk=128, chunks_in_flight=1)
    start = {
        "available_bytes": POOL_BYTES,
        "cell": cell,
        "serving": serving,
        "context": 4096,
        "context_given": False,
        "requests": 8,
        "most_tokens": None,
        "ratio": 0.8,
        "ratio_given": False,
    }
    return choose(Start(**(start | changes)))


@pytest.fixture(scope="module")
def ran(engine_forks, tmp_path_factory, engine_arguments, mtp_arguments):
    """Arm to (what was decided, the pools that SGLang then made, the ratio that it says it has)."""
    fixed = {"max_total_tokens": None, "chunked_prefill_size": 128, "log_level": "info"}
    unset = {name: value for name, value in engine_arguments.items() if name != "swa_full_tokens_ratio"} | fixed
    mtp = {name: value for name, value in mtp_arguments.items() if name != "swa_full_tokens_ratio"} | fixed
    arms = {
        "unset": unset,
        "context": unset | {"context_length": 1024, "max_running_requests": 64},
        "mtp": mtp,
        # The very value of SGLang's default, but the user's.
        "given": unset | {"swa_full_tokens_ratio": 0.8},
    }
    # As many as may run, each many windows long.
    load = {"prompts": held_out_prompts(8, 301, seed=13), "new_tokens": 110, "each_alone": True}
    idle = {"prompts": held_out_prompts(12, 301, seed=77), "new_tokens": 2, "each_alone": True}
    loads = {"unset": [load, idle, idle], "given": [load, idle, idle]}
    state = [KEY, "swa_full_tokens_ratio"]
    spec = {
        "before": ["engine_changes:fix_pool_bytes"],
        "arms": [{"engine": engine, "loads": loads.get(name, [load]), "state": state} for name, engine in arms.items()],
    }
    environment = {
        "GEMMA4_TRIAGE_PATCHES": "default,+swa-window-width,+swa-ratio-policy",
        engine_changes.POOL_BYTES: str(POOL_BYTES),
    }
    run = engine_forks.run(tmp_path_factory.mktemp("ratio"), environment, 180, spec)
    assert run.returncode == 0, run.log[-4000:]
    pools = [tuple(map(int, found)) for found in POOLS.findall(run.log)]
    assert len(pools) == len(arms)
    states = [result["state"] for result in run.outputs]
    found = {
        name: (state[KEY]["swa-ratio-policy"], sizes, state["swa_full_tokens_ratio"])
        for name, state, sizes in zip(arms, states, pools, strict=True)
    }
    tokens = {
        name: [one["tokens"] for one in result["loads"][0]] for name, result in zip(arms, run.outputs, strict=True)
    }
    again = {
        name: sum(one["meta"]["cached_tokens"] for one in result["loads"][-1])
        for name, result in zip(arms, run.outputs, strict=True)
        if name in loads
    }
    return found, run.log, tokens, again


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("unset", {}),
        ("context", {"context": 1024, "context_given": True, "requests": 64}),
        ("mtp", {"serving": Serving(window=32, page_size=16, chunk=128, chunks_in_flight=1, draft_tokens=4)}),
    ],
)
def test_the_choice_is_applied_and_said(ran, arm, changes):
    """On top of owner-only-kv, whose bytes of a token are those that count."""
    found, log, _, _ = ran
    said, sizes, ratio = found[arm]
    choice = expected(OWNERS, **changes)
    assert choice.ratio != 0.8
    assert (said, sizes, ratio) == (choice.why, (choice.sizes.full_tokens, choice.sizes.swa_tokens), choice.ratio)
    assert f"gemma4-triage: swa-ratio-policy: {choice.why}" in log
    assert choice.ratio != expected(ALL, **changes).ratio or sizes != expected(ALL, **changes).sizes


def test_nothing_is_retracted_at_a_ratio_that_was_chosen(ran):
    """Long enough that each request comes to hold what `Serving.swa_tokens` says."""
    _, log, _, _ = ran
    assert "max_total_num_tokens" in log
    assert "Retract requests" not in log


def test_a_given_ratio_stays_though_it_is_the_default(ran):
    said, (full, swa), ratio = ran[0]["given"]
    assert (said, ratio) == ("0.8 kept: given by the user", 0.8)
    assert swa == int(full * 0.8) // 16 * 16


def test_the_small_sliding_pool_says_what_a_large_one_says(ran):
    found, _, tokens, _ = ran
    assert found["unset"][1][1] < found["given"][1][1] // 5
    assert tokens["unset"] == tokens["given"] == tokens["context"] == tokens["mtp"]
    assert [len(one) for one in tokens["unset"]] == [110] * 8


def test_why_it_is_no_default(ran):
    """Prompts that are asked again are hits only where their windows are still in the SWA pool."""
    *_, again = ran
    assert again["unset"] < again["given"] // 2
