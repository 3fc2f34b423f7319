"""The probe accept-length in the live engine: a draft that begins to read another layer, and a clean load.

With every probe on, `geometry` sees the layer itself.
"""

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.corpus.case import corrected
from gemma4_repro.toys.language import held_out_prompts
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]


@pytest.fixture
def serve(run_engine, mtp_arguments, tmp_path):
    """Return what runs an engine under probes, all or those named: (exit code, tokens of each answer, log, dumps)."""

    def run(name, probes=None, **more):
        environment = ({} if probes is None else {"GEMMA4_TRIAGE_PROBES": probes}) | {
            "GEMMA4_TRIAGE_PATCHES": corrected(),
            "SGLANG_TRTLLM_MHA_DEBUG": "trap",
            "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path / name),
        }
        prompts = held_out_prompts(8, 40, seed=3)
        ended = run_engine(environment, engines=[mtp_arguments], prompts=prompts, new_tokens=150, **more)
        tokens = [answer["tokens"] for answers in ended.outputs or () for answer in answers]
        dumps = [read_dump(entry.path) for entry in DumpStore(tmp_path / name).list()]
        return ended.returncode, tokens, ended.log, dumps

    return run


def test_a_draft_that_reads_another_layer_leaves_an_event_and_the_server_goes_on(serve):
    code, sound, log, dumps = serve("sound")
    assert (code, dumps) == (0, []), log[-4000:]
    change = "engine_changes:bind_draft_to_first_layer_later"
    code, spoilt, log, dumps = serve("spoilt", "accept-length", before=change)
    assert code == 0, log[-4000:]
    assert spoilt == sound, "the target verifies every token"
    found = dumps[0].manifest
    assert len(dumps) == 1
    assert (found.rule, found.verdict, found.action) == ("accept-length", "accept_length_fell", "logged")
    assert found.scalars["accepted_before"] > 2 * found.scalars["accepted_recently"]


def test_with_every_probe_the_layer_that_it_reads_is_named_in_the_step_of_the_change(serve):
    _, _, log, dumps = serve("every", before="engine_changes:bind_draft_to_first_layer_later")
    assert dumps, log[-4000:]
    (incident,) = group(dumps)
    first = conclude(incident)[0]
    assert (first.rule, str(first.structure), str(first.confidence)) == ("parts-disagree", "draft binding", "certain")
    assert dumps[0].manifest.scalars["what"] == "layer_id"
