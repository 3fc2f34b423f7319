"""An image, audio or video of a request could not be fetched or decoded; only that request fails."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, at, exception_text

_FRAME = pattern(
    r".* (?:load_audio|load_image|load_video|_load_single_item)$|(?:_audio_decoder|_video_decoder|ImageFile|Image)\.py:"
)

_FETCHES = pattern(
    r"HTTPError|ReadTimeout|ConnectTimeout|ConnectionError|ConnectionReset|ClientError|SSLError|InvalidSchema|"
    r"Max retries exceeded|Read timed out"
)
_REACH = (
    "curl -I of the URL from inside the server's container: a proxy, a firewall, a certificate, or a site that "
    "refuses such clients (403)",
    "send the file as base64 (data:image/…) or as a path on the server; REQUEST_TIMEOUT gives a slow site more seconds",
)
_LACKS = ", for the decoder itself does not load: FFmpeg lacks, or is of another release"
_NOT_FETCHED = "fetched: the server loads a URL itself, and could not reach this one, or was refused"
_FFMPEG = "apt install ffmpeg (4 to 7) in the server's image, and the torchcodec that this torch asks for"


_OF_A_DECODER = pattern(
    r"torchcodec|FFmpeg is not|outside of the buffer|cannot identify image file|moov atom not found|"
    r"Invalid data found when processing input"
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    # A server that tells of no traceback still says of what a request failed.
    answered = (one for one in facts.alarms if one.kind == "answered-500")
    said = (Death(one.place, one.rank, "", text) for one in answered for text in (one.text, *one.more))
    told = next((one for one in said if _OF_A_DECODER.search(one.message)), None)
    error = next((error for error in facts.errors if any(map(_FRAME.match, error.frames))), told)
    if error is None or not any(alarm.kind == "answered-500" for alarm in facts.alarms):
        return
    audio = any("audio" in frame.lower() for frame in error.frames)
    kind = "audio" if audio else "image or video" if error.frame else "image, audio or video"
    fetched = _FETCHES.search(f"{error.type_name}: {error.message}") is not None
    lacks = "torchcodec" in error.message or "FFmpeg is not" in error.message
    yield Finding(
        rule=RULE.id,
        cause=f"The {kind} of a request could not be {_NOT_FETCHED if fetched else f'decoded{_LACKS * lacks}'}. Only "
        "such requests fail; the server goes on.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(
                facts,
                error.place,
                exception_text(error),
                f"what the decoder said{f', in {error.frame}' if error.frame else ''}",
            ),
        ),
        ruled_out_if=("the same file loads in the server's own environment",),
        advice=_REACH
        if fetched
        else (
            *((_FFMPEG,) if lacks else ()),
            "encode the file anew, without chunks of metadata (ffmpeg -i IN -map_metadata -1 OUT), and send it again",
            "the decoder of the environment differs: torchcodec, FFmpeg, Pillow; or take a later release",
        ),
    )


RULE = Rule(
    "media-unreadable",
    "a file of a request cannot be decoded",
    _find,
    lambda death: (
        any(map(_FRAME.match, death.frames)) or bool(not death.frames and _OF_A_DECODER.search(death.message))
    ),
    frozenset({"answered-500"}),
)
