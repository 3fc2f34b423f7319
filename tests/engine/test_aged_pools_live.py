"""The patch aged-pools in the live engine: it shows an untranslated row at once, and clean loads stay as they were."""

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.corpus.case import corrected
from gemma4_repro.toys.language import held_out_prompts

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]


@pytest.fixture
def serve(run_engine, tmp_path):
    """Return what runs an engine under all probes: (exit code, tokens of each answer, log, manifests of its dumps)."""

    def run(engine, seed, faults=""):
        root = tmp_path / str(seed)
        environment = {
            "GEMMA4_TRIAGE_PATCHES": corrected(),
            "GEMMA4_TRIAGE_FAULTS": faults,
            "GEMMA4_TRIAGE_LEAK": "dump",
            "GEMMA4_TRIAGE_LEAK_EVERY": "1",
            "GEMMA4_TRIAGE_POOL_SEED": seed,
            "SGLANG_TRTLLM_MHA_DEBUG": "trap",
            "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(root),
        }
        ended = run_engine(environment, engines=[engine], prompts=held_out_prompts(8, 40, seed=3), new_tokens=24)
        found = [read_dump(entry.path).manifest for entry in DumpStore(root).list()]
        tokens = [answer["tokens"] for answers in ended.outputs or () for answer in answers]
        return ended.returncode, tokens, ended.log, found

    return run


def test_a_clean_load_is_silent_and_says_the_same(serve, mtp_arguments):
    young, aged = serve(mtp_arguments, "0"), serve(mtp_arguments, "24")
    for code, _, log, dumps in (young, aged):
        assert code == 0, log[-4000:]
        assert dumps == []
    assert young[1] == aged[1]


def test_a_row_that_was_not_translated_shows_in_its_first_step(serve, mtp_arguments):
    code, _, log, dumps = serve(mtp_arguments, "0", "one-untranslated-row")
    assert (code, dumps) == (0, []), log[-4000:]
    code, _, _, dumps = serve(mtp_arguments, "24", "one-untranslated-row")
    assert code != 0
    (found,) = [one for one in dumps if one.rule == "page-table-bounds"]
    assert found.step == 2
    assert found.guards["settings"]["pool_seed"] == 24
