"""Whatever words a note has for wrong answers, calls or scores, it is a finding; a note that all is well is none."""

import pytest

from gemma4_triage.logs.notes_in_prose import difference_in
from gemma4_triage.logs.silence_in_words import says_so
from gemma4_triage.logs.trouble_in_other_words import kind_of
from made_logs import decode, found_in, only, prefill, stamp, started

READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
WORK = [READY, prefill(2), decode(3)]
SERVED = [started(model_path="m"), *WORK]
WRONG = """answers are garbage as soon as two prompts run together
every reply ends in the same phrase over and over
the model repeats one sentence for ever inside its reasoning
it loops on "the the the" after some 200 tokens
replies come back in Korean though the prompt is English
output turns into Cyrillic in the middle of a sentence
at temperature 1 the text is unreadable, at 0.2 it is good
the wrong tool is called with the right arguments
the model picks the wrong function in half of the turns
most tool uses fail in the client
the agent's edits are rejected, its calls hold stray quotes
arguments of the call hold pieces of the delimiter
JSON of the call cannot be parsed by the client
the required field "city" is left out of the arguments
the response has no usage field
top_logprobs has fewer entries than were asked for
logprobs of the prompt do not add up to those of transformers
log probabilities are shifted by one token
token logprobs are positive
the second prompt of a batch gives nearly nothing
a request without an adapter answers as though the adapter were still on
the base model's answer has the adapter's style
batch of two: only the first one is right
gsm8k 0.0015 where 0.95 is expected
almost every answer is wrong, all requests end with 200
exact_match is 0.00 on every task
eval score went from 71 to 12
reward of the rollout is zero since we use this server
rerank scores do not rank: the best document is last
cosine similarity between equal texts is 0.3
the reply has nothing to do with the question
content is empty, all tokens are in the reasoning
it writes only line breaks until max_tokens
the same exclamation mark fills the answer
the picture is ignored, it describes another one
the transcript misses every second sentence
code in the answer lacks its indentation
the translation stops half-way
the end token is printed as text
it answers for the user too
the answer is somebody else's
digits of long numbers get lost""".splitlines()
WELL = """answers are right and so are the scores
no garbage, no repeats, three days now
the wrong tool was never called in 500 runs
tool calls work in the client
JSON is valid in every answer
all required fields are there
logprobs agree with transformers to four digits
top_logprobs has as many entries as asked for
gsm8k 0.95, as published
exact_match 0.957 on all tasks
nothing repeats itself any more since the restart
the reply is in the language of the prompt
replies in Korean, as asked
the adapter is on, its style is there
base and adapter answer as they should
the picture is described well
embeddings agree with sentence-transformers
scores of the reranker are in the right order
the transcript is complete
translation is whole and good
repetition_penalty is 1.1 in all requests
we ask for logprobs of the top 5
the prompt asks for one word again and again
the test sends garbage on purpose, the answers are fine
requests carry three tools, tool_choice auto
half of the requests have a json_schema
this is the eval that gave 0.95
eval runs with temperature 0
client prints the reasoning too
the question is the same for all users
text ends at the stop string, as asked
usage is counted by the router""".splitlines()
KINDS = [
    ("the wrong tool is called with the right arguments", "form"),
    ("most tool uses fail in the client", "form"),
    ("the response has no usage field", "form"),
    ("token logprobs are positive", "answers"),
    ("replies come back in Korean though the prompt is English", "answers"),
    ("eval score went from 71 to 12", "answers"),
    ("eval score went from 71 to 70.5", None),
    ("gsm8k is 0.93 where 0.95 is published", None),
    ("no reply loops over one word", None),
    ("a request without an adapter answers as though it had one", "answers"),
]
TURNS = [
    ("With the outlines backend all is well.", "with --grammar-backend outlines"),
    ("with llguidance every answer is right", "with --grammar-backend llguidance"),
    ("with pytorch sampling it is fine", "with --sampling-backend pytorch"),
    ("all is well with the triton MoE backend", "with --moe-runner-backend triton"),
    ("with nixl as transfer it works", "with --disaggregation-transfer-backend nixl"),
    ("without outlines all is well", ""),
    ("with xgrammar it is garbage too", ""),
]
FIRST = [
    ("# temperature 0.2: good. temperature 1: unreadable", {}, "with --sampling-backend pytorch"),
    ("# greedy is right, at temperature 1.0 it is garbage", {}, "with --sampling-backend pytorch"),
    (
        "# answers are garbage; vLLM serves the same files well",
        {"model_path": "/models/x-nvfp4"},
        "with a checkpoint whose lm_head is not quantised",
    ),
    ("# answers are garbage; vLLM serves the same files well", {}, "with other kernels than it chose"),
    (
        "# two together, one with a json_schema and one without: the one without gives garbage",
        {},
        "with another --grammar-backend",
    ),
]


def _seen(*lines: str) -> str:
    return only([*SERVED, *lines]).cause


@pytest.mark.parametrize("words", WRONG)
def test_a_complaint_of_answers_is_a_finding_and_no_silence(words):
    (found,) = found_in([f"# {words}\n", *SERVED])
    assert found.rule == "noted-trouble"
    assert "answers do not come" not in found.cause


@pytest.mark.parametrize("words", WELL)
def test_a_note_that_all_is_well_is_none(words):
    assert found_in([f"# {words}\n", *SERVED]) == ()


@pytest.mark.parametrize(("words", "kind"), KINDS)
def test_a_complaint_is_of_the_kind_that_it_tells_of(words, kind):
    assert kind_of(f"# {words}".encode()) == kind


@pytest.mark.parametrize(("words", "change"), TURNS)
def test_what_a_note_says_all_is_well_with_is_a_change(words, change):
    assert difference_in(words) == change


def test_a_backend_that_the_start_has_already_is_no_change():
    note = "# answers are garbage. With the outlines backend all is well\n"
    (mended,) = found_in([note, started(model_path="m", grammar_backend="xgrammar"), *WORK])
    assert mended.advice[0].startswith("with --grammar-backend outlines")
    (own,) = found_in([note, started(model_path="m", grammar_backend="outlines"), *WORK])
    assert not any("outlines" in one for one in own.advice)


@pytest.mark.parametrize(("note", "start", "change"), FIRST)
def test_what_a_note_narrows_down_comes_first(note, start, change):
    assert only([f"{note}\n", started(**{"model_path": "m", **start}), *WORK]).advice[0].startswith(change)


def test_writing_for_ever_is_no_silence():
    assert not says_so(b"# it repeats one word for ever")
    assert not says_so(b"# the model goes on and writes the same line without end")
    assert says_so(b"# the request waits for ever")


def test_float16_of_a_checkpoint_in_awq_is_its_kernels_own():
    awq, plain = (
        only(["# answers are garbage\n", started(model_path=path, dtype="float16"), *WORK]).advice
        for path in ("Qwen2.5-7B-AWQ", "Qwen2.5-7B")
    )
    assert not any("--dtype bfloat16" in one for one in awq)
    assert any("--dtype bfloat16" in one for one in plain)


def test_what_a_client_cannot_read_of_a_call_is_a_finding():
    start = "INFO 04-03 11:02:09 [utils.py:233] non-default args: {'model': 'm', 'tool_call_parser': 'gemma4'}\n"
    up = "(APIServer pid=1) INFO:     Application startup complete.\n"
    line = '# client:\nInvalid input for tool todo: JSON parsing failed: Text: {"a": "<|\\\\Demo<|\\"|"}\n'
    found = only([start, up, line])
    assert found.rule == "noted-trouble"
    assert found.advice[0].startswith("with requests with tools that do not stream")
    assert found_in([start, up, '# client:\nJSON parsing failed: {"a":\n']) == ()
