"""The README.md inside an exported zip: what it is, what was found, how to read it, what is not in it."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from gemma4_dumps.archive import Archived
from gemma4_dumps.included import WORDS, sensitive, words
from gemma4_dumps.schema import Manifest
from gemma4_dumps.wording import number_of
from gemma4_triage.inspection.provenance_sentence import provenance_sentence
from gemma4_triage.terminal import printable

_HOW_TO_READ = """\
## How to read it

With gemma4-triage, whose base install needs neither torch nor SGLang nor a GPU:

    gemma4-triage diagnose THIS.zip
    gemma4-triage dumps show THIS.zip/{name}
    gemma4-triage dumps verify THIS.zip/{name}

Without it: `manifest.json` is JSON and says everything but the tensors; `tensors.safetensors` opens with any reader of
safetensors; `events.jsonl` has one JSON object a line. `sha256sum` must give the hashes above.

## What is in it, and what is not

In it: page tables, sequence lengths, request slots, pool sizes, versions, host name, process id, and launch arguments
with secrets redacted.

{contents} The tensors that are in it are listed above. Look through `manifest.json` before you pass the zip on."""

_NOTHING_OF_REQUESTS = "Not in it: prompts, token ids, generated text, KV values, weights."
_OF_REQUESTS = """\
**Confidential.** Of the requests themselves it holds {words}, which somebody asked for when the server was started.
Token ids are the prompt and the answer as they are; from keys and values both can be inferred. They are in:

{dumps}

Not in it: weights."""
_UNSURE = """\
**What a damaged dump holds, nobody can tell for sure**: KV values and token ids may be in it."""


def export_readme(archived: Sequence[Archived]) -> str:
    """Return the whole text. Says nothing about when and where it was made, so that equal dumps give equal zips."""
    count = "One dump" if len(archived) == 1 else number_of(len(archived), "dump")
    lines = [
        "# Dumps of a Gemma-4 server on SGLang",
        "",
        f"{count}, exported by gemma4-triage {version('gemma4-triage')}. A dump is what a probe inside the server saw",
        "when it met a violation: page tables and allocations that are about to go wrong, and where that was.",
        "",
    ]
    for dump in archived:
        lines += [*_dump(dump), ""]
    lines.append(_HOW_TO_READ.format(name=archived[0].candidate.folder, contents=_contents(archived)))
    return "\n".join(lines) + "\n"


def _contents(archived: Sequence[Archived]) -> str:
    """Return what of the requests is in it, or that nothing is."""
    manifests = {dump.candidate.folder: dump.candidate.manifest for dump in archived}
    held = {name: sensitive(manifest) for name, manifest in manifests.items() if manifest is not None}
    found = dict.fromkeys(word for included in held.values() for word in included)
    said = []
    if found:
        dumps = "\n".join(_literal(f"{name}: {words(included)}") for name, included in held.items() if included)
        known = words(word if word in WORDS else f"`{_one_line(word).replace('`', chr(39))}`" for word in found)
        said.append(_OF_REQUESTS.format(words=known, dumps=dumps))
    if any(dump.candidate.problems for dump in archived):
        said.append(_UNSURE)
    return "\n\n".join(said) or _NOTHING_OF_REQUESTS


def _dump(dump: Archived) -> Iterator[str]:
    candidate = dump.candidate
    yield f"## {candidate.folder}"
    yield ""
    if candidate.problems:
        yield "**Damaged**, and exported all the same:"
        yield ""
        yield from (_literal(problem) for problem in candidate.problems)
        yield ""
    if candidate.manifest is not None:
        yield from (_literal(line) for line in _summary(candidate.manifest))
        yield ""
    yield "| file | bytes | SHA-256 |"
    yield "|---|---|---|"
    for name, record in dump.files.items():
        yield f"| {name} | {record.size_bytes} | {record.sha256} |"
    if candidate.manifest is not None and candidate.manifest.tensors:
        yield ""
        yield "Tensors:"
        yield ""
        for name, tensor in candidate.manifest.tensors.items():
            yield _literal(f"{name}  {tensor.dtype}{list(tensor.shape)}")


def _summary(manifest: Manifest) -> Iterator[str]:
    yield f"{manifest.verdict}  {manifest.rule}, {manifest.action}"
    yield manifest.summary
    if sentence := provenance_sentence(manifest):
        yield sentence
    yield "  ".join(f"{name} {found}" for name, found in manifest.versions.items()) or "no versions recorded"
    yield "GPU: " + (", ".join(f"{key} {value}" for key, value in manifest.gpu.items()) if manifest.gpu else "none")


def _literal(text: str) -> str:
    """Return one indented line: what a dump says is no Markdown of ours."""
    return "    " + _one_line(text)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
