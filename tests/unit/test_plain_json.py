"""What goes into a manifest: plain JSON of whatever a probe met."""

import json

import numpy as np

from gemma4_dumps.plain_json import MAX_DEPTH, plain


def test_numpy_scalars_arrays_and_numbers_without_a_word_in_json_become_plain():
    value = {"scalar": np.int32(7), "array": np.array([1, 2]), "nan": float("nan"), "huge": 1 << 2000, 3: {4}}
    assert plain(value) == {
        "scalar": 7,
        "array": [1, 2],
        "nan": "nan",
        "huge": "[integer of more than 1024 bits]",
        "3": [4],
    }


def test_what_is_nested_too_deeply_ends_there():
    nested: list = []
    for _ in range(10 * MAX_DEPTH):
        nested = [nested]
    said = json.dumps(plain(nested))
    assert said.count("[nested too deeply]") == 1
    assert said.count("[") < MAX_DEPTH + 4


def test_a_lone_surrogate_is_shown_and_an_unknown_object_is_its_repr():
    assert plain("a\udcff") == "a\\udcff"
    assert plain(object).startswith("<class")
