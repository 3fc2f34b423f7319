"""`quality` between servers that run already, and all that is refused before one is asked or started."""

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from threading import Event

import pytest

from gemma4_repro.quality.ask import paths_taken
from gemma4_repro.quality.run import Launch, Limits, Side, run_sides
from gemma4_repro.toys.locate import toy_path
from gemma4_triage.cli.app import main
from quality_endpoint import endpoint, gone_after, hanging_after, well_informed
from small_server import closing_port

COUNT = 30


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "zoology_test.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([f"[answer {'ABCD'[n % 4]}]", 1, 2, 3, 4, "ABCD"[n % 4]] for n in range(COUNT))
    return path


@pytest.fixture
def quality(tmp_path, capsys):
    """Return what runs `quality` with words: (exit code, the --json document, stderr)."""

    def run(*words):
        options = ["--output", tmp_path / "run", "--force", "--json"]
        code = main(["quality", *map(str, [*options, *words])])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return run


def misled(prompt):
    """Give every second answer wrong."""
    right = well_informed(prompt)
    return right if right.endswith(("A", "B")) or prompt.startswith("image:") else " A"


def colour_blind(prompt):
    """Take everything for grey."""
    return "grey" if prompt.startswith("image:") else well_informed(prompt)


class TestTwoServers:
    def test_equal_answers_are_no_worse_and_everything_is_kept(self, quality, questions, tmp_path):
        with endpoint(well_informed) as base, endpoint(well_informed) as other:
            words = ("--base-url", base, "--with-url", other, "--questions", questions, "--colours")
            code, document, err = quality(*words)
        assert (code, document["kind"], document["exit_code"], document["reasons"]) == (0, "quality", 0, [])
        parts = {part["part"]: part for part in document["parts"]}
        assert [(part["items"], part["compared"], part["verdict"]) for part in parts.values()] == [
            (COUNT, COUNT, "no worse"),
            (30, 30, "no worse"),
        ]
        assert parts["colours"]["with"]["right"] == parts["colours"]["equal_replies"] == 30
        assert json.loads((tmp_path / "run" / "quality.json").read_text()) == document
        for side in ("base", "with"):
            rows = [json.loads(line) for line in (tmp_path / "run" / side / "answers.jsonl").read_text().splitlines()]
            assert [row["id"] for row in rows[:2]] == ["zoology_test.csv:1", "zoology_test.csv:2"]
            assert [row["right"] for row in rows] == [True] * 60
        assert f"MMLU: {COUNT} of {COUNT} questions, all that there are" in err

    @pytest.mark.slow
    @pytest.mark.parametrize(("reply", "worse"), [(misled, "mmlu"), (colour_blind, "colours")])
    def test_worse_answers_in_either_part(self, quality, questions, reply, worse):
        words = ("--questions", questions, "--colours", "--api", "chat")
        with endpoint(well_informed) as base, endpoint(reply) as other:
            code, document, _ = quality("--base-url", base, "--with-url", other, *words)
            assert (code, document["reasons"]) == (1, [f"{worse}: with is worse than base, beyond the interval"])
            (part,) = [part for part in document["parts"] if part["verdict"] == "worse"]
            assert part["interval_high"] < 0
            assert len(part["lost_items"]) == part["only_base_right"] >= 14
            code, document, _ = quality("--base-url", other, "--with-url", base, *words)
            assert (code, {part["verdict"] for part in document["parts"]}) == (0, {"better", "no worse"})

    def test_a_draw_of_the_questions_and_examples_before_them(self, quality, questions, tmp_path):
        seen = []
        examples = tmp_path / "zoology_dev.csv"
        examples.write_text("Shown?,1,2,3,4,C\n" * 7)

        def remember(prompt):
            seen.append(prompt)
            return well_informed(prompt)

        words = ("--questions", questions, "--limit", 10, "--seed", 3, "--examples", examples, "--parallel", 1)
        with endpoint(remember) as base, endpoint(remember) as other:
            _, document, err = quality("--base-url", base, "--with-url", other, *words)
        assert seen[:10] == seen[10:]
        assert {prompt.count("Shown?") for prompt in seen} == {5}
        assert document["asked_of"]["questions"] | {"path": 0, "sha256": 0} == {
            "path": 0,
            "sha256": 0,
            "rows": COUNT,
            "asked": 10,
            "seed": 3,
            "api": "completions",
        }
        assert f"MMLU: 10 of {COUNT} questions, drawn with seed 3" in err

    @pytest.mark.slow
    def test_what_the_servers_say_of_patches_while_they_are_asked(self, quality, questions):
        counted = iter([2, 2, 7, 9])

        def info():
            return {"internal_states": [{"gemma4_triage_paths": {"rmsnorm-add": {"fused": next(counted)}}}]}

        with endpoint(well_informed, server_info=info) as base, endpoint(well_informed, server_info=info) as other:
            _, document, _ = quality("--base-url", base, "--with-url", other, "--questions", questions)
        assert [(side["paths_at_start"], side["paths"]) for side in document["sides"].values()] == [
            ({"rmsnorm-add": {"fused": 2}}, {"rmsnorm-add": {"fused": 0}}),
            ({"rmsnorm-add": {"fused": 7}}, {"rmsnorm-add": {"fused": 2}}),
        ]

    def test_what_answers_with_noise_says_nothing_of_patches(self):
        with closing_port(b"no HTTP\r\n\r\n", resets=False) as url:
            assert paths_taken(f"{url}/v1") is None


class TestServersThatFail:
    def test_a_server_that_goes_away_is_said_and_the_other_is_asked_all_the_same(self, quality, questions):
        with endpoint(gone_after(9, well_informed)) as base, endpoint(well_informed) as other:
            code, document, _ = quality(
                "--base-url", base, "--with-url", other, "--questions", questions, "--parallel", 1
            )
        assert code == 1
        assert document["sides"]["base"]["ended"].startswith("the server is gone: APIConnectionError: ")
        (part,) = document["parts"]
        assert part["base"] == {"answered": 9, "right": 9, "unreadable": 0, "failed": 1, "not_asked": 20}
        assert (part["with"]["answered"], part["compared"], part["verdict"]) == (COUNT, 9, "no worse")

    @pytest.mark.slow
    def test_a_server_that_hangs_is_said_and_its_answers_are_kept(self, quality, questions, tmp_path):
        words = ("--questions", questions, "--timeout", 0.5, "--parallel", 2)
        with endpoint(well_informed) as base, endpoint(hanging_after(9, well_informed)) as other:
            code, document, err = quality("--base-url", base, "--with-url", other, *words)
        assert code == 1
        ended = document["sides"]["with"]["ended"]
        assert ended.startswith("8 requests in a row failed, the last with: APITimeoutError")
        (part,) = document["parts"]
        assert (part["compared"], part["with"]["answered"], part["verdict"]) == (9, 9, "no worse")
        assert part["with"]["failed"] + part["with"]["not_asked"] == COUNT - 9
        assert "with: 8 requests in a row failed" in err
        assert len((tmp_path / "run" / "with" / "answers.jsonl").read_text().splitlines()) == 9 + part["with"]["failed"]

    def test_failed_requests_are_counted_and_never_scored(self, quality, questions):
        broken = [(500, '{"error": {"message": "no"}}'), (200, "<html>"), (200, '"text"'), (200, '{"choices": null}')]
        each = itertools.cycle(broken)

        def now_and_then(prompt):
            return next(each) if "answer C" in prompt else well_informed(prompt)

        with endpoint(well_informed) as base, endpoint(now_and_then) as other:
            code, document, _ = quality("--base-url", base, "--with-url", other, "--questions", questions)
            (part,) = document["parts"]
            assert (code, part["with"]["failed"], part["compared"], part["only_base_right"]) == (1, 7, 23, 0)
            assert document["reasons"] == ["with failed 7 requests that base answered"]
            code, document, _ = quality("--base-url", other, "--with-url", base, "--questions", questions)
            assert (code, document["parts"][0]["base"]["failed"]) == (0, 7)

    @pytest.mark.slow
    def test_nothing_answered_at_all(self, quality, questions):
        with endpoint(lambda _: (500, "{}")) as base, endpoint(lambda _: (500, "{}")) as other:
            code, document, _ = quality("--base-url", base, "--with-url", other, "--questions", questions)
        assert (code, document["parts"][0]["compared"]) == (5, 0)

    @pytest.mark.slow
    def test_a_base_that_only_guesses_is_not_judged(self, quality, questions):
        with endpoint(lambda _: "I am not sure") as base, endpoint(lambda _: "I am not sure") as other:
            code, document, _ = quality("--base-url", base, "--with-url", other, "--questions", questions)
        assert (code, document["parts"][0]["verdict"]) == (5, "not judged")
        assert document["parts"][0]["base"]["unreadable"] == COUNT

    @pytest.mark.slow
    def test_an_interrupt_ends_it_at_once_and_keeps_the_answers(self, questions, tmp_path):
        hung, left = Event(), iter(range(5))

        def hang_at_the_sixth(prompt):
            if next(left, None) is None:
                hung.set()
                time.sleep(60)
            return well_informed(prompt)

        with endpoint(hang_at_the_sixth) as base, endpoint(well_informed) as other:
            words = ["--base-url", base, "--with-url", other, "--questions", questions, "--output", tmp_path / "run"]
            process = subprocess.Popen(
                [sys.executable, "-m", "gemma4_triage", "quality", "--json", "--parallel", "1", *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert hung.wait(60)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=40)
        assert process.returncode == 130, err
        assert json.loads(out)["parts"][0]["base"]["answered"] == 5
        assert "Traceback" not in err
        assert len((tmp_path / "run" / "base" / "answers.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("died", "said"),
    [
        ("raise RuntimeError('no accelerator is here')", "RuntimeError: no accelerator is here"),
        (
            "print('Process tp0:\\nTraceback (most recent call last):\\n  File x\\nOSError: torn\\n\\nA child ended.')",
            "OSError: torn",
        ),
        ("", "nothing"),
    ],
)
def test_a_server_that_dies_at_its_start_is_one_line(tmp_path, died, said):
    """Its traceback stays in its log."""
    (tmp_path / "base").mkdir()
    launch = Launch([sys.executable, "-c", died], dict(os.environ), 1)
    measured = run_sides([Side("base", launch=launch)], [], tmp_path, Limits(1, 1, 60), {}, no_op, no_op)
    log = tmp_path / "base" / "server.log"
    code = 1 if died.startswith("raise") else 0
    assert measured.failure == f"base: ended with {code} before it was ready; its log {log} says: {said}"


def no_op(*_):
    """Keep and tell nothing."""


def refused(quality, *words):
    """Return (exit code, message) of a run that wrote nothing, one or two lines long."""
    code, document, err = quality(*words)
    assert document["kind"] == "error"
    lines = [line for line in err.splitlines() if not line.startswith(("MMLU:", "run folder:"))]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], err
    return code, document["message"]


URLS = ("--base-url", "http://127.0.0.1:9", "--with-url", "http://127.0.0.1:10")
SERVER = ("--host-engine", "--", "--model-path", toy_path("toy-e4b"))


class TestRefusals:
    @pytest.mark.sampled(5)
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((), "there is nothing to ask"),
            (("--colours",), "no arguments for SGLang"),
            (("--colours", "--api", "grpc", *URLS), "--api 'grpc' is not known"),
            (("--colours", "--timeout", "nan", *URLS), "--timeout 'nan' cannot be read"),
            (("--colours", "--examples", "x", *URLS), "--examples come before questions"),
            (("--colours", "--base", "none", *URLS), "--base is for servers that quality starts"),
            (("--colours", *URLS, "--", "--model-path", "x"), "-- SGLANG_ARGUMENTS is for servers"),
            (("--colours", *URLS[:2]), "--with-url is missing"),
            (("--colours", "--questions", "missing.csv", *URLS[2:]), "--base-url is missing"),
            (("--colours", "--base-url", "", *URLS[2:]), "'' is no address of a server"),
            (("--colours", *URLS[:2], "--with-url", URLS[1] + "/v1/"), "are the same server"),
            (("--colours", "--base-url", "localhost:30000", *URLS[2:]), "'localhost:30000' is no address"),
            (("--colours", "--model", "m", *SERVER), "--model chooses among what running servers serve"),
            (("--questions", "missing.csv", *URLS), "missing.csv cannot be read: No such file"),
            (("--colours", "--with", "none", *SERVER), "--base 'none' and --with 'none' are the same patches: none"),
            (("--colours", "--with", "yocoo", *SERVER), "yocoo"),
            (("--colours", *SERVER, "--port", "1"), "--port is among SGLang's arguments"),
            (("--colours", "--host-engine", "--", "--tp", "2"), "SGLang's arguments name no --model-path"),
            (("--colours", "--host-engine", "--", "--model-path", "./no"), "--model-path ./no is not there"),
            (("--colours", "--host-engine", "--", "--model-path=/no"), "--model-path /no is not there"),
        ],
    )
    def test_before_anything_runs(self, quality, tmp_path, monkeypatch, words, said):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        code, message = refused(quality, *words)
        assert (code, said in message) == (2, True), message
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("missing", "said"),
        [
            ("config.json", "is no checkpoint"),
            ("tokenizer.json", "holds no tokenizer"),
            ("vision_config", "has no vision_config"),
        ],
    )
    def test_a_checkpoint_that_is_not_whole(self, quality, tmp_path, missing, said):
        config = {"model_type": "gemma4", "vision_config": {"hidden_size": 16}}
        config.pop(missing, None)
        for name, text in {"config.json": json.dumps(config), "tokenizer.json": "{}"}.items():
            if name != missing:
                (tmp_path / name).write_text(text)
        code, message = refused(quality, "--colours", "--host-engine", "--", "--model-path", tmp_path)
        assert (code, said in message) == (2, True), message

    @pytest.mark.parametrize("option", ["--model-path", "--speculative-draft-model-path"])
    def test_weights_that_are_not_whole(self, quality, tmp_path, option):
        folder = shutil.copytree(toy_path("toy-e4b"), tmp_path / "part")
        words = ("--questions", tmp_path / "zoology_test.csv", *SERVER, option, folder)
        (tmp_path / "zoology_test.csv").write_text("Which?,1,2,3,4,A\n")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        code, message = refused(quality, *words)
        assert (code, "lacks model-00002-of-00002.safetensors" in message) == (2, True), message
        (folder / "model-00001-of-00002.safetensors").unlink()
        code, message = refused(quality, *words)
        assert (code, "has no weights" in message) == (2, True), message
        assert not (tmp_path / "run").exists()

    def test_no_gpu_for_servers_of_its_own(self, quality, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        (tmp_path / "zoology_test.csv").write_text("Which?,1,2,3,4,A\n")
        code, message = refused(quality, "--questions", tmp_path / "zoology_test.csv", *SERVER[1:])
        assert (code, "the CUDA driver shows no GPU to this process" in message) == (3, True), message
        assert not (tmp_path / "run").exists()

    def test_a_server_that_is_not_there(self, quality, tmp_path):
        code, message = refused(quality, "--colours", *URLS)
        assert not (tmp_path / "run").exists()
        assert (code, message) == (
            3,
            "http://127.0.0.1:9/v1 does not list its models: APIConnectionError: [Errno 111] Connection refused",
        )

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(
        ("models", "wanted", "code", "said"),
        [
            ((), (), 3, "serves no model"),
            (("a", "b"), (), 2, "serves 2 models"),
            (("a",), ("--model", "b"), 2, "does not serve 'b'"),
            (("a",), (), 2, "--base-url serves 'a' and --with-url 'toy'"),
        ],
    )
    def test_a_model_that_is_not_served_by_both(self, quality, tmp_path, models, wanted, code, said):
        with endpoint(well_informed) as base, endpoint(well_informed, models) as other:
            found, message = refused(quality, "--colours", "--base-url", other, "--with-url", base, *wanted)
        assert (found, said in message) == (code, True), message
        assert not (tmp_path / "run").exists()

    def test_an_output_that_is_not_empty(self, capsys, tmp_path):
        (tmp_path / "kept.txt").write_text("x")
        with endpoint(well_informed) as base, endpoint(well_informed) as other:
            code = main(["quality", "--colours", "--base-url", base, "--with-url", other, "--output", str(tmp_path)])
        assert (code, capsys.readouterr().out) == (2, "")
        assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]

    def test_without_the_client(self, quality, monkeypatch):
        monkeypatch.setitem(sys.modules, "openai", None)
        code, message = refused(quality, "--colours", *URLS)
        assert (code, message) == (3, "quality needs openai, which SGLang brings")
