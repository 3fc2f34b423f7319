"""A manifest in which one word or number was changed is not believed: sizes of pages, structures and defects."""

import pytest

from diagnose_examples import altered
from gemma4_dumps.contradictions import other_page_size_of_writes
from gemma4_dumps.structures import Defect, Structure
from gemma4_dumps.tensor_file import TensorIndex
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Confidence
from gemma4_triage.report.diagnosis_document import damage_line
from mutation_dumps import KEPT, dumps_of

EVERY = [dump for path in sorted(KEPT.iterdir()) for dump in dumps_of(path.name)]
OF_ROWS = [dump for dump in EVERY if dump.manifest.rule == "request-rows"]
WITH_SIZES = [dump for dump in EVERY if dump.manifest.rule == "leak-audit" or dump.manifest.rule.startswith("swa-")]


def certainty(dump):
    (incident,) = group([dump])
    return conclude(incident)[0].confidence


def test_what_was_written_contradicts_itself_nowhere():
    assert [dump.manifest.dump_id for dump in EVERY if dump.damage] == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [1, 8, 32, 64])
def test_another_page_size_than_the_pools_give_is_named_first_and_nothing_is_certain(size):
    for dump in (one for one in WITH_SIZES if one.manifest.page_size != size):
        forged = altered(dump, page_size=size)
        assert f"a page has {size} slots by the manifest" in damage_line(forged)
        assert certainty(forged) is not Confidence.CERTAIN


def test_another_page_size_than_where_tokens_are_written_is_seen_in_a_table():
    seen = [
        altered(dump, page_size=64).damage
        for dump in EVERY
        if dump.manifest.rule == "page-table-bounds" and len(dump.tensor("cache_seqlens")) > 2
    ]
    assert any("by where each row's tokens are written" in one for damage in seen for one in damage)


def test_another_page_size_than_the_arguments_say():
    dump = altered(OF_ROWS[0], launch_args=("serve", "--page-size", "64"))
    assert "64 by the server's arguments" in damage_line(dump)
    assert altered(OF_ROWS[0], launch_args=("serve", "--page-size=16")).damage == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("structure", Structure)
def test_another_structure_than_the_verdict_has_is_not_believed(structure):
    for dump in OF_ROWS:
        forged = altered(dump, scalars=dump.manifest.scalars | {"structure": structure.value})
        if structure.value != dump.manifest.scalars["structure"]:
            assert "the structure is" in damage_line(forged)
            assert certainty(forged) is not Confidence.CERTAIN


@pytest.mark.parametrize("defect", [Defect.ZERO, Defect.NEGATIVE, Defect.LOST, Defect.EARLY])
def test_a_way_in_which_the_value_is_not_is_not_believed(defect):
    for dump in OF_ROWS:
        scalars = dump.manifest.scalars
        if scalars["defect"] in (None, defect.value) or scalars.get("why") in ("unlocked", "window unlocked"):
            continue
        forged = altered(dump, scalars=scalars | {"defect": defect.value})
        assert defect.value in damage_line(forged)
        assert certainty(forged) is not Confidence.CERTAIN


@pytest.mark.parametrize(
    ("value", "defect"), [(17 * 16, Defect.OTHER_SPACE), (3, Defect.OFF_BY_ONE), (70, Defect.SWAPPED)]
)
def test_a_length_has_fewer_ways(value, defect):
    dump = next(one for one in OF_ROWS if one.manifest.verdict == "counter_wrong")
    first = dump.manifest.offences[0].model_copy(update={"value": value, "lower": 60, "upper": 61})
    scalars = dump.manifest.scalars | {"value": value, "expected": 60, "defect": defect.value}
    assert altered(dump, scalars=scalars, offences=(first,), offence_count=1).damage


def test_a_tensor_of_nothing_by_more_than_a_number_of_64_bits_holds_contradicts_nothing():
    dump = next(one for one in EVERY if one.manifest.rule == "page-table-bounds")
    huge = dump.manifest.tensors["cache_seqlens"].model_copy(update={"shape": [0, 2**70], "dtype": "int64"})
    index = TensorIndex(dump.path, {"cache_seqlens": 0}, {"cache_seqlens": huge})
    assert other_page_size_of_writes(index, dump.manifest) is None
