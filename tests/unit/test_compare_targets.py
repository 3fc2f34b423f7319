"""The comparison of targets with a release that is only unpacked, on small trees that are made up."""

import ast
import json
import textwrap
from pathlib import Path

import pytest

import compare_targets
from compare_targets import compare, reference_for, unresolved
from gemma4_runtime.releases import BASE
from gemma4_runtime.targets import TARGETS, base, deltas
from sglang_source import SourceTree

BODY = "".join(f"    total += step({number})\n" for number in range(12))
OLD = {
    "srt/a.py": f"class Worker:\n  def run(self, x):\n    '''Says.'''\n{BODY}  def stop(self):\n    return self.gone\n",
}


def tree(folder, files):
    for name, text in files.items():
        file = folder / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return SourceTree(folder)


@pytest.fixture
def against(tmp_path):
    old = tree(tmp_path / "old", OLD)

    def look(files, path="sglang.srt.a.Worker.run"):
        return compare("key", path, old, tree(tmp_path / "new", files), ("patch",))

    return look


def test_comments_and_docstrings_are_no_change(against):
    row = against({"srt/a.py": f"class Worker:\n  def run(self, x):\n    # other words\n{BODY}"})
    assert (row.state, row.alike, row.place) == ("same", 1.0, "sglang/srt/a.py:2")


def test_one_line_more_is_a_small_change(against):
    assert against({"srt/a.py": f"class Worker:\n  def run(self, x):\n{BODY}    return total\n"}).state == "small"


def test_another_argument_is_named_and_no_small_change(against):
    row = against({"srt/a.py": f"class Worker:\n  def run(self, y, *, z=1, **more):\n{BODY}"})
    assert (row.state, row.added, row.removed) == ("changed", ("y", "z", "**more"), ("x",))


def test_another_body_is_rewritten(against):
    assert against({"srt/a.py": "class Worker:\n  def run(self, x):\n    return other(x)\n"}).state == "rewritten"


def test_a_function_of_the_same_name_elsewhere_has_moved_there(against):
    row = against({"srt/b.py": f"class Other:\n  def run(self, x):\n{BODY}", "srt/c.py": "def run(x):\n    return 1\n"})
    assert (row.state, row.path) == ("moved", "sglang.srt.b.Other.run")


def test_what_is_nowhere_is_gone(against):
    row = against({"srt/b.py": "def run(x):\n    return 1\n"})
    assert (row.state, row.path, row.patches) == ("gone", "", ("patch",))


def test_a_class_that_another_module_exports_is_there(against):
    row = against(
        {
            "srt/a.py": "if fast():\n    from .deep import *\n",
            "srt/deep/__init__.py": "from sglang.srt.deep.worker import Real as Worker\n",
            "srt/deep/worker.py": f"class Real:\n  def run(self, x):\n{BODY}",
        }
    )
    assert (row.state, row.path) == ("same", "sglang.srt.a.Worker.run")
    assert row.place == "sglang/srt/deep/worker.py:2"


def test_a_method_that_became_inherited_has_moved_to_the_base(against):
    row = against(
        {
            "srt/a.py": "from sglang.srt.base import Base\nclass Worker(Base[int]): ...\n",
            "srt/base.py": f"class Base:\n  def run(self, x):\n{BODY}",
        }
    )
    assert (row.state, row.path) == ("moved", "sglang.srt.base.Base.run")


def test_a_name_from_another_package_is_bound_and_one_that_sglang_lacks_is_not(tmp_path):
    text = (
        "try:\n    from sgl_kernel import build\nexcept ImportError:\n    build = None\nfrom sglang.srt.b import lost\n"
    )
    new = tree(tmp_path, {"srt/a.py": text, "srt/b.py": ""})
    table = {"build": "sglang.srt.a.build", "lost": "sglang.srt.a.lost", "no-module": "sglang.srt.c.D.e"}
    assert unresolved(table, new) == ["lost", "no-module"]


def test_a_loop_of_imports_ends(tmp_path):
    new = tree(tmp_path, {"srt/a.py": "from sglang.srt.b import f\n", "srt/b.py": "from sglang.srt.a import f\n"})
    assert new.resolve("sglang.srt.a.f") is None


def test_a_base_that_lacks_the_target_is_an_error(tmp_path):
    empty = tree(tmp_path, {"srt/a.py": ""})
    with pytest.raises(LookupError, match=r"key: sglang\.srt\.a\.f"):
        compare("key", "sglang.srt.a.f", empty, empty)


def test_a_folder_without_sglang_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no package sglang"):
        SourceTree(tmp_path)


def test_a_release_that_was_unpacked_is_not_fetched_again(tmp_path):
    (tmp_path / "9.9.9" / "sglang").mkdir(parents=True)
    assert compare_targets.fetch("9.9.9", tmp_path) == tmp_path / "9.9.9"


def test_a_release_is_compared_with_the_newest_known_one_before_it():
    found = {one: reference_for(one) for one in ("0.5.12", BASE, "0.5.16", "0.5.17", "0.5.22", "0.5.23", "0.5.24rc1")}
    assert found == {
        "0.5.12": BASE,
        BASE: BASE,
        "0.5.16": BASE,
        "0.5.17": BASE,
        "0.5.22": "0.5.17",
        "0.5.23": "0.5.17",
        "0.5.24rc1": "0.5.23",
    }


@pytest.fixture
def new_release(tmp_path, monkeypatch):
    """Return the arguments for a release without tables, in two made-up trees: it lacks one target and one name."""
    table = {"kept": "sglang.srt.a.kept", "lost": "sglang.srt.a.lost", "moved-since-base": "sglang.srt.b.other"}
    monkeypatch.setitem(TARGETS, "0.5.23", table)
    monkeypatch.setitem(compare_targets.NAMES, "0.5.23", {"read": "sglang.srt.a.read", "never": None})
    both = {"srt/b.py": "def other():\n    return 1\n"}
    had = "def kept(x):\n    return x\ndef lost():\n    return 2\nread = 1\n"
    tree(tmp_path / "cache" / "0.5.23", {**both, "srt/a.py": had})
    tree(tmp_path / "cache" / "0.5.24", {**both, "srt/a.py": "def kept(x, y):\n    return x\n"})
    monkeypatch.setattr(compare_targets, "source_of", lambda release, cache: cache / release)
    return ["0.5.24", "--cache", str(tmp_path / "cache")]


def test_a_release_without_tables_is_held_against_those_of_the_reference(new_release, capsys):
    assert compare_targets.main([*new_release, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["reference"], said["has_tables"], said["unresolved"]) == ("0.5.23", False, [])
    assert {row["key"]: row["state"] for row in said["targets"]} == {
        "kept": "changed",
        "lost": "gone",
        "moved-since-base": "same",
    }
    assert said["targets"][0]["added"] == ["y"]
    assert said["names_gone"] == ["read"]


def test_it_says_in_words_what_it_was_compared_with(new_release, capsys):
    assert compare_targets.main(new_release) == 0
    said = capsys.readouterr().out
    assert "SGLang 0.5.24 against the table and source of 0.5.23, 3 targets: same 1," in said
    assert "has no tables here yet. Of what the runtime reads as on 0.5.23, it has no longer: read" in said


def test_a_key_of_its_own_tables_that_leads_nowhere_ends_with_1(new_release, monkeypatch, capsys):
    monkeypatch.setitem(TARGETS, "0.5.24", {"lost": "sglang.srt.a.lost"})
    monkeypatch.setitem(compare_targets.NAMES, "0.5.24", {"read": None})
    assert compare_targets.main(new_release) == 1
    assert "its own tables lead nowhere for lost" in capsys.readouterr().out


@pytest.mark.parametrize("module", [base, deltas])
def test_a_key_stands_once_in_a_table(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    for table in tables:
        keys = [key.value for key in table.keys if isinstance(key, ast.Constant)]
        assert sorted(set(keys)) == sorted(keys)


def test_a_later_table_repeats_nothing_of_the_one_before():
    before = deltas._SINCE_0_5_17.items()
    assert [key for key, path in deltas._SINCE_0_5_23.items() if (key, path) in before] == []
