"""A note of any trouble beside a log without a failure is a finding, in whatever words; a note of none is not."""

import pytest

from gemma4_triage.logs.trouble_in_other_words import kind_of
from made_logs import decode, found_in, prefill, stamp, started

SERVED = [started(model_path="m"), f"{stamp(1)} The server is fired up and ready to roll!\n", prefill(2), decode(3)]
COMPLAINTS = """AIME scores far under the published numbers: 76.7 (published 95.3)
MMLU is ten points below what the paper reports
benchmark score 12 points lower than with the reference implementation
half of the answers contain Chinese characters in English text
the model talks to itself and never gives the turn back
replies are cut off in mid sentence
the summary is made up, nothing of it stands in the prompt
second turn answers to the first one's question
output is different on every run at temperature 0
the image is described as something else
bounding boxes are shifted by a few hundred pixels
the answer has thinking tags in it
tool arguments come back as an empty object
function name is missing in the streamed delta
the JSON misses its closing brace
logprobs are all -inf
TTFT went from 0.3 s to 4 s after an hour
only 9 tok/s where the same card did 60
prefill takes three minutes for 32k
throughput halves as soon as LoRA is on
GPU utilisation sits at 20 % under full load
the first request after a pause takes a minute
host RAM climbs by 2 GB an hour
VRAM usage creeps up until the OOM killer comes
every tenth call ends in a 500
clients see connection reset by peer
some requests are answered with an empty body
requests fail with 503 under load
stream ends before the last words
embeddings differ from those of sentence-transformers
scores of the reranker are all the same
the adapter seems not to be applied
stop strings are not honoured
max_tokens is not respected
usage counts are wrong
the server answers in the wrong language
the assistant's reply comes back with user turns of somebody else in it
French prompts are answered in English
IFEval strict is 30 points under the model card
numbers in tables are swapped
every second function call lacks its closing bracket
thinking ends up between the lines of the final text
decode speed drops to a third once 16 users are on
average latency per token doubled overnight
RSS of the detokenizer swells to 40 GB
one in ten chats gets a 502 back
some connections are closed half-way
pictures in landscape are read sideways
the LoRA does nothing at all
seed is ignored
repetition_penalty has no effect
audio input is transcribed as silence
reasoning_content stays null
prompt_logprobs are inconsistent between two runs
perplexity is far higher than in transformers
long documents lose their middle part""".splitlines()
NONE = """8x H200, driver 570, image v0.5.9
load: 32 clients, prompts of 4k, answers of 512
benchmark with bench_serving, 1000 prompts
the log begins after the restart
weights are on a local NVMe, load takes two minutes
lines of rank 1 to 7 are left out
answers are right, and as fast as before
no wrong answers so far
accuracy is as published
after the fix all is well
memory stays flat over the week
traffic stops at night
the first lines are missing, the console was cleared
requests come from a router in front
a healthy server, kept for comparison
started with an empty cache
prompt lengths differ between clients
the model is smaller than the card
utilisation is at 95 %
half of the traffic has images
requests are long (8k tokens), answers are short
all images are the same size
text in English, documents in Arabic
start: it takes 30 s to load
with eagle scores differ
the adapter is used by half of the requests""".splitlines()
KINDS = [
    ("tool arguments come back as an empty object", "form"),
    ("TTFT went from 0.3 s to 4 s after an hour", "speed"),
    ("host RAM climbs by 2 GB an hour", "memory"),
    ("every tenth call ends in a 500", "requests"),
    ("bounding boxes are shifted by a few hundred pixels", "answers"),
]


@pytest.mark.parametrize("words", COMPLAINTS)
def test_a_complaint_is_a_finding(words):
    (found,) = found_in([f"# {words}\n", *SERVED])
    assert found.rule == "noted-trouble"
    assert found.advice


@pytest.mark.parametrize("words", NONE)
def test_what_is_none_is_no_finding(words):
    assert found_in([f"# {words}\n", *SERVED]) == ()


@pytest.mark.parametrize(("words", "kind"), KINDS)
def test_it_is_of_its_kind(words, kind):
    assert kind_of(f"# {words}".encode()) == kind


def test_what_only_one_part_of_a_note_complains_of_counts():
    assert kind_of(b"# Short prompts are fine. In long ones the seed is ignored") == "answers"
    assert kind_of(b"# the seed is ignored no longer, it is gone") is None


@pytest.mark.parametrize(
    "note",
    [
        "the build of two weeks earlier gave about 30 token/s per request in the same setup",
        "build from last week on the same node: 126.9 token/s, all arguments equal",
        "with the previous image 45 tok/s at one request",
    ],
)
def test_a_rate_of_an_earlier_build_leads_back_to_it(note):
    (found, *_) = found_in([*SERVED, f"# {note}\n"])
    assert (found.rule, "the build that was well by a note" in found.advice[0]) == ("noted-trouble", True)


def test_a_rate_alone_is_no_trouble():
    assert not found_in([*SERVED, "# 126.9 token/s at concurrency 1 with this build\n"])
