"""A note beside a log by which nobody is answered is a finding, however it is said, and above the log as below it."""

import pytest

from made_logs import decode, found_in, prefill, stamp, started

READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
SERVED = [READY, prefill(2), decode(3), decode(4)]
SAID = """no prefill line ever appears for it
no further decode line is printed
the request just sits there, curl shows no byte after half an hour
(nothing after this, waited 20 minutes)
no output since
the client waits indefinitely
no response for 15 minutes, GPU at 0%
with a prompt of 9k the reply never arrives
POST /generate: the call does not return even over night
long prompts get no reply whatsoever
curl keeps waiting, killed it after 10 min
the log goes quiet here
end of the log, the client is still waiting
it blocks for good as soon as a second chunk is needed
generation does not finish, and there is no error anywhere
the second request was pending for 30 minutes
our clients get nothing back
the connection stays open without a single token
still no token after a quarter of an hour
not a single token comes out
the log stops here while the client waits
prompts above 8k are swallowed: they are accepted and that is it
no further log lines
the server goes silent as soon as the prompt is longer than a chunk
the answer does not come
anything beyond one chunk is never scheduled again
the endpoint seems dead, but ps shows all processes
the request spins forever
the browser keeps loading
requests above 4k vanish without a trace
we see no answer and no error
the first chunk runs, the rest is never processed
the scheduler locked up, ctrl-c was needed""".splitlines()
DENIED = """answers come at once, nothing hangs any more
all requests are answered within 2 s
waited 10 minutes for the load, then it served
no error in the log, no crash
the server is quiet at night
no further changes to the start
a benchmark of 1000 prompts, all returned
we stopped it after the benchmark
without HiCache the request never comes back
no more than 8 requests at once
outputs of 200 tokens, no output is cut""".splitlines()


def start(**settings) -> str:
    return started(model_path="m", **settings)


@pytest.mark.parametrize("words", SAID)
def test_a_note_of_silence_is_a_finding_below_the_log_and_above_it(words):
    below = found_in([start(), *SERVED, f"# {words}\n"])
    above = found_in([f"# {words}\n", start(), *SERVED])
    assert below[0].rule in ("noted-silence", "noted-trouble"), below
    assert above[0].rule == "noted-trouble"


@pytest.mark.parametrize("words", DENIED)
def test_what_denies_it_is_none(words):
    assert found_in([f"# {words}\n", start(), *SERVED, f"# {words}\n"]) == ()


def test_with_no_start_the_note_has_a_step_all_the_same():
    finding = found_in(["# nothing after this, waited 20 minutes\n", *SERVED])[0]
    assert "/health_generate" in "\n".join(finding.advice)


CHUNK = [READY, prefill(2, new=21), decode(3, running=1), prefill(9, new=64)]
NOTE = "# (nothing after this, waited 20 minutes)\n"


def advice(*lines: str) -> str:
    return "\n".join(found_in(lines)[0].advice)


def test_a_chunk_that_holds_the_only_place_of_a_stage_comes_first():
    told = advice(start(pp_size=2, max_running_requests=1, chunked_prefill_size=64), *CHUNK, NOTE)
    assert told.startswith("with a --max-running-requests well above --pp-size 2 (1 now)")
    assert "SGLang 23006" in told


@pytest.mark.parametrize(
    "settings",
    [
        {"pp_size": 1, "max_running_requests": 1},
        {"pp_size": 2, "max_running_requests": 64},
        {"pp_size": 2, "max_running_requests": 1, "chunked_prefill_size": -1},
    ],
)
def test_where_places_are_left_or_nothing_is_cut_it_is_not_told(settings):
    assert "SGLang 23006" not in advice(start(**{"chunked_prefill_size": 64, **settings}), *CHUNK, NOTE)


LOST = "# old connections never get an answer, new requests are answered\n"


def test_with_several_tokenizers_an_end_that_got_lost_comes_first():
    lines = (LOST, start(tp_size=8, tokenizer_worker_num=2, max_queued_requests=96), *SERVED)
    assert advice(*lines).startswith("with --tokenizer-worker-num 1, or without --max-queued-requests")
    assert "py-spy dump --pid of every scheduler" not in advice(*lines)


def test_with_one_tokenizer_no_kernel_is_suspected_of_it_either():
    told = advice(LOST, start(tp_size=8, tokenizer_worker_num=1), *SERVED)
    assert told.startswith("with --log-requests (level 1)")
    assert "py-spy dump --pid of every scheduler" not in told
    stands = advice("# no client gets an answer\n", start(tp_size=8, tokenizer_worker_num=1), *SERVED)
    assert "py-spy dump --pid of every scheduler" in stands
