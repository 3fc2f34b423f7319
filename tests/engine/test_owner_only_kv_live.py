"""owner-only-kv in the live engine: more tokens from the same bytes, and the same answers in every other respect."""

import json
import re

import pytest

import engine_changes
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.language import held_out_prompts
from gemma4_runtime.optimisations.pool_decisions import KEY

# owner-only-kv is not ported: 0.5.23 makes the lists of layers elsewhere.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

RATIO, PAGE = 0.5, 16
# float32 keys and values of toy-e4b, of one token: 2 full and 6 sliding layers, of which one each shares its KV.
FULL, SWA = 512, 256
PER_TOKEN = {False: 2 * FULL + RATIO * 6 * SWA, True: FULL + RATIO * 5 * SWA}
POOL_BYTES = int(1024 * PER_TOKEN[False])
FULL_TOKENS = {False: 1024, True: 1584}
SWA_TOKENS = {False: 512, True: 784}
WATCHED = list(range(0, 512, 8))
LONG = 1300
FULL_POOL = re.compile(r"full_layer_tokens=(\d+), swa_layer_tokens=(\d+)")


@pytest.fixture(scope="module")
def loads():
    prompts = held_out_prompts(4, 301, seed=11)
    alone = {"prompts": prompts[:1], "new_tokens": 24, "return_logprob": True, "token_ids_logprob": WATCHED}
    long = [token for one in (*prompts, *prompts) for token in one][:LONG]
    return {
        "alone": alone,
        "cached": alone,
        # Each is admitted by its tokens, and does not fit by its pages: of all layers, and of owners only.
        "crowd": {"prompts": prompts[:3], "new_tokens": 40, "each_alone": True},
        "larger": {"prompts": prompts, "new_tokens": 86, "each_alone": True},
        "long": {"prompts": [long], "new_tokens": 4, "each_alone": True},
    }


@pytest.fixture(scope="module")
def ran(engine_forks, tmp_path_factory, engine_arguments, mtp_arguments, loads):
    """ran[owners_only] -> (arm to load to answers, arm to internal state, log, folder of dumps).

    Arms: `small`, whose pools have POOL_BYTES; with owners only also `mtp`, else `roomy`, in which everything fits.
    """
    common = {
        "swa_full_tokens_ratio": RATIO,
        "max_total_tokens": None,
        "chunked_prefill_size": 128,
        "log_level": "info",
    }
    found = {}
    for owners_only in (False, True):
        arms = {"small": (engine_arguments, POOL_BYTES, list(loads))}
        if owners_only:
            arms["mtp"] = (mtp_arguments, POOL_BYTES, ["alone", "larger"])
        else:
            arms["roomy"] = (engine_arguments, 8 * POOL_BYTES, ["long"])
        folder = tmp_path_factory.mktemp("owner-only")
        environment = {
            "GEMMA4_TRIAGE_PATCHES": "default,+swa-window-width" + ("" if owners_only else ",-owner-only-kv"),
            "SGLANG_TRTLLM_MHA_DEBUG": "log",
            "GEMMA4_TRIAGE_LEAK": "dump",
            "GEMMA4_TRIAGE_LEAK_EVERY": "16",
            "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        }
        spec = {
            "before": ["engine_changes:fix_pool_bytes"],
            "arms": [
                {
                    "engine": engine | common,
                    "environment": {engine_changes.POOL_BYTES: str(size)},
                    "loads": [loads[name] for name in names],
                    "state": [KEY],
                }
                for engine, size, names in arms.values()
            ],
        }
        run = engine_forks.run(folder, environment, 240, spec)
        assert run.returncode == 0, run.log[-4000:]
        answers, states = {}, {}
        for (arm, (_, _, names)), result in zip(arms.items(), run.outputs, strict=True):
            answers[arm] = dict(zip(names, result["loads"], strict=True))
            states[arm] = result["state"].get(KEY)
        found[owners_only] = answers, states, run.log, folder / "dumps"
    return found


def tokens(answers):
    return [one["tokens"] for one in answers]


def test_the_engines_own_lines_say_how_many_tokens_the_same_bytes_hold(ran):
    for owners_only, (_, _, log, _) in ran.items():
        first = FULL_POOL.search(log)
        assert first is not None
        full, swa = map(int, first.groups())
        assert (full, swa) == (FULL_TOKENS[owners_only], SWA_TOKENS[owners_only])
        # What SGLang then allocated, the two sub-pools.
        assert f"swa size: {swa}, full size: {full}" in log
        assert full * PER_TOKEN[owners_only] <= POOL_BYTES < (full + PAGE) * PER_TOKEN[owners_only]


def test_what_was_decided_is_in_the_log_the_manifest_and_server_info(ran):
    _, states, log, folder = ran[True]
    said = "in force: 6 of 8 layers have KV buffers, 2 read an owner's"
    assert f"gemma4-triage: owner-only-kv: {said}" in log
    assert [state["owner-only-kv"] for state in states.values()] == [said, said]
    manifests = [json.loads(path.read_text()) for path in (folder / "guards").glob("*.json")]
    rows = [row for manifest in manifests for row in manifest["patches"] if row["id"] == "owner-only-kv"]
    assert {row["decision"] for row in rows if "decision" in row} == {said}


def test_tokens_and_logprobs_are_bit_for_bit_the_same(ran):
    (without,), (owners,) = (ran[only][0]["small"]["alone"] for only in (False, True))
    assert owners["tokens"] == without["tokens"]
    found, wanted = (one["meta"]["output_token_ids_logprobs"] for one in (owners, without))
    assert found == wanted
    assert len({entry[0] for step in found for entry in step}) > len(found)


def test_a_cached_prefix_gives_what_was_computed_the_first_time(ran):
    for answers, *_ in ran.values():
        (first,), (again,) = answers["small"]["alone"], answers["small"]["cached"]
        assert (first["meta"]["cached_tokens"], again["meta"]["cached_tokens"]) == (0, 288)
        assert again["tokens"] == first["tokens"]


def test_retracted_requests_say_the_same(ran):
    for owners_only, (answers, _, log, _) in ran.items():
        assert log.count("Retract requests") >= 1
        for name in ("crowd", "larger"):
            assert tokens(answers["small"][name]) == tokens(ran[not owners_only][0]["small"][name])


def test_mtp_reads_the_owners_and_its_drafts_are_accepted(ran):
    answers, *_ = ran[True]
    assert tokens(answers["mtp"]["alone"]) == tokens(answers["small"]["alone"])
    assert tokens(answers["mtp"]["larger"]) == tokens(answers["small"]["larger"])
    accepted = [one["meta"]["spec_accept_length"] for one in answers["mtp"]["larger"]]
    assert min(accepted) > 2


def test_a_prompt_that_did_not_fit_is_served_from_the_same_bytes(ran):
    (refused,), (served,) = (ran[only][0]["small"]["long"] for only in (False, True))
    assert f"Input length ({LONG} tokens) exceeds the maximum allowed length" in refused["meta"]["error"]
    assert served["tokens"] == ran[False][0]["roomy"]["long"][0]["tokens"]
    assert len(served["tokens"]) == 4


def test_audits_and_probes_were_on_and_found_nothing(ran):
    for *_, log, folder in ran.values():
        assert DumpStore(folder).list() == []
        assert "memory leak detected" not in log
        manifests = [json.loads(path.read_text()) for path in (folder / "guards").glob("*.json")]
        attached = {row["id"] for manifest in manifests for row in manifest["patches"] if row["attached"]}
        assert {"page-table", "swa-allocator", "geometry", "leak-ledger"} <= attached
