"""What a `batch-shapes` or `geometry` dump found beside what it should have been, and the arithmetic between them.

Each comparison is made again from the dump's own numbers; what its probe concluded is compared with the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Manifest, Record
from gemma4_dumps.wording import number_of
from gemma4_triage.errors import NothingChecked

RULES = ("batch-shapes", "geometry")
_BOUND = re.compile(r"(at least|more than) (\d{1,18})\b")


class Shape(Record):
    """One thing that was looked at. right: whether it is as expected; None: there is nothing that it must be."""

    what: str
    found: str
    expected: str = ""
    right: bool | None = None


class ShapesReplay(Record):
    """The document of `replay` of a `batch-shapes` or `geometry` dump. because: the arithmetic, in sentences."""

    dump: str
    rule: str
    verdict: str
    site: str
    role: str | None
    step: int | None
    summary: str
    shapes: tuple[Shape, ...]
    because: tuple[str, ...]
    agreement: str

    @property
    def fine(self) -> bool:
        """Everything is as it should be."""
        return not any(shape.right is False for shape in self.shapes)


def replay_shapes(dump: Dump) -> ShapesReplay:
    """Compare what `dump` found with what it should have been.

    Raises:
        NothingChecked: its verdict is none whose shapes are known here, or its numbers are missing.
        DumpError: it cannot be read, or contradicts itself.
    """
    manifest = dump.manifest
    if manifest.rule == "geometry":
        shapes, because = _geometry(manifest)
    elif manifest.verdict == "stale_write_rows":
        shapes, because = _write_rows(dump)
    elif manifest.verdict == "row_overflow":
        shapes, because = _row_ends(manifest)
    elif manifest.verdict == "unusable_spec_info":
        shapes, because = _spec_info(manifest)
    else:
        raise NothingChecked(f"no shapes are known for the verdict {manifest.verdict!r} of {manifest.rule}")
    wrong = any(shape.right is False for shape in shapes)
    return ShapesReplay(
        dump=manifest.dump_id,
        rule=manifest.rule,
        verdict=manifest.verdict,
        site=manifest.site,
        role=manifest.role,
        step=manifest.step,
        summary=manifest.summary,
        shapes=tuple(shapes),
        because=tuple(because),
        agreement="agrees" if wrong else "disagrees",
    )


def _write_rows(dump: Dump) -> tuple[list[Shape], list[str]]:
    manifest = dump.manifest
    rows, tokens, requests = (_number(manifest, name) for name in ("rows", "tokens", "requests"))
    record = manifest.tensors.get("out_cache_loc")
    if record is not None and record.truncated_from_shape is None and record.shape[:1] != (rows,):
        raise DumpUnreadable(f"the dump contradicts itself: out_cache_loc is {record.shape}, and has {rows} rows")
    shapes = [
        Shape(what="requests", found=str(requests)),
        Shape(what="rows of input_ids", found=str(tokens)),
        Shape(what="rows of out_cache_loc", found=str(rows), expected=f"at most {tokens}", right=rows <= tokens),
    ]
    because = [
        f"{rows} write locations - {number_of(tokens, 'token')} = {rows - tokens} that no token of the batch has"
    ]
    if rows > tokens:
        because.append(
            f"copying {rows} rows into a buffer of {tokens} fails: out_cache_loc was not made for this batch"
        )
    return shapes, because


def _row_ends(manifest: Manifest) -> tuple[list[Shape], list[str]]:
    width, longest = _number(manifest, "width"), _number(manifest, "longest")
    bad = manifest.offences
    if any(one.column != width for one in bad) or (bad and max(one.value for one in bad) != longest):
        raise DumpUnreadable("the dump contradicts itself: its offences are not of the width and length in its scalars")
    shapes = [
        Shape(what="requests", found=str(_number(manifest, "requests"))),
        Shape(what="columns of a row of req_to_token", found=str(width)),
        Shape(what="slots of the longest", found=str(longest), expected=f"at most {width}", right=longest <= width),
    ]
    because = [
        f"request slot {one.row}: {one.value} slots - {width} columns = {one.value - width} too many, which would be "
        f"written into columns 0 to {one.value - width - 1} of row {one.row + 1}"
        for one in bad
        if one.value > width
    ]
    if page := manifest.page_size:
        pages = -(-longest // page)
        because.append(f"{longest} slots are {number_of(pages, 'page')} of {page}; a row takes {width / page:g}")
    return shapes, because


def _spec_info(manifest: Manifest) -> tuple[list[Shape], list[str]]:
    requests, finished = _number(manifest, "requests"), _number(manifest, "finished")
    merging = manifest.site.endswith("merge_batch")
    needs = "merge_batch" if merging else "filter_batch"
    batches = [("the batch", manifest.scalars.get("spec_info"))]
    if merging:
        batches.append(("the batch that joins it", manifest.scalars.get("joining_spec_info")))
    if not isinstance(batches[0][1], str):
        raise NothingChecked("the dump does not say what the batch's speculative state was")
    shapes = [
        Shape(
            what=f"speculative state of {whose}",
            found="none" if kind in (None, "NoneType") else str(kind),
            expected=f"a draft input, which has {needs}",
            right=isinstance(kind, str) and kind.endswith("DraftInput"),
        )
        for whose, kind in batches
    ]
    shapes.append(Shape(what="requests, of which finished", found=f"{requests}, {finished}"))
    left = requests - finished
    because = [
        f"a batch goes from step to step with a draft input; {needs} is called on what the step left there",
        f"{requests} requests - {finished} finished = {left} to draft for again"
        + ("" if left else ": nobody needs the state, and it is in the way all the same"),
    ]
    return shapes, because


def _geometry(manifest: Manifest) -> tuple[list[Shape], list[str]]:
    what, found, expected = (manifest.scalars.get(name) for name in ("what", "found", "expected"))
    if not isinstance(what, str) or found is None or expected is None:
        raise NothingChecked("the dump does not say what was found and what was expected")
    shapes = [Shape(what=what, found=str(found), expected=str(expected), right=_as_expected(found, str(expected)))]
    shapes += _sizes(manifest)
    because = [manifest.provenance.explanation] if manifest.provenance.explanation else []
    if isinstance(layers := manifest.scalars.get("layers"), str):
        because.append(f"layers {layers}")
    if isinstance(others := manifest.scalars.get("other_findings"), str):
        because.append(f"found at the same start: {others}")
    return shapes, because


def _as_expected(found: Any, expected: str) -> bool:
    bound = _BOUND.match(expected)
    if bound is None or isinstance(found, bool) or not isinstance(found, int | float):
        return str(found) == expected
    return found >= int(bound[2]) if bound[1] == "at least" else found > int(bound[2])


def _sizes(manifest: Manifest) -> Iterator[Shape]:
    for name, value in manifest.extents.items():
        yield Shape(what=name.replace("_", " "), found=str(value))


def _number(manifest: Manifest, name: str) -> int:
    value = manifest.scalars.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise NothingChecked(f"the dump does not say {name!r}, which its verdict {manifest.verdict} is about")
    if not 0 <= value < 2**62:
        raise DumpUnreadable(f"the dump contradicts itself: {name} is {value}")
    return value
