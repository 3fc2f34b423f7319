"""Advice that the start follows already says so, and stands behind what is still to be tried."""

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.given_already import told
from gemma4_triage.logs.read import read_log


def advised(command: str, *advice: str) -> tuple[str, ...]:
    facts = read_log("x", [f"python -m sglang.launch_server --model-path m {command}\n".encode()])
    found = Finding(rule="r", cause="c", confidence=Confidence.POSSIBLE, evidence=(), advice=advice)
    return told(facts, [found])[0].advice


FIRST = "once with --disable-cuda-graph: what a step's graph does"
SECOND = "--attention-backend triton serves most models"
OTHER = "a later release"


def test_what_the_start_has_stands_last_and_says_so():
    shown = advised("--disable-cuda-graph --attention-backend triton", FIRST, SECOND, OTHER)
    assert shown[0] == OTHER
    assert shown[1].endswith("(the start has --disable-cuda-graph already)")
    assert shown[2].endswith("(the start has --attention-backend triton already)")


def test_what_the_start_has_not_stays_as_it_is():
    assert advised("--attention-backend fa3", FIRST, SECOND, OTHER) == (FIRST, SECOND, OTHER)
    assert advised("", FIRST, SECOND) == (FIRST, SECOND)


def test_what_is_to_be_left_out_or_only_spoken_of_is_no_such_advice():
    said = (
        "without --disable-cuda-graph, or with another --attention-backend triton has not",
        "leave out --disable-cuda-graph",
        "with --disable-cuda-graph earlier ones may keep it: leave that out once",
        "--mem-fraction-static 0.8 is too high: lower it",
    )
    assert advised("--disable-cuda-graph --attention-backend triton --mem-fraction-static 0.8", *said) == said


def test_what_is_given_in_part_says_so_where_it_stands():
    whole = "a later release; then --disable-cuda-graph"
    (shown, other) = advised("--disable-cuda-graph", whole, OTHER)
    assert shown == f"{whole} (the start has --disable-cuda-graph already)"
    assert other == OTHER
