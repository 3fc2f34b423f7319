"""What a wrong number has to do with the right one, and which functions of SGLang's wrote it."""

from pathlib import Path

import pytest

from diagnose_examples import altered
from gemma4_dumps.schema import Offence
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose.relation import relation_of
from gemma4_triage.diagnose.written_by import WRITTEN_BY, where_to_look
from mutation_dumps import dumps_of


def dump(*pairs, **scalars):
    """Return a dump of `request-rows` whose entries have the first number of each pair, and should have the second."""
    (one,) = dumps_of("node-behind-a-row")
    offences = tuple(
        Offence(table="batch lengths", row=row, column=0, value=value, lower=expected, upper=expected + 1)
        for row, (value, expected) in enumerate(pairs)
    )
    return altered(one, offences=offences, page_size=16, scalars={**one.manifest.scalars, **scalars})


@pytest.mark.parametrize(
    ("pairs", "scalars", "words"),
    [
        ([(-125, 131)], {}, "cut to 8 bits"),
        ([(3, 259), (44, 300)], {}, "cut to 8 bits"),
        ([(300, 65836)], {}, "cut to 16 bits"),
        ([(0, 96), (1, 97)], {"prefix": 96}, "the tokens of the request's prefix: that is left out"),
        ([(101, 105), (33, 37)], {"drafts": 4}, "the tokens of a verification: these are left out"),
        ([(109, 105), (41, 37)], {"drafts": 4}, "these are counted once more"),
        ([(7, 100)], {}, "divided by the page size, 16"),
        ([(1600, 100)], {}, "multiplied by the page size, 16"),
        ([(96, 100), (32, 40)], {}, "rounded down to whole pages of 16"),
        ([(112, 100), (48, 40)], {}, "rounded up to whole pages of 16"),
        ([(200, 100), (80, 40)], {}, "twice what it should be"),
        ([(99, 102), (39, 42), (9, 12)], {}, "each of 3 entries too low by 3"),
    ],
)
def test_one_that_fits_every_entry_is_told(pairs, scalars, words):
    assert words in relation_of(dump(*pairs, **scalars))
    # One entry that came about otherwise leaves it open.
    assert words not in str(relation_of(dump(*pairs, (977, 500), **scalars)))


@pytest.mark.parametrize(
    ("pairs", "scalars"),
    [([(0, 256)], {}), ([(99, 100)], {}), ([(96, 100)], {}), ([(5, 5)], {}), ([(101, 105)], {"drafts": 5}), ([], {})],
)
def test_what_may_be_chance_is_not(pairs, scalars):
    assert relation_of(dump(*pairs, **scalars)) is None


@pytest.mark.releases("0.5.13.post1", "0.5.23")
def test_every_function_that_is_named_is_sglangs():
    import sglang

    folder = Path(sglang.__file__).parent / "srt"
    parts = ("mem_cache", "managers", "model_executor", "speculative", "layers/attention")
    text = "\n".join(path.read_text() for part in parts for path in (folder / part).rglob("*.py"))
    named = {name for names in WRITTEN_BY.values() for name in names}
    newer = {"KVIndexTranslator.write_ids"} if sglang.__version__ == "0.5.13.post1" else set()
    assert {name for name in named if f"def {name.rpartition('.')[2]}(" not in text} == newer


def test_a_structure_that_nobody_is_known_to_write_has_general_advice():
    assert "In SGLang" not in where_to_look(None)
    assert "_split_node" in where_to_look(Structure.TREE_LOCK)
