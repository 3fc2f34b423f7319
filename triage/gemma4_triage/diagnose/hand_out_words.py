"""What is said of a slot that an allocator does not have: where it comes from, and where to look."""

from gemma4_dumps.structures import Defect, Structure

SEEN = " An audit before the call had found it on the free list: whoever put it there is the cause."
ZEROED = (Structure.FREE_CALL, Defect.ZERO)
UNTRANSLATED = (Structure.ALLOCATION, Defect.OTHER_SPACE)
WHENCE: dict[object, str] = {
    Structure.FULL_FREE_LIST: " The free list held it before the call.",
    Structure.SWA_FREE_LIST: " The free list held it before the call.",
    Structure.BATCH_LENGTHS: " It is the length: every other request has grown by one token since the last decode.",
    Structure.REQUEST_ROW: " It is the row: the decode before gave the request another slot.",
    Structure.REQUEST_COUNTERS: " It is the count of tokens for which the request has slots (kv_allocated_len): every "
    "other request of the batch goes on where the call before ended.",
    Structure.SWA_MAPPING: " The mapping led there: what it has for the request's last slot is none.",
    ZEROED: " The free before it put page 0 on the list in place of the SWA pages that it named, which are lost, as "
    "where it reads the mapping behind its clearing.",
    Structure.FREE_CALL: " The SWA page in which the request continues had been given back: too early.",
    UNTRANSLATED: " It goes on with the full pool's slots, which were not translated.",
    Structure.ALLOCATION: " No free list held it: the call's result is wrong, and not the list.",
}
ELSEWHERE = (
    "A decode was asked to give a request the slot behind another than its last, so that what it handed out is not the "
    "request's next, and neither list nor allocator is at fault."
)
GONE_ON = (
    "A decode goes on behind a slot that its request has left behind, by the calls before: its length is wrong, and "
    "what the allocator gave follows from it."
)
WRITTEN = (
    "The mapping has no slot of the sliding-window pool for what was handed out, although that pool gave one: its "
    "entry was not written, or was written wrong."
)

EXCHANGED = (
    "The mapping was written with full and SWA slots exchanged: it has the full slots that were handed out at the "
    "numbers of their SWA slots, and not the SWA slots at theirs."
)

AT_LISTS = "Look at what changed the free list (free_pages_full, free_pages_swa): a foreign free, a restore_state."
AT_ROWS = (
    "Look at where the row's last slot is read (get_last_loc, last_loc): at the length before this call, less one."
)
AT_FREES = (
    "Look at the order in which free_swa and free_swa_segment read the mapping (full_to_swa_index_mapping) and clear "
    "it (clear_full_to_swa_mapping)."
)
AT_BATCH = "Look at what takes ended requests out of a batch, and at what adds others to it: filter_batch, merge_batch."
AT_MAP = "Look at what writes the mapping after a hand-out: which entries it writes, and in which type."
ALL_AT_ONCE = (
    " All of its requests were, which have tokens: their rows were read where nothing is written yet, as at the new "
    "length in place of the one before, or they are other rows."
)


def cause_of(asked: bool, beyond: bool, all_at_once: bool = False) -> str:
    """Return the sentence of a slot that the pool does not have, or that was asked for."""
    if asked:
        return (
            "The allocator was asked to continue from a slot that no request has: the row or the length that named it "
            "is wrong, and not what the allocator handed out."
        ) + (ALL_AT_ONCE if all_at_once else "")
    if beyond:
        return "The allocator handed out a slot beyond its pool; what lies there is another tensor's."
    return "The allocator handed out a slot below the first of its pool: page 0, which is for padding, or none at all."
