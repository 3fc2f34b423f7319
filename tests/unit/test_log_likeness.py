"""What ended a server is told to be like public incidents: by what is rare in both, whatever else a log holds."""

import re
from pathlib import Path

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.known_issues.catalog import incidents
from gemma4_triage.logs.catalog import with_those_alike
from gemma4_triage.logs.likeness import _SWITCH, ALIKE, alike, signs_of
from gemma4_triage.logs.read import read_log, read_source
from gemma4_triage.logs.source import Source
from gemma4_triage.threads import thread_name
from index_incidents import LIST, listed
from log_wrappers import WRAPPERS
from made_logs import MADE, death
from score_incidents import incidents as drawn

ID = "like-incidents"
LOGS = Path(__file__).parents[1] / "data" / "logs"
DEEPGEMM = (
    "[2026-05-14 09:12:44 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/sgl-workspace/sglang/python/sglang/srt/model_executor/cuda_graph_runner.py", line 12, in capture\n'
    "    x = call(y)\n"
    "Exception: Capture cuda graph failed: CUDA driver error "
    "(/deepgemm/csrc/apis/../jit_kernels/impls/runtime_utils.hpp:143): 700 (CUDA_ERROR_ILLEGAL_ADDRESS)\n"
)
THREAD = "SGLang 25551"


def facts_of(text):
    return read_log("server.log", [text.encode()])


def told(text):
    return [finding for finding in with_those_alike(facts_of(text)) if finding.rule == ID]


@pytest.mark.slow
def test_the_list_is_that_of_the_incidents_and_records():
    assert LIST.read_text(encoding="utf-8") == listed()


def test_every_incident_has_a_thread_a_cause_and_a_sign():
    for one in incidents():
        repository, _, number = one.thread.rpartition(" ")
        assert "/" in repository
        assert number.isdigit()
        assert one.cause[0] != " "
        assert not one.cause.endswith(".")
        assert one.signs


def test_a_failure_that_somebody_had_names_the_thread_its_cause_and_what_helped():
    (found,) = told(DEEPGEMM)
    assert found.upstream[0] == THREAD
    # It stands there twice, with two logs.
    listed = [one for one in incidents() if thread_name(one.thread) == THREAD]
    assert any(one.cause in found.cause and one.next in found.advice for one in listed)
    assert found.confidence is Confidence.POSSIBLE
    assert "cuda_error_illegal_address" in found.evidence[0].meaning


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("other numbers", DEEPGEMM.replace(":143", ":151").replace("TP0", "TP5").replace("line 12", "line 977")),
        ("another path", DEEPGEMM.replace("/sgl-workspace/sglang/python/", "/opt/venv/lib/python3.12/site-packages/")),
        ("no frame", "\n".join(line for line in DEEPGEMM.split("\n") if "  " not in line[:2])),
        ("a frame without its line", DEEPGEMM.replace(", line 12,", ",")),
        ("an elision", DEEPGEMM.replace("    x = call(y)\n", "  ...\n")),
    ],
)
def test_what_differs_from_server_to_server_does_not_count(name, changed):
    assert changed != DEEPGEMM
    (found,) = told(changed)
    assert found.upstream[0] == THREAD


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_tools_put_around_lines_does_not_count(wrapper):
    bare, wrapped = facts_of(DEEPGEMM), facts_of(WRAPPERS[wrapper](DEEPGEMM))
    assert [(one.incident, round(one.share, 1)) for one in alike(wrapped)] == [
        (one.incident, round(one.share, 1)) for one in alike(bare)
    ]


def test_words_that_any_failure_has_are_no_likeness():
    usual = (
        "[2026-05-14 09:12:44 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/srv/own.py", line 3, in serve\n'
        "AttributeError: 'Thing' object has no attribute 'other'\n"
    )
    assert not told(usual)
    assert not told(
        usual.replace("AttributeError: 'Thing' object has no attribute 'other'", "RuntimeError: CUDA error")
    )


def test_a_log_without_a_failure_has_no_signs():
    healthy = "[2026-05-14 09:12:44] server_args=ServerArgs(enable_lora=True)\n[2026-05-14 09:12:49] fired up\n"
    assert signs_of(facts_of(healthy)) == (frozenset(), frozenset())
    assert not alike(facts_of(healthy))


def test_what_a_probe_stopped_or_a_record_fits_needs_no_likeness():
    assert not told((LOGS / "trapped.log").read_text(encoding="utf-8"))
    assert not told("".join(MADE["known-issue"]))


def test_the_share_grows_with_what_is_in_common():
    best = alike(facts_of(DEEPGEMM))[0]
    less = alike(facts_of(DEEPGEMM.replace("Exception: Capture", "Exception: While it sang of cheese, capture")))[0]
    assert ALIKE <= less.share < best.share <= 1


def test_a_thread_that_another_finding_names_is_left_out():
    facts = facts_of("".join(MADE["no-slot"]))
    named = [thread for finding in with_those_alike(facts) for thread in finding.upstream]
    assert len(named) == len(set(named)) > 0


def test_a_traceback_that_is_cut_off_is_not_like_others_that_are():
    for frames in (1, 3):
        cut = "\n".join(DEEPGEMM.split("\n")[:1] + ['  File "/srv/own.py", line 3, in serve'] * frames)
        assert not told(cut)
    assert not any("ends inside" in sign for one in incidents() for sign in one.signs)


def test_what_a_server_has_not_switched_on_rules_an_incident_out():
    incident = next(one for one in incidents() if any(map(_SWITCH.fullmatch, one.arguments)) and alike_itself(one))
    name = next(filter(_SWITCH.fullmatch, incident.arguments))
    with_it, without = (
        facts_of(log_of(incident)),
        facts_of(log_of(incident).replace(name[2:], name[2:].replace("True", "False"))),
    )
    assert incident in [one.incident for one in alike(with_it, 5)]
    assert incident not in [one.incident for one in alike(without, 5)]


def test_an_incident_of_drafts_is_not_like_a_command_without_them():
    """Its cause speaks of EAGLE, which no server has without an option."""
    incident = next(one for one in incidents() if "EAGLE" in one.cause and no_command_like_itself(one))
    command = "$ python3 -m sglang.launch_server --model-path m {}\n"
    with_drafts, without = (
        facts_of(command.format(given) + log_of(incident)) for given in ("--speculative-algorithm EAGLE", "--tp 2")
    )
    assert incident in [one.incident for one in alike(with_drafts, 5)]
    assert incident not in [one.incident for one in alike(without, 5)]


@pytest.mark.parametrize(
    ("words", "given"), [(r"\bLoRA\b", "--enable-lora"), ("HiCache", "--enable-hierarchical-cache")]
)
def test_a_cause_of_what_a_command_has_not_is_less_alike(words, given):
    incident = next(one for one in incidents() if re.search(words, one.cause) and no_command_like_itself(one))
    command = "$ python3 -m sglang.launch_server --model-path m {}\n"
    on, off = (
        {one.incident: one.share for one in alike(facts_of(command.format(option) + log_of(incident)), 9)}
        for option in (given, "--tp 2")
    )
    assert off.get(incident, 0) < on[incident]


def no_command_like_itself(incident):
    """Say whether an incident's own log has no command, and is alike itself."""
    logs = [one["log"] for one in drawn() if one["thread"] == incident.thread]
    if not logs or "server_args" in logs[0] or "launch_server" in logs[0]:
        return False
    return incident in [one.incident for one in alike(facts_of(logs[0]), 5)]


def log_of(incident):
    return next(one["log"] for one in drawn() if one["thread"] == incident.thread)


def alike_itself(incident):
    return any(one["thread"] == incident.thread and "server_args" in one["log"] for one in drawn()) and incident in [
        one.incident for one in alike(facts_of(log_of(incident)), 5)
    ]


def test_what_is_much_alike_stands_ahead_of_what_only_repeats_the_exception():
    log = next(incident["log"] for incident in drawn() if incident["thread"] == "sgl-project/sglang 27654")
    near = with_those_alike(facts_of(log))
    assert [finding.rule for finding in near] == [ID, "other-crash"]
    assert near[1].confidence is Confidence.LIKELY
    assert "kernels" in near[0].advice[0]
    # Another failure of another file is like none.
    assert ID not in [found.rule for found in with_those_alike(facts_of(death(1, "KeyError: 'cup'", "", "kitchen.py")))]


def test_what_is_very_much_alike_stands_ahead_of_a_rule_of_a_whole_kind():
    log = next(incident["log"] for incident in drawn() if incident["thread"] == "sgl-project/sglang 26015")
    found = with_those_alike(facts_of(log))
    assert found[0].rule == ID
    assert found[1].confidence is Confidence.LIKELY
    assert "SGLang 26015" in found[0].cause


def test_a_failure_that_is_certain_and_has_its_fix_here_is_not_compared():
    facts = read_source(Source(str(LOGS / "stale-write-rows.log")))
    assert alike(facts)
    assert ID not in [finding.rule for finding in with_those_alike(facts)]
