"""Which structure a dump is about, where a rule says only "the table" or "the pool": read from what the dump names."""

from __future__ import annotations

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose.evidence import tensor_or_none

_WRITE_LISTS = ("out_cache_loc", "swa_out_cache_loc")
_FREE_LISTS = {"full": Structure.FULL_FREE_LIST, "swa": Structure.SWA_FREE_LIST}


def index_list(dump: Dump) -> Structure | None:
    """Return the list that holds a page-table dump's first bad index; None if the dump does not say which it is."""
    manifest = dump.manifest
    if manifest.offences and manifest.offences[0].table in _WRITE_LISTS:
        return Structure.WRITE_LOCATIONS
    match manifest.provenance.buffer_space:
        case "swa":
            return Structure.SWA_TABLE
        case "full":
            return Structure.FULL_TABLE
        case _:
            return None


def free_list(dump: Dump) -> Structure | None:
    """Return the free list of the pool that a dump of an allocator is about; None if it names no pool."""
    return free_list_of_pool(dump.manifest.pool_kind or "")


def free_list_of_pool(pool: str) -> Structure | None:
    """Return the free list of the pool of this name; None for another name."""
    return _FREE_LISTS.get(pool)


def are_free(dump: Dump) -> bool | None:
    """Return whether every page that a dump of an allocator lists is on its pool's free list; None if it lacks that."""
    manifest = dump.manifest
    pool = "swa" if manifest.provenance.buffer_space == "swa" else "full"
    listed = tensor_or_none(dump, f"free_pages_{pool}")
    if listed is None or not manifest.offences:
        return None
    pages = set(listed.ravel().tolist())
    size = 1 if manifest.offences[0].table == "pages_lost" else manifest.page_size or 1
    return all(bad.value // size in pages for bad in manifest.offences)
