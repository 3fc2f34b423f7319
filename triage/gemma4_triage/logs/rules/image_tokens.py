"""A prompt has another number of image or audio placeholders than the encoder made embeddings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, over, remarked, says

_COUNTS = (
    pattern(r"Got (?P<text>\d+) tokens in the text but (?P<made>\d+)"),
    pattern(r"num_mm_tokens_in_input_ids=(?P<text>\d+) vs num_mm_tokens_in_embedding=(?P<made>\d+)"),
    pattern(
        r"(?i)(?:image|audio|video) features and (?:image|audio|"
        r"video) tokens do not match[:,]? tokens: (?P<text>\d+),? features:? (?P<made>\d+)"
    ),
)
_WORDS = pattern(
    r"(?i)multimodal embedding does not match|Insufficient multimodal embedding|"
    r"(?:image|audio|video) features and (?:image|audio|video) tokens do not match|"
    r"number of (?:image|audio|video|placeholder) (?:tokens|placeholders).{0,60}(?:match|differ|equal)|"
    r"more '.{1,80}' tokens found than corresponding data items|"
    r"value tensor of shape \[\d+, \d+\] cannot be broadcast to indexing result of shape \[\d+, \d+\]"
)


_POSITIONS = pattern(r".* (?:get_rope_index\w*|get_input_positions|_?compute_\w*mrope_positions)$|mrope\w*\.py:")


def _of_positions(death: Death) -> bool:
    """Say whether positions of an image's tokens could not be laid out along the prompt."""
    misfit = death.type_name in ("ValueError", "IndexError", "RuntimeError", "StopIteration", "AssertionError")
    return misfit and any(map(_POSITIONS.match, death.frames[-3:]))


_EMBEDS = pattern(r".* (?:_?get_chunked_\w*embedding\w*|get_embedding\w*|embed_mm_inputs|_?get_precomputed_embedding)$")
_SPLIT = pattern(
    r"sum exactly to (?P<made>\d+).{0,60}split_sizes=\[(?P<text>\d+)\]|must match|out of (?:range|bounds)|"
    r"number of elements"
)


def _of_embeddings(death: Death) -> bool:
    """Say whether embeddings of media could not be dealt out to the places of their tokens."""
    return _SPLIT.search(death.message) is not None and any(map(_EMBEDS.match, death.frames[-3:]))


def _explains(death: Death) -> bool:
    return says(_WORDS)(death) or _of_positions(death) or _of_embeddings(death)


def _tell(facts: LogFacts, death: Death) -> Finding:
    counts = next((found for words in (*_COUNTS, _SPLIT) if (found := words.search(death.message))), None)
    if "corresponding data items" in death.message:
        said, cause = "", "its text holds the model's own mark of an image, as text or an answer of a tool may"
    elif counts is None and _of_positions(death):
        said, cause = "", "the prompt was cut, has a placeholder of its own, or lacks one, as positions were laid out"
    elif counts is None or counts["text"] is None:
        counts = None
        said, cause = "", "the processor and the encoder disagree"
    elif _is_raw_sound(death, int(counts["text"]), int(counts["made"])):
        said = f": {counts['text']} placeholders, {counts['made']} embeddings"
        cause = "so many are samples of the sound, of which nobody has made features"
    elif int(counts["text"]) > int(counts["made"]):
        said = f": {counts['text']} placeholders, {counts['made']} embeddings"
        cause = "the prompt holds placeholders of its own, an image was dropped, a chunk ends inside an image, or the "
        cause += "cache of embeddings gave another image's"
    elif int(counts["text"]) == 0:
        said = f": 0 placeholders, {counts['made']} embeddings"
        cause = "the prompt has no mark for its images, as a chat template of another model or none at all writes it"
    else:
        said = f": {counts['text']} placeholders, {counts['made']} embeddings"
        cause = "the prompt was cut behind or inside an image, or the processor expands to fewer placeholders"
    if mixed := _is_mixed(facts):
        cause = (
            f"a request had pictures and a video at once, by a note: places of one may count as the other's; or {cause}"
        )
    return Finding(
        rule=_OF_DEATH.id,
        cause=f"Image or audio placeholders and embeddings differ in number{said}; {cause}.",
        confidence=Confidence.LIKELY if counts else Confidence.POSSIBLE,
        evidence=tuple(of_failure(facts, death, "what the server says")),
        ruled_out_if=(
            "the same request alone, with --chunked-prefill-size -1, fails alike and has no placeholder in its text",
        ),
        advice=(
            *((_APART,) if mixed else ()),
            *_first(death, counts),
            *((_NO_MARK, _OWN_KEYS) if counts and int(counts["text"] or 0) == 0 else ()),
            "send that request alone, then with one image, and with images or a video alone; look for a literal image "
            "token in the text",
            *((_OTHERS,) if counts and int(counts["text"] or 0) > int(counts["made"] or 0) else ()),
            "the processor counts the placeholders: install the transformers that SGLang asks for",
            "a prompt near the context length is cut: shorten it, or raise --context-length",
            "once with --disable-radix-cache: a prefix that ends inside a sound or an image was counted wrong (SGLang "
            "8366)",
        ),
        next_commands=("gemma4-triage doctor",),
        upstream=("SGLang 40797",) if "Insufficient multimodal" in death.message else (),
    )


# An image alone may be a container's.
_PICTURES = pattern(r"(?i)\b(?:pictures?|photos?|images|(?:an?|one|each|every) image)\b")
_VIDEOS = pattern(r"(?i)\b(?:videos?|clips?)\b")
_APART = (
    "pictures and videos in requests of their own: a model that marks both with one token (GLM-V) has had the places "
    "of a video's frames dealt to its pictures, where a request brings both (SGLang 37968); then a later release"
)


def _is_mixed(facts: LogFacts) -> bool:
    """Say whether somebody noted a request that has pictures and a video."""
    notes = facts.remarks["notes"].text if "notes" in facts.remarks else ""
    return any(_PICTURES.search(line) and _VIDEOS.search(line) for line in notes.splitlines())


_SAMPLES = 1000  # of sound, for each placeholder
_INDEXED = pattern(r"value tensor of shape \[(\d+), \d+\] .{0,60}result of shape \[(\d+), \d+\]")
_FACTORS = (4, 9, 16)
_OF_A_CHUNK = pattern(r".*\b(?:embed_mm_inputs|general_mm_embed_routine|_?get_chunked_\w+)$")


def _is_raw_sound(death: Death, text: int, made: int) -> bool:
    """Say whether there are as many embeddings of a sound as it has samples."""
    return "udio" in death.message and text > 0 and made > _SAMPLES * text


def _first(death: Death, counts: re.Match[str] | None) -> Iterator[str]:
    """Yield what the numbers themselves, or the frames, make the first thing to try."""
    text, made = (int(counts[name] or 0) for name in ("text", "made")) if counts else (0, 0)
    if _is_raw_sound(death, text, made):
        yield (
            f"send the sound as a part of its own (audio_url, mono, 16 kHz): {made} for {text} placeholders are "
            "samples of the sound, of which nobody has made features, as where it comes as a path or a whole waveform "
            "that this processor does not take so; then the transformers that SGLang pins"
        )
    if found := _INDEXED.search(death.message):
        few, many = sorted((int(found[1]), int(found[2])))
        if few and many % few == 0 and many // few in _FACTORS:
            yield (
                f"the release before, or a later one, of the server: {many} against {few} is a whole factor "
                f"({many // few}), by which one side merges patches (spatial_merge_size) and the other does not, as "
                "where a release lost that number of the model's config (vLLM 0.8.4 for Mistral-3: vLLM 16661). No "
                "request is at fault"
            )
    if death.type_name == "IndexError" and any(map(_OF_A_CHUNK.match, death.frames[-2:])):
        yield (
            "once with --chunked-prefill-size -1, or one above the longest prompt, and one kind of medium in a "
            "request: a chunk that ends inside a request's last medium (a small image beside a long video) has been "
            "dealt the features of fewer than it counts (SGLang 13909); then a later release"
        )


_NO_MARK = (
    "--chat-template of this model (qwen2-vl, gemma-it and others by name, or the publisher's file): the one in use "
    "writes no image mark; text that the client puts together needs the mark itself; then a later release"
)
_OWN_KEYS = (
    "requests that bring mm_hashes or input_ids of their own: once without them; keys that come after the prompt was "
    "laid out leave it without marks (SGLang 40225)"
)
_OTHERS = (
    "if the same request works alone and after a restart: the cache of embeddings found another image's under the same "
    "short key (SGLang 32404); a later release checks their length"
)
_OF_DEATH = of_death(
    "image-tokens", "placeholders and embeddings differ in number", _explains, _tell, alarms=("image-tokens",)
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    found = list(_OF_DEATH.find(facts))
    if not found and "no_media_marks" in facts.remarks:
        found.append(
            Finding(
                rule=_OF_DEATH.id,
                cause="Requests bring images, video or sound that their prompts have no mark for: the model answers as "
                "if it had not seen them, and a prompt put together so may lack its text too.",
                confidence=Confidence.LIKELY,
                evidence=(*remarked(facts, "no_media_marks", "the last of them"), *_shortest(facts)),
                ruled_out_if=("the prompt of such a request, in --log-requests, has a mark for each image",),
                advice=(
                    *_of_its_processor(facts),
                    "the chat template has to be this model's: leave --chat-template out, or the publisher's; text "
                    "that the client puts together needs the model's mark of an image once for each",
                    "text alone: send no empty image_data; a later release, which puts such requests (rerankers of "
                    "images, for one) together otherwise",
                ),
                upstream=("SGLang 28070",),
            )
        )
    yield from found


_NOT_TAKEN = pattern(r"argument `(\w+)` is not a valid argument for this processor")


def _of_its_processor(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where the model's processor passed over what it was handed, by another name than it takes."""
    said = facts.remarks.get("processor_passes_over")
    found = _NOT_TAKEN.search(said.text) if said is not None else None
    if said is None or found is None:
        return ()
    return (
        f"the transformers that SGLang's pyproject names (pip show transformers), or a later SGLang: line "
        f"{said.place.line} says that the model's processor takes no `{found[1]}` and passes it over, so that it wrote "
        "no marks for them; a release of transformers calls that argument otherwise than SGLang does",
    )


def _shortest(facts: LogFacts) -> list[Evidence]:
    """Return how few tokens prompts had, where batches of one token say that next to nothing was left of them."""
    new, requests = (sum(getattr(rank, name) for rank in facts.schedulers) for name in ("new_tokens", "new_requests"))
    return [over(facts, "prefill lines", new, f"prompt tokens of {requests} requests")] if requests and new else []


RULE = replace(_OF_DEATH, find=_find)
