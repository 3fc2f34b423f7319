"""Known issues: the form of every record, the matrix of signatures and logs, releases, and the verbs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gemma4_runtime.catalog import CATALOG
from gemma4_triage.finding import Confidence
from gemma4_triage.known_issues.catalog import RecordMistake, known_issues, read_record
from gemma4_triage.known_issues.match import Occurrence, holds
from gemma4_triage.known_issues.record import KnownIssue, Signature
from gemma4_triage.known_issues.release import MARKS, release_in, release_of_server_info
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.rules.known_issue import matches_in
from gemma4_triage.report.known_matrix import matrix

LOGS = Path(__file__).parents[1] / "data" / "logs"
# What these logs hold is a known issue; every other committed log is none.
OF_AN_ISSUE = {
    "illegal-access.log": {"gemma4-mtp-trtllm-swa-stale"},
    "probe-logged.log": {"eager-draft-write-rows"},
    "stale-write-rows.log": {"eager-draft-write-rows"},
}
EAGER = next(issue for issue in known_issues() if issue.id == "eager-draft-write-rows")
LORA = next(issue for issue in known_issues() if issue.id == "lora-batch-over-the-cap")


def read(text: str):
    return read_log("made.log", [text.encode()])


def known_in(facts) -> list:
    return [finding for finding in findings(facts) if finding.rule == "known-issue"]


class TestRecords:
    def test_there_are_many(self):
        assert len(known_issues()) >= 60

    def test_ids_and_patches_are_real(self):
        patches = {patch.id for patch in CATALOG}
        assert {issue.patch for issue in known_issues()} - {None} <= patches

    def test_also_matches_names_records(self):
        ids = {issue.id for issue in known_issues()}
        assert all(set(issue.also_matches) <= ids - {issue.id} for issue in known_issues())

    @pytest.mark.parametrize("row", matrix(known_issues()), ids=lambda row: row.issue.id)
    def test_it_fits_its_own_log_and_no_other(self, row):
        assert (row.matches_own, row.fits_wrongly, row.fits_others) == (True, (), ())

    @pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.name)
    def test_silence_on_every_other_committed_log(self, path):
        facts = read_log(path.name, [path.read_bytes()])
        found = {match.issue.id for match in matches_in(facts, known_issues())}
        assert found == OF_AN_ISSUE.get(path.name, set())

    @pytest.mark.parametrize(
        "text",
        [
            "threads = [1",
            "threads = [1]\nunknown = 1",
            "threads = []",
            "\xff",
            "id = 'twice'",
        ],
    )
    def test_a_bad_record_is_named(self, tmp_path, text):
        file = tmp_path / "bad.toml"
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(RecordMistake, match=r"bad\.toml"):
            read_record(file)

    @pytest.mark.parametrize(
        "signature",
        [
            {"exception": "RuntimeError"},
            {"words": ["error"]},
            {"frames": ["not a file"]},
            {},
        ],
    )
    def test_a_signature_that_fits_too_much_is_refused(self, signature):
        with pytest.raises(ValidationError):
            Signature.model_validate(signature)

    def test_a_record_is_never_certain(self):
        with pytest.raises(ValidationError):
            KnownIssue.model_validate(EAGER.model_dump() | {"confidence": Confidence.CERTAIN})

    def test_a_release_that_is_none_is_refused(self):
        with pytest.raises(ValidationError, match="no release"):
            KnownIssue.model_validate(EAGER.model_dump() | {"fixed": "soon"})


class TestMatching:
    whole = Occurrence("E", "all of the words", ("a.py:1 one", "b.py:2 two", "c.py:3 three"), {"page_size": "64"})

    @pytest.mark.parametrize(
        "signature",
        [
            Signature(exception="E", words=("all", "words")),
            Signature(frames=("a.py", "c.py:three")),
            Signature(words=("of the words",), arguments={"page_size": ">1"}),
            Signature(words=("of the words",), arguments={"page_size": "set"}),
            Signature(words=("of the words",), arguments={"page_size": "64"}),
            Signature(words=("of the words",), arguments={"page_size": "<64.5"}),
        ],
    )
    def test_every_part_holds(self, signature):
        assert holds(signature, self.whole)

    @pytest.mark.parametrize(
        "signature",
        [
            Signature(exception="F", words=("all",)),
            Signature(exception="E", words=("all", "sentences")),
            Signature(exception="E", words=("ALL",)),
            Signature(frames=("c.py", "a.py")),
            Signature(frames=("b.py:three",)),
            Signature(words=("of the words",), arguments={"page_size": ">64"}),
            Signature(words=("of the words",), arguments={"page_size": "<0.5"}),
            Signature(words=("of the words",), arguments={"tp_size": "set"}),
        ],
    )
    def test_one_part_does_not(self, signature):
        assert not holds(signature, self.whole)

    @pytest.mark.parametrize(
        ("pools", "fits"),
        [
            (
                "[full] total=10, available=8, evictable=2, protected=0\n[swa] total=10, available=10, evictable=1",
                "over",
            ),
            ("[full] total=10, available=8, evictable=0, protected=1\n[swa] total=10, available=10", "under"),
            ("[full] total=10, available=8, evictable=2, protected=0", ""),
        ],
    )
    def test_what_a_pool_is_counted_as(self, pools, fits):
        leak = Occurrence("E", f"leak detected! {pools}", (), {})
        over, under = (holds(Signature(words=("leak detected",), counted=told), leak) for told in ("over", "under"))
        assert (over, under) == (fits == "over", fits == "under")

    @settings(max_examples=25)
    @given(st.text(max_size=60), st.lists(st.text(max_size=20), max_size=4), st.dictionaries(st.text(), st.text()))
    def test_anything_can_be_asked_about(self, message, frames, arguments):
        one = Occurrence("E", message, tuple(frames), arguments)
        assert all(isinstance(holds(issue.signature, one), bool) for issue in known_issues())


class TestRelease:
    @pytest.mark.parametrize(
        ("line", "release"),
        [
            (b"image: lmsysorg/sglang:v0.5.17-cu129", "0.5.17"),
            (b"Requirement already satisfied: sglang==0.5.13.post1", "0.5.13.post1"),
            (b"sglang: 0.5.1.post2", "0.5.1.post2"),
            (b"sglang                             0.5.0rc2      /workspace", "0.5.0rc2"),
            (b"SGLang version 0.5.20", "0.5.20"),
            (b"SGLang v0.5.20", "0.5.20"),
            (b"/site-packages/sglang-0.5.9.dist-info", "0.5.9"),
            (b'File "/x/sglang/srt/managers/scheduler.py", line 0.5', ""),
            (b"sglang:latest", ""),
            (b"sglang_router==0.3.2", ""),
        ],
    )
    def test_in_a_line(self, line, release):
        assert release_in(line) == release
        assert not release or any(mark in line for mark in MARKS)
        assert read_log("x", [b"first\n" + line + b"\nlast\n"]).release == release

    @given(st.binary(max_size=80))
    def test_in_any_bytes(self, line):
        assert isinstance(release_in(b"sglang" + line), str)

    def test_of_server_info(self):
        assert release_of_server_info('{"version": "0.5.13.post1", "tp_size": 1}') == "0.5.13.post1"
        assert [release_of_server_info(text) for text in ("", "[]", "{}", '{"version": 3}', "no json")] == [""] * 5

    def test_before_and_after_the_fix(self):
        assert [EAGER.concerns(one) for one in ("0.5.13.post1", "0.5.15", "0.5.16rc1", "0.5.12", "main", None)] == [
            *(True, False, False, None, None, None)
        ]

    def test_a_release_that_is_without_it_though_not_known_to_be_the_first(self):
        issue = EAGER.model_copy(update={"fixed": None, "gone_by": "0.5.16"})
        assert [issue.concerns(one) for one in ("0.5.14", "0.5.15", "0.5.16")] == [True, None, False]
        assert issue.state("0.5.15") == "SGLang 29616, fixed by 0.5.16 at the latest; you run 0.5.15"

    def test_before_it_came(self):
        issue = EAGER.model_copy(update={"since": "0.5.12"})
        assert [issue.concerns(one) for one in ("0.5.11", "0.5.12.post1", "0.5.15")] == [False, True, False]

    def test_the_state_is_one_line(self):
        assert EAGER.state("0.5.13.post1") == "SGLang 29616, fixed in 0.5.15; you run 0.5.13.post1"
        assert LORA.state(None) == (
            "SGLang 23141, no release with a fix is known here; the release that you run is not known"
        )


class TestFindings:
    def test_a_match_takes_the_place_of_not_known(self):
        found = findings(read(LORA.log))
        assert [finding.rule for finding in found] == ["known-issue"]
        assert found[0].upstream[0] == "SGLang 23141"
        assert found[0].confidence is Confidence.LIKELY
        assert found[0].next_commands == ("gemma4-triage known show lora-batch-over-the-cap",)

    def test_the_release_of_the_log_is_named(self):
        (finding,) = known_in(read("sglang==0.5.17\n" + LORA.log))
        assert "you run 0.5.17" in finding.cause

    def test_a_release_with_the_fix_has_another_cause(self, monkeypatch):
        facts = read(LORA.log)
        fixed = LORA.model_copy(update={"fixed": "0.5.17"})
        monkeypatch.setattr("gemma4_triage.logs.rules.known_issue.known_issues", lambda: (fixed,))
        assert [finding.rule for finding in findings(replace(facts, release="0.5.17"))] == ["other-crash"]
        assert "fixed in 0.5.17; you run 0.5.16" in known_in(replace(facts, release="0.5.16"))[0].cause

    def test_an_issue_that_a_rule_knows_is_told_once(self):
        assert [finding.rule for finding in findings(read(EAGER.log))] == ["stale-write-rows"]

    def test_each_issue_once(self):
        assert len(known_in(read(LORA.log * 5))) == 1


class TestVerbs:
    def test_list(self, cli):
        code, out, _ = cli("known", "list", "--topic", "lora", "--json")
        assert code == 0
        assert {issue["topic"] for issue in json.loads(out)["issues"]} == {"lora"}

    @pytest.mark.parametrize(
        "name",
        [
            *("eager-draft-write-rows", "29616", "SGLang 29616", "sglang#29616", "sgl-project/sglang#29616", "#29616"),
            "https://github.com/sgl-project/sglang/issues/29616#issuecomment-1",
            "https://github.com/sgl-project/sglang/pull/29616",
        ],
    )
    def test_show(self, cli, name):
        code, out, _ = cli("known", "show", name)
        assert code == 0
        assert "https://github.com/sgl-project/sglang/issues/29616" in out

    def test_a_thread_that_a_record_has_beside_others_shows_it(self, cli):
        firsts = {issue.threads[0] for issue in known_issues()}
        issue, thread = next(
            (issue, thread) for issue in known_issues() for thread in issue.threads[1:] if thread not in firsts
        )
        assert json.loads(cli("known", "show", f"SGLang {thread}", "--json")[1])["issue"]["id"] == issue.id

    @pytest.mark.parametrize(
        "words",
        [
            ("show", "vllm#29616"),
            ("show", "SGLang 1"),
            ("show", "eager-draft"),
            ("list", "--topic", "moon"),
            ("check", "--release", "0.5.1"),
            ("check", "LOG", "--release", "new"),
            ("check", "LOG", "--server-info", "LOG"),
            ("check", "LOG", "--server-info", "none"),
        ],
    )
    def test_mistakes_exit_2_with_a_hint(self, cli, tmp_path, words):
        log = tmp_path / "a.log"
        log.write_text(EAGER.log)
        code, _, err = cli("known", *(str(log) if word == "LOG" else word for word in words))
        assert code == 2
        assert "hint: " in err

    def test_check_the_records(self, cli):
        code, out, _ = cli("known", "check", "--json")
        document = json.loads(out)
        assert (code, document["good"], len(document["records"])) == (0, True, len(known_issues()))

    @pytest.mark.parametrize(("release", "code"), [("0.5.13.post1", 1), ("0.5.17", 0)])
    def test_check_a_log(self, cli, tmp_path, release, code):
        log, info = tmp_path / "a.log", tmp_path / "info.json"
        log.write_text(EAGER.log)
        info.write_text(json.dumps({"version": release}))
        by_option = cli("known", "check", str(log), "--release", release, "--json")
        assert by_option == cli("known", "check", str(log), "--server-info", str(info), "--json")
        (one,) = json.loads(by_option[1])["logs"]
        assert by_option[0] == code
        assert (one["release"], one["matches"][0]["concerned"]) == (release, bool(code))

    def test_check_a_healthy_log(self, cli):
        code, out, _ = cli("known", "check", str(LOGS / "healthy.log"))
        assert (code, "none of the known issues" in out) == (0, True)

    def test_check_what_is_no_log(self, cli, tmp_path):
        (tmp_path / "a.txt").write_text("Dear diary\n")
        code, _, _ = cli("known", "check", str(tmp_path / "a.txt"))
        assert code == 5
