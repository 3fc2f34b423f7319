"""SGLANG_GEMMA4_FORCE_EAGLE: SGLang's own resolution of the algorithm, with the toys' configurations."""

import json
import shutil

import pytest
from sglang.srt.arg_groups import speculative_hook

from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

ASSISTANT, TARGET = toy_path("toy-e4b-assistant"), toy_path("toy-e4b")


def resolve(algorithm, draft):
    return speculative_hook._resolve_speculative_algorithm_alias(algorithm, draft and str(draft))


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
def test_an_assistant_is_refused_with_the_reason(attach, algorithm):
    assert resolve(algorithm, ASSISTANT) == "FROZEN_KV_MTP"
    attach("off", "force-eagle")
    with pytest.raises(ValueError, match=r"toy-e4b-assistant.*EAGLE cannot serve it.*no keys of its own") as caught:
        resolve(algorithm, ASSISTANT)
    assert "SGLANG_GEMMA4_FORCE_EAGLE" in str(caught.value)
    assert "hidden size" not in str(caught.value)


def test_hidden_sizes_are_named_where_they_differ(attach, tmp_path):
    shutil.copytree(ASSISTANT, tmp_path / "draft")
    path = tmp_path / "draft" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"backbone_hidden_size": 1536}))
    attach("off", "force-eagle")
    with pytest.raises(ValueError, match=r"Its hidden size is 64, the target's 1536\."):
        resolve("NEXTN", tmp_path / "draft")


@pytest.mark.parametrize(
    ("algorithm", "draft", "resolved"),
    [("EAGLE", TARGET, "EAGLE"), ("NEXTN", None, "EAGLE"), ("NGRAM", None, "NGRAM"), (None, None, None)],
)
def test_everything_else_is_sglangs(attach, algorithm, draft, resolved):
    assert resolve(algorithm, draft) == resolved
    attach("off", "force-eagle")
    assert resolve(algorithm, draft) == resolved


def test_a_user_who_asks_for_frozen_kv_mtp_by_name_gets_it(attach):
    attach("off", "force-eagle")
    assert resolve("FROZEN_KV_MTP", ASSISTANT) == "FROZEN_KV_MTP"


def test_eagle3_is_refused_by_sglang_as_before(attach):
    attach("off", "force-eagle")
    with pytest.raises(ValueError, match="EAGLE3"):
        resolve("EAGLE3", ASSISTANT)


def test_the_knob_alone_attaches_it(monkeypatch):
    monkeypatch.setenv("SGLANG_GEMMA4_FORCE_EAGLE", "1")
    assert [patch.id for patch in select(read_settings())] == ["force-eagle"]
    assert not read_settings().wants_nothing
    monkeypatch.setenv("SGLANG_GEMMA4_FORCE_EAGLE", "0")
    assert select(read_settings()) == ()
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", "force-eagle")
    assert select(read_settings()) == ()
    monkeypatch.delenv("GEMMA4_TRIAGE_PATCHES")
    assert read_settings().wants_nothing
