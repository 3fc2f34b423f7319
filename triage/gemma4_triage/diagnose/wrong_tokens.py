"""What is said of each kind of token that is not its request's."""

from collections.abc import Callable
from dataclasses import dataclass

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_dumps.wording import number_of

PARTS = "Look at what parts a verification's result by request, by its stride and accept_lens: _resolve_spec_v2_tokens."
ACCEPTED, CHUNK, PROMPT, ANSWER, ONE_LIST = "agreed", "chunk", "prompt", "answered", "one list"


def _of_drafts(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    took, agreed = scalars.get("value"), scalars.get("expected")
    more = isinstance(took, int) and isinstance(agreed, int) and took > agreed
    if scalars.get("since_verified") is True:
        came = (
            "a draft that it rejected, or what stands behind the last one, goes into the answer"
            if more
            else "tokens that it took are missing"
        )
        return (
            f"A step gives the request in slot {scalars.get('request_slot')} {took} tokens (accept_lens), and its "
            f"verification took {agreed}: the count was changed between the two, and {came}."
        )
    came = "drafts that it rejected are in the answer" if more else "tokens that it agreed to are missing"
    return (
        f"A verification took {took} tokens of the request in slot {scalars.get('request_slot')}, and the target "
        f"agreed to {agreed}: {came}."
    )


def _of_chunk(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    return (
        f"The answer of the request in slot {scalars.get('request_slot')} has {scalars.get('value')} tokens, and had "
        f"{scalars.get('expected')} before: its prompt is still read in chunks, {scalars.get('read')} tokens so far. "
        "What was sampled behind a chunk in the middle was taken for a token of the answer."
    )


def _of_answer(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    whose = scalars.get("value")
    of = "which was sampled for no request of its batch" if whose == -1 else f"that of the request in slot {whose}"
    return (
        f"The answer of the request in slot {scalars.get('request_slot')} got another token than its forward sampled "
        f"for it: {of}. What takes the results of a batch apart is wrong (process_batch_result), and not the forward."
    )


def _of_one_list(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    return (
        f"The answers of the requests in slots {scalars.get('request_slot')} and {scalars.get('value')} are one list "
        "(output_ids): what is sampled for either goes into both, and both count what the other got."
    )


def _of_prompt(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    rows, count, shift = (scalars.get(name) for name in ("rows_wrong", "tokens_wrong", "shift"))
    which = f"{count} tokens of {rows} requests differ" if rows != 1 else f"{count} of its tokens differ"
    way = {
        "own": "The list by which its prompt is read (fill ids) has the right one: it was changed between that and the "
        "forward (prefill_input_ids_cpu). Keys and values of the wrong ones are stored, and the prefix cache gives "
        "them to whoever has the right ones.",
        "read": "The list by which its prompt is read (fill ids) has that other one as well: it, or the request's own "
        "prompt or answer, was changed.",
    }.get(str(scalars.get("by_fill")), "Which of them was changed is not known.")
    place, prompt = scalars.get("place"), scalars.get("prompt")
    if isinstance(place, int) and isinstance(prompt, int) and place >= prompt:
        way = "It is one of its answer: what was sampled is read wrong, or was put wrong into the answer (output_ids)."
        if scalars.get("by_sample") == "answer":
            way = "It is one of its answer, which has what was sampled: the forward reads another (mix_with_running)."
    if isinstance(shift, int):
        beside = f"{number_of(abs(shift), 'place')} {'further on' if shift > 0 else 'before'}"
        way = f"They are its own tokens {beside}: where the prefill begins was counted otherwise than its length."
    elif scalars.get("moved") is True and rows != 1:
        way = (
            "The batch has the right tokens, in another order than its requests: what puts them together "
            "(prepare_for_extend, resolve_forward_inputs, mix_with_running) does so otherwise than rows and lengths."
        )
    elif scalars.get("moved") is True:
        way = "They are its own tokens in another order."
    return (
        f"A prefill reads another token at place {scalars.get('place')} than the request in slot "
        f"{scalars.get('request_slot')} has there, of its prompt or answer; {which}. {way}"
    )


def _of_input(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    if scalars.get("by_sample") == "input":
        at, begins = scalars.get("answer_at"), scalars.get("answer_begins")
        where = "" if at is None else f": they stand in its result from place {at} on, and its own from {begins} on"
        return (
            f"The answer of the request in slot {scalars.get('request_slot')} ends in other tokens than its "
            f"verification took{where}. The step reads the one that was taken."
        )
    whose, defect = scalars.get("value"), scalars.get("defect")
    of = "" if whose == -1 else f": the latest of the request in slot {whose}"
    if (left := scalars.get("left_before")) is not None:
        of = f": it reads the first tokens of the verification before, whose batch had {left} more requests; they were "
        of += "not filtered with these (filter_batch, bonus_tokens)"
    elif defect == Defect.STALE:
        of = ": the one before that"
    elif whose == -1 and (bits := scalars.get("cut_to_bits")) is not None:
        of = f": what every request reads is its latest as a number that was cut to {bits} bits"
    return f"A step reads another token than the latest of the request in slot {scalars.get('request_slot')}{of}."


@dataclass(frozen=True)
class Told:
    """What is said of one kind of token that is wrong: the cause, what two numbers of the dump mean, and advice."""

    words: Callable[[Dump], str]
    value: str
    expected: str
    advice: str


INPUT = Told(
    _of_input,
    "whose token it is; -1: not known",
    "whose it has to be",
    "Look at what hands the last step's tokens to the next: by request slot, and in the batch's order.",
)
TOLD = {
    ACCEPTED: Told(
        _of_drafts,
        "tokens that were taken",
        "tokens that the target agreed to",
        "Look at how many drafts the verification counts.",
    ),
    CHUNK: Told(
        _of_chunk,
        "tokens of its answer",
        "as many as it had when a chunk was launched",
        "Look at what counts chunks in the middle: get_new_batch_prefill and process_batch_result_prefill, by "
        "inflight_middle_chunks (is_chunked in older releases).",
    ),
    ONE_LIST: Told(
        _of_one_list,
        "the request that has the same list",
        "the request itself",
        "Look at what makes, copies or takes over a request's output_ids: two requests were given one object.",
    ),
    ANSWER: Told(
        _of_answer,
        "whose token it is; -1: not known",
        "whose it has to be",
        "Look at what goes through a batch's requests and their next_token_ids side by side: who is left out of one, "
        "as a chunk in the middle is, has to be left out of the other.",
    ),
    PROMPT: Told(
        _of_prompt,
        "whose token it is; -1: not known",
        "whose it has to be",
        "Look at what makes a prefill's input_ids of the requests' tokens: prepare_for_extend, resolve_forward_inputs.",
    ),
}
MORE = {
    "tokens_wrong": "tokens of the forward that are not their requests'",
    "place": "the first of them, as a token of its request",
    "moved": "whether the forward has all of the right tokens, at other places",
    "by_fill": "whose token the list has by which its prompt is read",
    "shift": "places by which what is read stands behind its own tokens",
    "rows_wrong": "requests of this batch of which that holds",
    "by_logits": "whether the target's own logits were asked",
    "since_verified": "whether the count was that of the verification as this ended",
    "by_sample": "which of the two is what its verification took",
    "answer_at": "where its result has the tokens that the answer ends in",
    "answer_begins": "where it has those of the request",
    "left_before": "requests that have left since the verification whose first tokens are read",
    "cut_to_bits": "bits that the latest tokens of all requests of the batch were cut to",
    "read": "tokens of its prompt that have been read",
    "prompt": "tokens of its prompt",
}
