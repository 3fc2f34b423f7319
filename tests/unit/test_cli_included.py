"""What a dump holds of the requests themselves: asked for by `serve` and `repro`, told by every `dumps` verb."""

import json
import zipfile

import numpy as np
import pytest
from test_cli_serve import document

from dump_examples import put_manifest, seed_bug_draft
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.store import DumpStore
from gemma4_repro.catalog import find_scenario
from gemma4_repro.runner import Options
from gemma4_triage.cli import repro as verb

NOTHING = "Not in it: prompts, token ids, generated text, KV values, weights."


@pytest.fixture
def store(tmp_path):
    return DumpStore(tmp_path / "root")


def dump_with(store, *names, **changes):
    draft = seed_bug_draft(**changes)
    added = {name: TensorPayload.from_array(np.zeros((2, 4, 1, 8), np.float32)) for name in names}
    path = store.write(seed_bug_draft(tensors={**draft.tensors, **added}, **changes)).path
    assert path is not None
    return path


KV, TOKENS = ("kv_page_ids", "key_pages", "value_pages"), ("token_ids", "token_ids_indptr", "token_ids_rows")
CASES = [((), []), (KV, ["kv"]), (TOKENS, ["tokens"]), ((*KV, *TOKENS), ["kv", "tokens"])]
WORDS = {"kv": "KV values", "tokens": "token ids"}


@pytest.mark.parametrize(("names", "held"), CASES)
class TestTold:
    def test_by_the_manifest_show_and_list(self, cli, store, names, held):
        path = dump_with(store, *names)
        assert json.loads((path / "manifest.json").read_text())["included"] == held
        said = f"holds {' and '.join(WORDS[word] for word in held)}"
        for words in (("show", path), ("list", "--dir", store.root)):
            code, out, _ = cli("dumps", *words)
            assert code == 0
            assert (said in " ".join(out.split())) == bool(held)
            assert ("confidential" in out) == (bool(held) and words[0] == "show")
        shown = json.loads(cli("dumps", "show", path, "--json")[1])
        (listed,) = json.loads(cli("dumps", "list", "--dir", store.root, "--json")[1])["dumps"]
        assert shown["included"] == listed["included"] == held

    def test_by_export(self, cli, store, names, held, tmp_path):
        plain, path, out = dump_with(store), dump_with(store, *names, step=89), tmp_path / "out.zip"
        code, said, err = cli("dumps", "export", plain, path, "-o", out, "--json")
        assert code == 0
        assert {one["dump_id"]: one["included"] for one in json.loads(said)["dumps"]} == {
            plain.name: [],
            path.name: held,
        }
        warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
        readme = zipfile.ZipFile(out).read("README.md").decode()
        contents = readme.partition("## What is in it, and what is not")[2]
        assert (NOTHING in readme) == (not held)
        if held:
            words = " and ".join(WORDS[word] for word in held)
            assert warnings == [f"warning: {path.name} holds {words} of requests: confidential"]
            assert f"**Confidential.** Of the requests themselves it holds {words}," in contents
            assert f"    {path.name}: {words}\n" in contents
            assert plain.name not in contents
        else:
            assert warnings == []


class TestOfUnknownOrigin:
    def test_tensors_speak_where_the_manifest_is_silent(self, cli, store):
        path = dump_with(store, *KV)
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(manifest | {"included": []}))
        assert "holds KV values" in cli("dumps", "show", path)[1]

    def test_a_dump_of_an_earlier_release_says_nothing_of_it(self, cli, store):
        path = dump_with(store)
        manifest = json.loads((path / "manifest.json").read_text())
        del manifest["included"], manifest["notes"]
        put_manifest(path, manifest)
        code, out, _ = cli("dumps", "show", path)
        assert (code, "holds" in out) == (0, False)

    def test_a_word_of_a_newer_release_is_shown_as_it_is(self, cli, store):
        path = dump_with(store)
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(manifest | {"included": ["weights\x1b[2J"]}))
        out = cli("dumps", "show", path)[1]
        assert "holds weights" in out
        assert "\x1b" not in out

    def test_what_a_damaged_dump_holds_nobody_can_tell(self, cli, store, tmp_path):
        path, out = dump_with(store), tmp_path / "out.zip"
        (path / "manifest.json").write_text("{")
        code, _, err = cli("dumps", "export", path, "-o", out, "--allow-damaged")
        assert code == 0
        assert "it may hold KV values and token ids" in err
        readme = zipfile.ZipFile(out).read("README.md").decode()
        assert "nobody can tell for sure" in readme
        assert NOTHING not in readme


class TestNotes:
    def test_are_shown(self, cli, store):
        path = dump_with(store, notes=["no KV values: \x1b[2J it is gone"])
        out = cli("dumps", "show", path)[1]
        assert "\nnotes\n  no KV values: " in out
        assert "\x1b" not in out


class TestDoctor:
    @pytest.mark.parametrize("include", ["", "kv"])
    def test_it_says_what_the_shell_asks_for(self, cli, monkeypatch, include):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "log")
        monkeypatch.setenv("GEMMA4_TRIAGE_INCLUDE", include)
        checks = {check["name"]: check for check in json.loads(cli("doctor", "--json")[1])["checks"]}
        assert ("dumps hold" in checks) == bool(include)
        if include:
            assert checks["dumps hold"]["detail"] == "KV values of requests: confidential"


class TestServe:
    @pytest.mark.parametrize(
        ("options", "value"),
        [
            (["--include-kv"], "kv"),
            (["--include-tokens"], "tokens"),
            (["--include-tokens", "--include-kv"], "kv,tokens"),
        ],
    )
    def test_an_option_sets_the_variable(self, options, value):
        found = document("--debug", "1", *options, "--", "x")
        assert found["environment"]["GEMMA4_TRIAGE_INCLUDE"] == value
        assert found["settings"]["include"] == value.split(",")

    def test_it_is_said_loudly(self, cli):
        code, _, err = cli("serve", "--dry-run", "--debug", "1", "--include-kv", "--include-tokens", "--", "x")
        assert code == 0
        assert "DUMPS WILL HOLD KV values and token ids of requests: treat them as confidential" in err

    def test_without_probes_it_is_refused(self, cli):
        code, _, err = cli("serve", "--dry-run", "--include-kv", "--", "x")
        assert code == 2
        assert "GEMMA4_TRIAGE_INCLUDE='kv' is for dumps of the probe page-table, which is not on" in err


class TestRepro:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("repro", "--include-kv"), "need a scenario"),
            (("repro", "corpus", "--include-tokens"), "belong to a scenario"),
            (("repro", "e4b-trtllm", "--arm", "fault", "--include-kv"), "none of these arms has probes"),
            (("repro", "e4b-triton", "--include-kv"), "none of these arms has probes"),
        ],
    )
    def test_where_no_dump_would_hold_it(self, cli, words, said):
        code, _, err = cli(*words)
        assert code == 2
        assert said in err

    def test_arms_with_probes_are_asked_for_it(self, cli, monkeypatch):
        asked = []

        def run(scenario, options):
            asked.append((scenario, options))
            raise verb.NothingChecked("not run here")

        monkeypatch.setattr(verb, "_run", run)
        assert cli("repro", "e4b-trtllm", "--include-kv", "--include-tokens")[0] == 5
        ((scenario, options),) = asked
        assert (scenario, options) == ("e4b-trtllm", Options(include="kv,tokens"))
        assert [arm.id for arm in find_scenario(scenario).arms if arm.has_probes] == ["fault-probes", "fixed"]
