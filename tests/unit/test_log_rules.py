"""Each rule over serving logs: one it fires on, and all the others on which it is silent."""

import gc
import re
from pathlib import Path

import pytest

from command_line import parse_command
from gemma4_dumps.wording import CONTAINED
from gemma4_runtime.errors import TrappedViolation
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import rules
from gemma4_triage.logs.catalog import ENDINGS, FALLBACKS, LOADS, findings
from gemma4_triage.logs.late_pattern import _LatePattern
from gemma4_triage.logs.read import read_source
from gemma4_triage.logs.rule import Rule
from gemma4_triage.logs.rules import known_issue, other_crash, refused_by_check, told_by_words, unexplained_line
from gemma4_triage.logs.source import Source
from made_logs import (
    ASSERTION,
    ILLEGAL,
    MADE,
    TRACEBACK,
    death,
    decode,
    found_in,
    only,
    prefill,
    retraction,
    stamp,
    started,
    steady,
)

SAMPLES = Path(__file__).parents[1] / "data" / "logs"

# Of real runs. What is not named here must be silent.
FOUND = {
    "accept-drop": {"accept-length-drop", "prefix-cache-loss"},
    "full-starved": {"binding-pool"},
    "healthy": set(),
    "hybrid-draft-pool": {"hybrid-draft-pool"},
    "illegal-access": {"illegal-access", "binding-pool", "retraction-thrash", "re-prefill-storm"},
    "out-of-memory": {"no-slot"},
    "pool-leak": {"pool-leak"},
    "prefix-hits": set(),
    "prefix-loss": {"prefix-cache-loss"},
    "probe-logged": {"probe-stopped", "stale-write-rows"},
    "stale-write-rows": {"stale-write-rows"},
    "swa-starved": {"binding-pool", "retraction-thrash", "re-prefill-storm"},
    "trapped": {"probe-stopped"},
}


def of_sample(name: str) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings(read_source(Source(str(SAMPLES / f"{name}.log"))))}


def test_every_sample_is_judged():
    assert {path.stem for path in SAMPLES.glob("*.log")} == set(FOUND)


@pytest.mark.parametrize("name", FOUND)
def test_a_real_log(name):
    assert set(of_sample(name)) == FOUND[name]


@pytest.mark.parametrize("rule", MADE)
def test_a_made_log(rule):
    assert {finding.rule for finding in found_in(MADE[rule])} == {rule}


def test_every_rule_fires_somewhere_and_has_a_file_that_is_listed():
    ids = {rule.id for rule in (*ENDINGS, *FALLBACKS, *LOADS)} | {
        known_issue.ID,
        other_crash.ID,
        refused_by_check.ID,
        unexplained_line.ID,
    }
    assert ids == {rule for found in FOUND.values() for rule in found} | set(MADE)
    files = {path.stem for path in Path(rules.__path__[0]).glob("*.py")} - {"__init__"}
    worded = {"expert_transport", "host_limits", "lora_refused", "start_refused", "weights_missing"}
    # These share the file of a rule that is about the same thing.
    beside = {"requests_held_back", "kv_transfer_waits"}
    # What is like a failure is told beside what a rule says of it: see test_log_likeness.py.
    assert {id.replace("-", "_") for id in ids} - worded - beside == files - {"like_incidents"}
    assert {name.lower() for name, rule in vars(told_by_words).items() if isinstance(rule, Rule)} == worded | {
        "rule",
        "_of_failures",
        "_of_starts",
        "_of_weights",
    }


class TestWhatIsNoCause:
    def test_sglang_kills_its_own_processes_after_a_hang(self):
        assert only([*MADE["hang"], "Killed\n"]).rule == "hang"

    def test_a_cause_of_memory_is_told_whatever_stands_before(self):
        rules = {
            finding.rule for finding in found_in([*MADE["hang"], "Memory cgroup out of memory: Killed process 8\n"])
        }
        assert "killed-from-outside" in rules

    def test_an_assertion_of_sampling_is_no_index(self):
        said = (
            "TensorCompare.cu:112: Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
        )
        assert only([decode(1), said, death(2, ASSERTION)]).rule == "non-finite-logits"

    def test_prompts_of_many_users_are_no_lost_prefix(self):
        lengths = (9000, 2500, 14000, 3000, 7000, 21000, 5000)
        assert found_in(prefill(at, new=new, cached=64) for at, new in enumerate(lengths)) == ()

    def test_a_benchmark_is_no_lost_prefix(self):
        assert found_in(prefill(at, new=8000, cached=1) for at in range(20)) == ()

    def test_a_suspect_is_named_and_no_cause(self):
        finding = only([decode(1), death(2, "AssertionError", frame="hiradix_cache.py")])
        assert finding.rule == "other-crash"
        assert any("--enable-hierarchical-cache" in step for step in finding.advice)


class TestWhatTheFindingsSay:
    def test_the_encoder_that_memory_ran_out_in(self):
        last = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.31 GiB."
        assert "encoder" in only([decode(1), death(2, last, frame="gemma4_vision.py")]).cause

    def test_rows_are_no_memory(self):
        last = "RuntimeError: alloc_req_slots runs out of memory. self.req_to_token_pool.available_size()=1, num_reqs=2"
        assert "larger --max-running-requests" in only([decode(1), death(2, last)]).advice[0]

    def test_rows_that_were_refused_although_there_were_enough_are_no_load(self):
        last = "RuntimeError: alloc_req_slots runs out of memory. self.req_to_token_pool.available_size()=6, num_reqs=2"
        found = only([decode(1), death(2, last)])
        assert "although it had enough: 2 asked, 6 free" in found.cause
        assert not any("--max-running-requests" in advice for advice in found.advice)

    def test_a_parser_that_raises_in_a_stream(self):
        raised = (
            f"{stamp(2)} ERROR:    Exception in ASGI application\n{TRACEBACK}"
            '  File "/opt/base_format_detector.py", line 160, in parse_streaming_increment\nAssertionError\n'
        )
        assert only([decode(1), raised, decode(3)]).rule == "answer-parser"

    def test_no_drafts_are_blamed_where_none_ran(self):
        rows = [decode(1, swa=0.95), death(2, ILLEGAL)]
        assert only([started(speculative_algorithm=None, page_size=1), *rows]).fix is None
        assert only([started(speculative_algorithm="NEXTN", page_size=1), *rows]).fix == "swa-state-swap"

    def test_a_slot_beyond_the_pool_that_a_draft_wrote(self):
        died = death(2, ASSERTION, frame="memory_pool.py").replace("in step", "in set_kv_buffer")
        assert "beyond the end of its pool" in only([started(speculative_algorithm="EAGLE3"), decode(1), died]).cause

    def test_an_answer_that_harmony_cannot_parse_ends_no_server(self):
        answered = f'{stamp(2)} INFO:     10.0.0.1:3 - "POST /v1/responses HTTP/1.1" 500 Internal Server Error\n'
        raised = (
            f"{stamp(2)} ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
            '  File "/opt/openai_harmony/__init__.py", line 637, in process\n'
            "openai_harmony.HarmonyError: Unexpected token 12606 while expecting start token 200006\n"
        )
        finding = only([decode(1), answered, raised, decode(3)])
        assert finding.rule == "answer-parser"
        assert "the server goes on" in finding.cause

    def test_the_dump_of_a_trap_is_named(self):
        finding = of_sample("trapped")["probe-stopped"]
        assert finding.confidence is Confidence.CERTAIN
        assert finding.next_commands[0].startswith("gemma4-triage dumps show /srv/runs/e4b/fault-probes/dumps/2026")
        assert "full page ids on the swa buffer" in str(finding.evidence[0].value)

    def test_a_request_that_containment_ended_is_no_crash_of_another_kind(self):
        ended = f"fastapi.exceptions.HTTPException: 500: {CONTAINED}null_page_live, value 0 in swa_page_table"
        (finding,) = found_in([decode(1), death(2, ended)])
        assert finding.rule == "probe-stopped"
        assert finding.cause.endswith("null_page_live, value 0 in swa_page_table")

    def test_a_server_that_ended_for_one_request_names_the_probe_by_its_dump(self):
        name = "20261128T072203.821055Z_a_host_r0_p30149_page-table-bounds_0001"
        error = TrappedViolation("null_page_live, value 0; a request cannot be ended", f"/dumps/{name}")
        (finding,) = found_in([decode(1), death(2, f"gemma4_runtime.errors.TrappedViolation: {error}")])
        assert finding.cause.startswith("The probe page-table-bounds trapped a violation: null_page_live")
        assert name in [piece.value for piece in finding.evidence]

    def test_the_exception_of_this_release_is_understood(self):
        error = TrappedViolation("geometry: draft pool differs", "/dumps/with space")
        (finding,) = found_in([decode(1), death(2, f"gemma4_runtime.errors.TrappedViolation: {error}")])
        assert finding.next_commands == ("gemma4-triage dumps show '/dumps/with space'",)
        error = TrappedViolation("geometry: draft pool differs", None, "disk full")
        (finding,) = found_in([decode(1), death(2, f"gemma4_runtime.errors.TrappedViolation: {error}")])
        assert finding.next_commands == ()
        assert "disk full" in {piece.value for piece in finding.evidence}

    def test_what_contain_mode_logs(self):
        said = "page-table-bounds: page_table[5, 7] = 65 [contained; seen 4 times; dump: /dumps/a_leak]"
        (finding,) = found_in([decode(1), f"{stamp(2, 'TP0')} {said}\n"])
        assert finding.cause == "The probe page-table-bounds contained a violation: page_table[5, 7] = 65"
        assert finding.next_commands == ("gemma4-triage dumps show /dumps/a_leak",)

    def test_a_leak_dump_is_shown_by_audit(self):
        said = "leak-audit: 7 full pages [logged; seen 1 times; dump: /dumps/x]"
        (finding,) = found_in([f"{stamp(2)} {said}\n"])
        assert finding.next_commands == ("gemma4-triage audit /dumps/x",)

    def test_an_illegal_access_at_swa_pressure_is_the_known_one(self):
        finding = of_sample("illegal-access")["illegal-access"]
        assert (finding.confidence, finding.fix) == (Confidence.LIKELY, "swa-state-swap")
        assert [evidence.value for evidence in finding.evidence][1:] == [
            "full 0.36, swa 0.89",
            "FROZEN_KV_MTP, trtllm_mha",
        ]
        assert finding.evidence[1].field == "line 18"

    def test_an_illegal_access_without_pressure_is_not(self):
        (finding,) = found_in(MADE["illegal-access"])
        assert (finding.confidence, finding.fix) == (Confidence.POSSIBLE, None)

    def test_the_line_of_evidence_holds_the_value(self):
        lines = (SAMPLES / "swa-starved.log").read_text().splitlines()
        finding = of_sample("swa-starved")["binding-pool"]
        number = int(finding.evidence[0].field.removeprefix("line "))
        assert "full token usage: 0.41, swa token usage: 0.98" in lines[number - 1].replace("#swa token: ", "")
        assert "raise --swa-full-tokens-ratio" in finding.cause

    def test_a_full_pool_that_binds_says_the_other_direction(self):
        assert "lower --swa-full-tokens-ratio" in of_sample("full-starved")["binding-pool"].cause

    def test_both_equations_of_a_leak_are_read(self):
        finding = of_sample("pool-leak")["pool-leak"]
        assert "112 of 2560 tokens of the full pool" in finding.cause
        assert "112 of 1024 tokens of the swa pool" in finding.cause

    def test_too_many_tokens_are_not_called_missing(self):
        line = f"{stamp(1)} pool memory leak detected! [swa] total=1024, available=752, evictable=288, protected=0\n"
        (finding,) = found_in([line])
        assert "16 tokens of the swa pool are counted twice" in finding.cause

    def test_the_published_leaks(self):
        said = (
            "[full] total=2138243, available=2137945, evictable=0, protected=274",
            "[full] total=106600, available=106570, evictable=0, protected=6",
        )
        causes = [found_in([f"{stamp(1)} pool memory leak detected! {text}\n"])[0].cause for text in said]
        assert [int(cause.split(": ")[1].split()[0]) for cause in causes] == [24, 24]

    def test_no_slot_with_room_in_the_pools_is_another_cause(self):
        roomy, full = of_sample("out-of-memory")["no-slot"], found_in(MADE["no-slot"])[0]
        assert "although the pools had room" in roomy.cause
        assert "although" not in full.cause

    def test_an_index_on_the_host_is_one_too(self):
        (finding,) = found_in(
            [decode(1), death(2, "IndexError: index 1040 is out of bounds for dimension 0 with size 9")]
        )
        assert finding.rule == "index-outside-tensor"
        assert "in scheduler.py:12 step" in finding.evidence[0].meaning

    def test_endings_come_before_loads(self):
        order = [finding.rule for finding in findings(read_source(Source(str(SAMPLES / "illegal-access.log"))))]
        assert order[0] == "illegal-access"

    def test_where_drafts_are_left_out_a_short_accept_length_says_little(self):
        said = f"{stamp(0)} gemma4-triage: draft-policy: drafts where they pay: given\n"
        drop = [*steady(60, accept=2.6), *steady(60, 60, accept=1.0)]
        assert [finding.rule for finding in found_in(drop)] == ["accept-length-drop"]
        assert found_in([said, *drop]) == ()
        none = list(steady(20, accept=1.0))
        likely, possible = only(none), only([said, *none])
        assert (likely.confidence, possible.confidence) == (Confidence.LIKELY, Confidence.POSSIBLE)
        assert "leaves drafts out" in possible.cause

    def test_an_accept_length_that_comes_back_says_where(self):
        evidence = of_sample("accept-drop")["accept-length-drop"].evidence
        before, after = (float(str(shown.value)) for shown in evidence[:2])
        assert before > after / 0.75
        assert evidence[-1].meaning.startswith("back at 90%")


class TestThresholds:
    def test_a_few_retractions_in_an_hour_are_no_thrash(self):
        assert found_in([prefill(0), *(retraction(600 * i) for i in range(6))]) == ()

    def test_releases_before_0_4_7_retract_in_other_words(self):
        line = "{} Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.3000 -> 0.4000\n"
        lines = [prefill(0), decode(1), line.format(stamp(2)), decode(3)]
        assert found_in(lines) == ()
        thrash = [prefill(0, full=0.99), *(line.format(stamp(10 + i)) for i in range(5))]
        assert "retraction-thrash" in {finding.rule for finding in found_in(thrash)}
        (finding,) = found_in([started(disaggregation_mode="decode"), *lines])
        assert "does not take them up again" in finding.cause

    def test_retractions_of_all_ranks_of_a_group_are_one(self):
        """Every tensor-parallel rank prints them; only the first reports batches."""
        rows = [prefill(0, rank="TP0")]
        rows += [retraction(10 * i, rank=f"TP{rank}") for i in range(3) for rank in range(8)]
        assert found_in(rows) == ()

    def test_without_usage_no_pool_is_blamed(self):
        (finding,) = found_in(retraction(i) for i in range(5))
        assert finding.cause.startswith("A pool is too small")
        assert finding.confidence is Confidence.LIKELY

    def test_retraction_for_testing_is_none(self):
        line = "{} Testing retraction. #retracted_reqs: 1, #new_tokens_gained: 16\n"
        assert found_in([prefill(0), *(line.format(stamp(i)) for i in range(10))]) == ()

    def test_a_full_pool_alone_is_no_finding_while_nobody_waits(self):
        assert found_in(steady(50, full=0.4, swa=0.97)) == ()

    def test_two_full_pools_bind_together(self):
        assert found_in(steady(50, full=0.95, swa=0.97, queued=9)) == ()

    def test_slow_lines_after_a_prefill_are_no_collapse(self):
        rows = [*steady(40, rate=900)]
        for second in range(40, 80):
            rows += [prefill(second, queued=0), decode(second, rate=100)]
        assert found_in(rows) == ()

    def test_fewer_requests_are_no_collapse(self):
        assert found_in([*steady(40, rate=900, running=64), *steady(40, start=40, rate=100, running=2)]) == ()

    def test_a_caught_traceback_is_no_crash(self):
        text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: no libavutil\n'
        assert found_in([prefill(1), text, prefill(2)]) == ()

    def test_a_traceback_that_nothing_follows_is_one(self):
        text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: no libavutil\n'
        (finding,) = found_in([prefill(1), text])
        assert finding.rule == "other-crash"
        assert finding.evidence[0].value == "OSError: no libavutil"


def test_commands_to_run_next_exist():
    every = [finding for name in FOUND for finding in of_sample(name).values()]
    every += [finding for lines in MADE.values() for finding in found_in(lines)]
    for line in {command for finding in every for command in finding.next_commands}:
        parse_command(line)


def test_every_pattern_of_a_rule_compiles():
    found = [one for one in gc.get_objects() if type(one) is _LatePattern]
    assert len(found) > 200
    for one in found:
        re.compile(one.pattern, one.flags_of_text)


def test_retractions_on_purpose_are_a_note():
    sample = (SAMPLES / "prefix-loss.log").read_text()
    last = "Testing retraction. #retracted_reqs: 1, #new_tokens_gained: 32\n"
    (told,) = found_in([sample, last])
    assert (told.rule, told.is_note) == ("prefix-cache-loss", True)
    assert "SGLANG_TEST_RETRACT" in told.cause
    assert not of_sample("prefix-loss")["prefix-cache-loss"].is_note
