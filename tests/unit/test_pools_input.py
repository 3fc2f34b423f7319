"""What people give to `pools`: sizes, workloads, configs. Each is understood, or refused by a sentence."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.pools.demand import Workload
from gemma4_triage.errors import UsageMistake
from gemma4_triage.pools.arithmetic import token_bytes
from gemma4_triage.pools.as_written import parse_size, parse_workload
from gemma4_triage.pools.memory import pools_memory
from gemma4_triage.pools.model_shape import read_shape

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


class TestWords:
    @pytest.mark.parametrize(
        ("text", "size"),
        [("80GiB", 80 << 30), ("80 gb", 80 * 10**9), ("143771MiB", 143_771 << 20), ("1.5GiB", 3 << 29), ("7B", 7)],
    )
    def test_sizes(self, text, size):
        assert parse_size(text, "--gpu-mem") == size

    @pytest.mark.parametrize("text", ["80", "", "GiB", "-1GiB", "1e9B", "80G", "0GiB", "0.01B", "٣GiB", "9" * 99 + "B"])
    def test_no_sizes(self, text):
        with pytest.raises(UsageMistake):
            parse_size(text, "--gpu-mem")

    def test_workloads(self):
        assert parse_workload(" 80x8000+1000 ") == Workload(80, 8000, 1000)
        assert str(parse_workload("80 X 8000 + 0")) == "80x8000+0"

    @pytest.mark.parametrize("text", ["", "80", "80x8000", "0x80+1", "8x0+1", "8x80+-1", "8x8e3+1", "8x9999999999+1"])
    def test_no_workloads(self, text):
        with pytest.raises(UsageMistake):
            parse_workload(text)

    @given(st.text(max_size=20))
    def test_any_words(self, text):
        for parse in (parse_workload, lambda words: parse_size(words, "--kv-mem")):
            try:
                parse(text)
            except UsageMistake as error:
                assert error.hint

    def test_weights_that_leave_nothing(self):
        assert pools_memory(80 << 30, 0.85, 50 << 30).pools_bytes == int(0.85 * (80 << 30)) - (50 << 30)
        with pytest.raises(UsageMistake, match="nothing is left"):
            pools_memory(80 << 30, 0.85, 70 << 30)


GOOD = json.loads((CONFIGS / "e4b.json").read_text())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


def changed(**fields):
    return GOOD | {"text_config": GOOD["text_config"] | fields}


class TestConfigs:
    def test_a_folder_a_file_and_a_flat_config(self, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(GOOD))
        nested = read_shape(tmp_path)
        assert nested == read_shape(tmp_path / "config.json")
        (tmp_path / "config.json").write_text(json.dumps(GOOD["text_config"]))
        assert read_shape(tmp_path) == nested
        assert (nested.shared_layers, nested.layers("full_attention", True)) == (18, 4)

    def test_layer_types_are_derived_as_transformers_does(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        for count in (7, 12, 30):
            config = changed(layer_types=None, num_hidden_layers=count, num_kv_shared_layers=0)
            (tmp_path / "config.json").write_text(json.dumps(config))
            theirs = transformers.Gemma4TextConfig(num_hidden_layers=count).layer_types
            assert list(read_shape(tmp_path).layer_types) == theirs

    @pytest.mark.parametrize(
        ("document", "words"),
        [
            ([], "no JSON object"),
            ({"model_type": "llama"}, "not of a Gemma-4"),
            ({}, "not of a Gemma-4"),
            (GOOD | {"model_type": "gemma4_assistant"}, "is a draft"),
            (GOOD | {"text_config": 3}, "not of a Gemma-4"),
            (changed(num_key_value_heads=None), "has no num_key_value_heads"),
            (changed(num_key_value_heads=0), "num_key_value_heads is 0"),
            (changed(num_key_value_heads=True), "num_key_value_heads is True"),
            (changed(head_dim="256"), "head_dim is '256'"),
            (changed(sliding_window=None), "has no sliding_window"),
            (changed(num_hidden_layers=10**9), "layers"),
            (changed(num_hidden_layers=41), "42 layer_types for 41 layers"),
            (changed(layer_types=["full_attention"] * 42), "no sliding layer"),
            (changed(layer_types="sliding"), "something other"),
            (changed(layer_types=[["x"]]), "something other"),
            (changed(num_kv_shared_layers=42), "leaves no owner"),
            (changed(num_kv_shared_layers=-1), "num_kv_shared_layers is -1"),
        ],
    )
    def test_bad_ones(self, tmp_path, document, words):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(document))
        with pytest.raises(UsageMistake, match=words) as caught:
            read_shape(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "torn", "bytes", "deep"])
    def test_no_json(self, tmp_path, content):
        path = tmp_path / "config.json"
        path.write_bytes(content)
        with pytest.raises(UsageMistake, match="no JSON"):
            read_shape(path)

    @given(VALUES, st.sampled_from([*GOOD["text_config"], "model_type"]))
    def test_any_value_of_any_field(self, tmp_path_factory, value, name):
        path = tmp_path_factory.mktemp("config") / "config.json"
        path.write_text(json.dumps(changed(**{name: value})))
        try:
            shape = read_shape(path)
        except UsageMistake:
            return
        assert token_bytes(shape, 2).swa > 0
