"""Everything about one patch, for a terminal and JSON alike. Of the catalog; nothing of a server is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gemma4_runtime.patch import About, Attachment, Bind, Edit, Kind, Patch
from gemma4_runtime.releases import KNOWN, installed_or_base
from gemma4_runtime.settings import Settings
from gemma4_runtime.standing import State, refusal, releases_of, standing
from gemma4_runtime.targets import dotted_path
from gemma4_triage.inspection.guard_manifests import newest_of
from gemma4_triage.inspection.patch_state import state_here, switch_off, switch_on, variables_of
from gemma4_triage.threads import HUB, PROJECTS, thread_url

_NUMBERS = re.compile(r"\b(SGLang|TensorRT-LLM)(?: issues?)? ((?:\d{3,6}(?:, | and )?)+)|(?<!\w)#(\d{3,6})")
_KINDS: dict[Kind, About] = {
    Kind.FAULT: About(
        why="A known defect, put back on request, so that what finds it and what repairs it can be seen to.",
        eligibility="Every server that is started with it, whenever SGLang calls one of the functions that it attaches "
        "to. It has to be asked for by name, and the start says on stderr that it is on.",
        fallback="A server that is not asked for it runs SGLang's own functions, unchanged.",
        proof=("tests/engine/test_repro_corpus.py", "docs/corpus_matrix.json"),
    ),
    Kind.HOST_LEAF: About(
        why="SGLang on a CPU lacks what exists for CUDA alone; this stands in for one such leaf.",
        eligibility="The host engine, on a machine without CUDA.",
        fallback="Refused where CUDA is present, unless forced.",
        proof=("tests/engine/test_parity_with_transformers.py",),
    ),
}
"""What holds for every patch of a kind whose records have no `about`."""


def about(patch: Patch) -> About:
    """Return its own words, else those of its kind."""
    return patch.about or _KINDS[patch.kind]


def explain(patch: Patch, settings: Settings, chosen: bool, root: Path) -> dict:
    """Return one JSON object. root: the store whose guard manifests say what the last process made of the patch."""
    words, release = about(patch), installed_or_base()
    return {
        "id": patch.id,
        "kind": patch.kind.value,
        "title": patch.title,
        "why": words.why,
        "eligibility": words.eligibility,
        "fallback": words.fallback,
        "origin": patch.origin,
        "upstream": patch.upstream,
        "links": links(patch),
        "releases": releases_of(patch),
        "elsewhere": _elsewhere(patch),
        "absorbed": patch.absorbed,
        "installed_sglang": _installed(),
        "default": patch.default,
        "selected": chosen,
        "state": state_here(patch, settings, chosen, release),
        "last_process": newest_of(root, patch.id),
        "variables": list(variables_of(patch)),
        "switch_on": f"nothing: it does not attach to SGLang {release}"
        if refusal(patch, release)
        else switch_on(patch),
        "switch_off": switch_off(patch),
        "attachments": [_attachment(one, patch.since) for one in patch.attachments_in(patch.since)],
        "self_test": patch.self_test,
        "proof": list(words.proof),
    }


def _elsewhere(patch: Patch) -> dict[str, str]:
    """Return what it is in each known release to which it does not attach, and why."""
    found = ((release, standing(patch, release)) for release in KNOWN)
    return {release: f"{one.state.value}: {one.why}" for release, one in found if one.state is not State.ATTACHES}


def links(patch: Patch) -> list[str]:
    """Issues and pull requests that its texts name, then the files of SGLang's release that it attaches to."""
    named = [thread_url(name) for name in _threads(f"{patch.origin}; {patch.upstream}")]
    release = patch.since
    paths = (source_file(dotted_path(release, one.target)) for one in patch.attachments_in(release))
    files = (f"{HUB}/{PROJECTS['SGLang']}/blob/v{release}/python/{path}" for path in paths)
    return list(dict.fromkeys((*named, *files)))


def source_file(dotted: str) -> str:
    """`sglang.a.b.Class.method` -> `sglang/a/b.py`."""
    words = dotted.split(".")[:-1]
    while words[-1].lstrip("_")[:1].isupper():
        words.pop()
    return "/".join(words) + ".py"


def _threads(text: str) -> Iterator[str]:
    for match in _NUMBERS.finditer(text):
        for number in re.findall(r"\d+", match[2] or match[3]):
            yield f"{match[1] or 'SGLang'} {number}"


def _attachment(one: Attachment, release: str) -> dict:
    row = {"how": "edit" if isinstance(one, Edit) else "bind" if isinstance(one, Bind) else str(one.how)}
    row |= {"target": one.target, "path": dotted_path(release, one.target)}
    if isinstance(one, Edit):
        return row | {"match": one.match, "replacement": one.replacement}
    return row | {"implementation": one.implementation}


def _installed() -> str | None:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None
