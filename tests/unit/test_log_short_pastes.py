"""A few lines of a server that died or lives, made by us, as they are and behind whatever people paste along."""

import re
from pathlib import Path

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from log_wrappers import WRAPPERS
from made_logs import decode, prefill, told

PARTS = re.split(
    r"^=== (\S+) (\S+)\n",
    (Path(__file__).parents[1] / "data" / "short_logs.txt").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)
LOGS = {name: (rule, text) for name, rule, text in zip(PARTS[1::3], PARTS[2::3], PARTS[3::3], strict=True)}
DEAD = {name: (rule, text) for name, (rule, text) in LOGS.items() if rule != "-"}
HEALTHY = {name: text for name, (rule, text) in LOGS.items() if rule == "-"}


def rules(text: str) -> list[str]:
    return [finding.rule for finding in findings(read_log("x", [text.encode()]))]


@pytest.mark.parametrize("name", DEAD)
def test_the_first_finding_is_of_the_rule_that_knows_it(name):
    rule, text = DEAD[name]
    assert rules(text)[0] == rule


@pytest.mark.parametrize("name", HEALTHY)
def test_alarming_words_of_a_server_that_goes_on_are_no_finding(name):
    for before in ("", prefill(1)):
        assert rules(before + HEALTHY[name] + decode(9)) == []


@pytest.mark.sampled(24)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_no_envelope_makes_another_log_of_it(wrapper):
    wrap = WRAPPERS[wrapper]
    # Of two lines without a frame nothing learns what stands before them.
    long = {name: text for name, (_, text) in DEAD.items() if not name.startswith("beside-")}
    assert {name: rules(wrap(text)) for name, text in long.items()} == {
        name: rules(text) for name, text in long.items()
    }
    assert {name: rules(wrap(text + decode(9))) for name, text in HEALTHY.items()} == {name: [] for name in HEALTHY}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm-worker-torn", "w13_weight_packed"),
        ("valueerror-no-time", "for the KV cache of one request"),
        ("unify", "--kv-cache-dtype"),
        ("hip-identifier", "no HIP name"),
        ("nvcc-identifier", "__nv_fp4_e2m1"),
        ("gxx-member", "foo_bar"),
        ("ptxas-target", "TVM_FFI_CUDA_ARCH_LIST"),
        ("gcc-too-new", "newer than this nvcc"),
        ("hip-arch", "gfx1151x"),
        ("cc1plus-killed", "MAX_JOBS"),
        ("ld", "-lcuda"),
        ("make", "bar"),
        ("jit-no-image", "compiled for another"),
        ("pyspy-gil", "--disable-radix-cache"),
        ("pyspy-two", "TP1"),
        ("attr-audio", "audio_token_id"),
        ("attr-embeds-keyerror", "in place of embeddings"),
    ],
)
def test_what_stands_beside_a_last_line_without_a_cause_is_told(name, words):
    assert words in told(findings(read_log("x", [DEAD[f"beside-{name}"][1].encode()]))[0])
