"""A request that is refused for its length though its prompt is short: the room that it asks for is at fault."""

from __future__ import annotations

import re

from gemma4_triage.logs.late_pattern import pattern

_COUNTS = pattern(
    r"context length (?:of|is) (\d+) tokens.{0,120}?(\d+) (?:tokens from|in) the (?:input )?messages(?: and|,) (\d+) "
    r"(?:tokens )?(?:for|in) the completion"
)
_ROUND = re.compile(r"\d+00")
_OF_MEMORY = 256  # tokens, of which sizes that somebody chooses are multiples


def room_asked(said: str) -> tuple[str, str] | None:
    """Return why a request is too long, and what to do, where the room for its answer is; None where the prompt is.

    Args:
        said: the words of the refusal, as OpenAI's endpoints of SGLang and vLLM have them.
    """
    found = _COUNTS.search(said)
    if found is None:
        return None
    context, prompt, answer = map(int, found.groups())
    if prompt >= context or 2 * answer <= context:
        return None
    why = f"the room that they ask for an answer ({answer} tokens of a context of {context}) is too large beside a "
    why += f"prompt of {prompt}, which fits by itself"
    counted = context - answer
    if counted < prompt and answer % _OF_MEMORY and not _ROUND.fullmatch(str(answer)):
        why += (
            f". {answer} is the context less {counted}: whoever worked it out (the server itself, where a request "
            f"names none) took the prompt for {counted} tokens, as before images or a template are put in"
        )
    return why, (
        f"name the room in the request (max_tokens, max_completion_tokens, of /v1/responses max_output_tokens), as an "
        f"answer needs it and at most {context - prompt}; a longer --context-length or a shorter prompt changes "
        "nothing where a default is worked out so; then a later release, or another endpoint (/v1/chat/completions)"
    )
