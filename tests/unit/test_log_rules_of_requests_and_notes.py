"""Values of requests that no server takes, and what notes beside a log say that no line of it does."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.likeness import alike
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import decode, prefill, stamp

HIT = "Scheduler hit an exception: Traceback (most recent call last):\n"
COMMAND = "$ python3 -m sglang.launch_server --model-path m {}\n"
NONE = "TypeError: 'NoneType' object cannot be interpreted as an integer"


def facts_of(*lines: str):
    return read_log("server.log", ["".join(lines).encode()])


def found(*lines: str):
    return findings(facts_of(*lines))


def first(*lines: str):
    return found(*lines)[0]


def raised(last: str, frame: str, statement: str = "call()") -> str:
    path, name = frame.split()
    return f'{stamp(9)} {HIT}  File "/s/python/sglang/srt/{path}", line 12, in {name}\n    {statement}\n{last}\n\n'


class TestValuesOfRequests:
    @pytest.mark.parametrize(
        ("given", "died", "frame", "statement", "note", "says", "confidence"),
        [
            (
                "",
                NONE,
                "sampling/penaltylib/min_new_tokens.py _prepare",
                "torch.tensor(",
                "",
                "stop_token_ids",
                "likely",
            ),
            (
                "--skip-tokenizer-init",
                "AttributeError: 'NoneType' object has no attribute 'decode'",
                "managers/schedule_batch.py tail_str",
                "return self.tokenizer.decode(ids)",
                "",
                "has no tokenizer",
                "likely",
            ),
            (
                "--grpc-mode",
                "TypeError: object of type 'NoneType' has no len()",
                "managers/schedule_batch.py check_finished",
                "if len(self.sampling_params.stop_strs) > 0:",
                "",
                "without stop_strs",
                "likely",
            ),
            (
                "",
                "TypeError: object of type 'NoneType' has no len()",
                "managers/schedule_batch.py check_finished",
                "if len(self.sampling_params.stop_strs) > 0:",
                "",
                "without stop_strs",
                "possible",
            ),
            (
                "",
                "TypeError: 'NoneType' object is not iterable",
                "session/session_controller.py create_req",
                "x = y",
                '# body {"input_embeds": [[0.1]]}\n',
                "brings embeddings",
                "likely",
            ),
            (
                "--lora-paths one",
                "AssertionError",
                "lora/lora_manager.py prepare_lora_batch",
                "assert x",
                '# the request said "lora_path": "other"\n',
                "never loaded, other,",
                "likely",
            ),
        ],
    )
    def test_a_value_that_nobody_refused_is_told(self, given, died, frame, statement, note, says, confidence):
        finding = first(COMMAND.format(given), prefill(1), raised(died, frame, statement), note)
        assert (finding.rule, finding.confidence.value) == ("request-values", confidence)
        assert says in finding.cause

    @pytest.mark.parametrize(
        ("given", "died", "frame", "statement"),
        [
            ("", "ValueError: it broke", "sampling/penaltylib/min_new_tokens.py _prepare", "torch.tensor("),
            (
                "",
                "AttributeError: 'NoneType' object has no attribute 'decode'",
                "managers/a.py tail_str",
                "self.x.decode()",
            ),
            ("--lora-paths one", "AssertionError: rank", "lora/lora_manager.py prepare_lora_batch", "assert x"),
        ],
    )
    def test_other_failures_there_are_not(self, given, died, frame, statement):
        assert first(COMMAND.format(given), prefill(1), raised(died, frame, statement)).rule != "request-values"

    ASSERTED = "torch.AcceleratorError: CUDA error: device-side assert triggered"

    def test_ids_that_end_an_answer_may_lie_outside_of_the_vocabulary(self):
        lines = (prefill(1), raised(self.ASSERTED, "sampling/penaltylib/min_new_tokens.py _prepare", ").scatter_add_("))
        assert first(*lines).confidence.value == "possible"
        finding = first(*lines, '# sampling_params {"stop_token_ids": [9999999], "min_new_tokens": 5}\n')
        assert (finding.rule, finding.confidence.value) == ("index-outside-tensor", "likely")
        assert "stop_token_ids" not in first(prefill(1), raised(self.ASSERTED, "models/gemma.py forward")).cause

    REFUSED = f'{stamp(3)} INFO:     127.0.0.1:5 - "POST /v1/{{}} HTTP/1.1" 500 Internal Server Error\n'
    OVERFLOW = "OverflowError: out of range integral type conversion attempted\n"

    def test_an_id_that_a_client_wants_the_text_of_is_no_fault_of_sampling(self):
        asked = first(self.OVERFLOW, self.REFUSED.format("detokenize"), '# body: {"tokens":[-1]}\n')
        assert (asked.confidence.value, "mend the client" in asked.advice[0]) == ("likely", True)
        answered = first(prefill(1), raised(self.OVERFLOW.strip(), "managers/detokenizer_manager.py decode"))
        assert "sampling or a draft" in answered.cause

    def test_what_a_user_writes_is_not_read(self):
        line = f"{stamp(1)} Receive: obj=GenerateReqInput(text='{{}}', sampling_params={{{{'n': {{}}}}}})\n"
        assert "many_samples" in facts_of(line.format("hi", 5000000)).remarks
        assert not {"many_samples", "noted_silence"} & facts_of(line.format("# it hangs", 1)).remarks.keys()

    GONE = "FileNotFoundError: [Errno 2] No such file or directory: '/psm_12ab'"
    UNPACKS = "managers/mm_utils.py __setstate__"

    @pytest.mark.parametrize(
        ("given", "note", "confidence", "look"),
        [
            ("", '# requests carry images and "n": 4\n', "likely", "requests with n of 1"),
            ("--enable-dp-attention", "", "likely", "requests with images at a server without --enable-dp-attention"),
            ("", "", "possible", "where the engine runs within another program"),
        ],
    )
    def test_features_that_are_gone_were_removed_by_somebody(self, given, note, confidence, look):
        finding = first(COMMAND.format(given), raised(self.GONE, self.UNPACKS), note)
        assert (finding.confidence.value, finding.advice[0].startswith(look)) == (confidence, True)
        assert "--shm-size" not in " ".join(finding.advice)


class TestNotes:
    @pytest.mark.parametrize(
        ("note", "look"),
        [
            ("# after that all further requests hang, GPU at 0%", "once with --disable-overlap-schedule"),
            ("# no request is answered any more, GPUs at 100%", "once with --disable-cuda-graph"),
            ("# the main process never answers and takes 100% of one core", "a process at 100% of one core"),
            ("# /health times out", "with "),
        ],
    )
    def test_a_server_that_a_note_says_stands_is_not_healthy(self, note, look):
        finding = first(decode(1, running=3), f"{note}\n")
        assert (finding.rule, finding.confidence.value) == ("noted-silence", "possible")
        assert finding.advice[0].startswith(look)

    @pytest.mark.parametrize(
        "note",
        [
            "# it never hangs with that",
            "# the client hangs up after each answer",
            "# no deadlock since then",
            "# two replicas behind nginx, 8 clients",
        ],
    )
    def test_other_notes_say_nothing_of_it(self, note):
        assert found(decode(1, running=3), f"{note}\n") == ()

    def test_an_end_that_the_log_shows_needs_no_note(self):
        lines = (decode(1), raised("ValueError: it broke", "managers/scheduler.py run"), "# then all requests hang\n")
        assert "noted-silence" not in {finding.rule for finding in found(*lines)}

    def test_a_request_for_a_million_answers_stops_the_process_that_answers(self):
        line = f"{stamp(1)} Receive: obj=GenerateReqInput(text='hi', sampling_params={{'n': 5000000}})\n"
        assert first(COMMAND.format(""), line, "# no request is answered since\n").advice[0].startswith("refuse such")

    @pytest.mark.parametrize(
        ("note", "suspect"),
        [
            ("# gsm8k: 0.955 with 4 clients, 0.700 with 64", "wrong-among-others"),
            ("# alone it is right, under load the answer is garbled", "wrong-among-others"),
            ("# temperature 1: 'ab ab!!'; temperature 0.2: fine", "wrong-as-it-samples"),
            ('# both posts carry "rid": "user-42", the second answer is wrong', "rid-used-again"),
        ],
    )
    def test_when_answers_are_wrong_says_what_to_try_first(self, note, suspect):
        assert suspects(facts_of(decode(1), f"{note}\n"))[0].id == suspect
        assert suspect not in {one.id for one in suspects(facts_of(decode(1), "# temperature 0.2, 64 clients\n"))}

    def test_a_traceback_that_is_cut_off_may_have_a_note_below(self):
        cut = (
            'Traceback (most recent call last):\n  File "/s/sglang/srt/managers/schedule_batch.py", line 9, in merge\n'
        )
        cut += "    self.penalizer_orchestrator.merge(other)\n# after some hours\n"
        finding = first(f"{stamp(1)} Exception in ModelTpServer:\n", cut)
        assert "no penalties" in finding.advice[0]


PAUSED = f'{stamp(1)} INFO:     10.0.0.1:4 - "POST /pause_generation HTTP/1.1" 200 OK\n'
CONTINUED = PAUSED.replace("pause", "continue")
UNHEALTHY = (
    f"{stamp(60)} Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start "
    "time: 00:00:50. last_heartbeat time: 00:00:10\n"
)


class TestPauses:
    def test_a_pause_that_nothing_ended_is_why_a_server_does_not_answer(self):
        finding = first(PAUSED, UNHEALTHY)
        assert "paused" in finding.cause
        assert finding.advice[0].startswith("POST /continue_generation")

    @pytest.mark.parametrize("lines", [(PAUSED, CONTINUED), (PAUSED, decode(2)), ()], ids=["on", "works", "none"])
    def test_one_that_ended_is_not(self, lines):
        assert not any("paused" in finding.cause for finding in found(*lines, UNHEALTHY))

    def test_of_several_workers_one_knows_of_a_pause(self):
        several = COMMAND.format("--tokenizer-worker-num 4")
        assert suspects(facts_of(several, PAUSED, decode(2)))[0].id == "pause-of-one-worker"
        assert "pause-of-one-worker" not in {
            one.id for one in suspects(facts_of(COMMAND.format(""), PAUSED, decode(2)))
        }


class TestLikeness:
    def test_pythons_own_words_are_no_likeness(self):
        for message in ("'NoneType' object is not iterable", "object of type 'NoneType' has no len()", NONE[11:]):
            died = raised(f"TypeError: {message}", "managers/scheduler.py run_scheduler_process")
            assert alike(facts_of(died)) == []

    HOST_GONE = "AttributeError: 'NoneType' object has no attribute 'merge_batch'"

    def test_a_name_that_the_code_gave_is_one(self):
        assert alike(facts_of(raised(self.HOST_GONE, "managers/scheduler.py pause_generation")))
