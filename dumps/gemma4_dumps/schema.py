"""The manifest of a dump, schema 1.1.

A reader accepts every minor version of its own major version; fields that a newer minor added are kept, unread.
`python -m gemma4_dumps.schema` prints the JSON schema that is published beside this file.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from .plain_json import plain

SCHEMA_VERSION = "1.1"

VERDICTS: Mapping[str, str] = {
    "out_of_range": "an index at or above its exclusive upper bound is about to be read",
    "negative": "an index below zero is about to be read",
    "null_page_live": "the null page 0 stands in a column that the request needs",
    "table_too_narrow": "a row needs more columns than its page table has, so the kernel would read on",
    "wrong_space": "indices of one pool's space are about to index another pool's buffer, whatever their values",
    "write_out_of_range": "a write location lies outside the buffer",
    "alloc_out_of_range": "an allocator handed out an index outside its pool",
    "alloc_overlap": "an allocator handed out an index that is still owned",
    "free_out_of_range": "an index was freed that its pool never hands out: page 0, or outside the pool",
    "double_free": "an index was freed that is already free",
    "freed_in_use": "a page is on the free list while a request or the prefix cache still holds it",
    "stale_mapping": "a full-to-SWA mapping entry outlived the page that it points to",
    "mapping_differs": "a full-to-SWA mapping entry leads to another page than the one that it was made with",
    "mapping_negative": "the full-to-SWA mapping has a number below 0 where a slot has no SWA slot, which 0 says",
    "node_differs": "a node of the prefix cache has a page that stood elsewhere in the cache before",
    "tree_broken": "nodes of the prefix cache do not hang together, or are not on the lists that they belong on",
    "pool_leak": "pages belong to nobody and are not free",
    "pool_alias": "a page has two owners",
    "held_out_of_range": "a request or the prefix cache holds page 0, or what is no page of the pool",
    "pool_unbalanced": "every page of a pool is in one place, and what SGLang counts of it does not add up",
    "geometry_mismatch": "two parts of a server that must agree do not: a draft and its target, a layer and its pool",
    "swa_state": "a backend's SWA state is not that of the pool it reads: page ids go untranslated, or twice",
    "window_width": "attention layers show another number of keys than the model's configuration says",
    "pool_too_small": "a pool has fewer slots than must be addressed or held at once",
    "stale_write_rows": "a batch carries more write locations than tokens: they are left from an earlier step",
    "row_overflow": "a request is to have more slots than its row of req_to_token: the rest goes into another's row",
    "unusable_spec_info": "a batch's speculative state can neither be merged nor filtered with its requests",
    "row_entry": "an entry of a request's row of req_to_token is not the slot that its token has",
    "row_index": "a batch names another row of req_to_token than its request has",
    "length_differs": "a length that a step goes by is not what its request has",
    "write_misplaced": "a forward is about to write a token's keys elsewhere than its row, or the map of it, says",
    "table_entry": "an entry of a page table is not the page that its request's row leads to",
    "counter_wrong": "what a request counts of its tokens or slots does not agree with itself, its row or its past",
    "window_kept": "a request keeps slots of the sliding-window pool that its window left long ago; no index is bad",
    "lock_missing": "requests hold more of the prefix cache than is locked, or one carries another's lock",
    "position_wrong": "a token of a forward stands at another place of its sequence than its request's length says",
    "insert_wrong": "the prefix cache has, for tokens just put into it, a page given back meanwhile, or a slot twice",
    "text_differs": "the prefix cache takes or gives tokens that are not those whose keys and values its slots have",
    "request_misplaced": "a request runs and waits at once, or one that ran is in no batch and does not wait",
    "mode_left": "a batch is of another kind behind its forward than it was run as; no index is at fault",
    "stop_missed": "a request goes on behind a token at which its answer ends; no index is at fault",
    "sampling_differs": "a request is to be sampled with parameters that it did not ask for; no index is at fault",
    "not_finite": "logits of a request, or the hidden state that its draft begins with, are NaN",
    "not_stored": "a forward has stored no keys, or no values, in a slot that it was to write",
    "keys_changed": "keys or values that a forward stored are others now, and no forward was to write there since",
    "token_differs": "a forward reads another token than its request has, or a draft was taken without the target",
    "accept_length_fell": "drafts are accepted far less than before; no index is at fault",
    "no_draft_accepted": "hardly one of a server's first drafts was accepted; no index is at fault",
    "exception": "the scheduler raised an exception, which ends the server",
}
"""The verdicts that this release writes. A manifest may hold others: a newer writer's verdict is still readable."""

IndexSpace = Literal["full", "swa", "draft", "unknown"]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""One plain path component: a manifest must not make a reader look outside the dump."""
Size = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SlotsOfAPage = Annotated[int, Field(le=1 << 31)]
"""What no page has more of: sums and quotients of it stay within 64 bits."""
Index = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""What a tensor can hold."""
JsonObject = Annotated[dict[str, Any], BeforeValidator(plain)]
Scalar = Annotated[bool | int | float | str | None, BeforeValidator(plain)]


class Record(BaseModel):
    """Frozen; keeps unknown fields, so that a newer minor version survives reading and writing again."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Layer(Record):
    """The attention layer at fault. id: as the target model counts, None if the site serves all layers."""

    id: int | None = None
    type: Literal["sliding", "full"] | None = None


class Provenance(Record):
    """Whose index space the table is in, and whose buffer it is about to index."""

    table_space: IndexSpace = "unknown"
    buffer_space: IndexSpace = "unknown"
    table_origin: str = ""
    buffer_origin: str = ""
    explanation: str = ""


class Graph(Record):
    """CUDA graph state at the site. bucket: captured batch size, None outside a graph."""

    captured: bool = False
    bucket: int | None = None


class Host(Record):
    hostname: str
    pid: int
    rank: int = 0


class Offence(Record):
    """One bad index: `value` at [row, column] of `table`, which had to satisfy lower <= value < upper."""

    table: str
    row: Index
    column: Index
    value: Index
    lower: Index
    upper: Index
    request_slot: int | None = None


class Dropped(Record):
    """What is not here.

    Attributes:
        dumps: Dumps that this store has not kept so far, because of its caps or as a repetition.
        events: Events left out of this dump.
        tensors: Tensors left out of this dump.
    """

    dumps: Size = 0
    events: Size = 0
    tensors: Size = 0


class Truncation(Record):
    """A tensor that is shorter than it was (along dimension 0) or left out (to_shape None)."""

    from_shape: tuple[int, ...]
    to_shape: tuple[int, ...] | None
    reason: str


class FileRecord(Record):
    sha256: Sha256
    size_bytes: Size


class TensorRecord(Record):
    """Layout of a stored tensor. The file holds its values densely; stride and storage_offset count elements."""

    shape: tuple[Size, ...]
    dtype: str
    stride: tuple[int, ...]
    storage_offset: Size = 0
    truncated_from_shape: tuple[Size, ...] | None = None


class Manifest(Record):
    """Everything about a violation except its tensors and its events.

    Attributes:
        included: What it holds of the requests because someone asked for it, "kv" or "tokens"; see `included.py`.
        notes: What a reader of the evidence has to know, in sentences.
        manifest_sha256: Of all the other fields, see `manifest_file.sealed`; since schema 1.1.
    """

    schema_version: str = Field(default=SCHEMA_VERSION, pattern=r"^\d{1,6}\.\d{1,6}$")
    dump_id: str
    created_utc: AwareDatetime
    rule: str
    verdict: str
    summary: str
    mode: Literal["log", "contain", "trap"]
    action: Literal["logged", "contained", "trapped"]
    site: str
    layer: Layer = Layer()
    pool_kind: Literal["full", "swa", "draft"] | None = None
    provenance: Provenance = Provenance()
    role: Literal["target", "draft"] | None = None
    backend: str | None = None
    forward_mode: str | None = None
    graph: Graph = Graph()
    step: int | None = None
    page_size: SlotsOfAPage | None = None
    extents: dict[str, int] = {}
    scalars: dict[str, Scalar] = {}
    offences: tuple[Offence, ...] = ()
    offence_count: Size = 0
    versions: dict[str, str] = {}
    gpu: JsonObject | None = None
    host: Host
    launch_args: tuple[str, ...] = ()
    guards: JsonObject = {}
    repeat_command: str | None = None
    included: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dropped: Dropped = Dropped()
    truncated: dict[str, Truncation] = {}
    files: dict[FileName, FileRecord] = {}
    tensors: dict[str, TensorRecord] = {}
    manifest_sha256: Sha256 | None = None


class Unread(BaseModel):
    """Some JSON object that nobody looks into."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Heading(BaseModel):
    """What a list of dumps shows of a manifest: these fields are checked as `Manifest` has them, the others unread.

    A folder may hold 10^5 manifests, and one of a leak audit has hundreds of values.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: str = Field(default=SCHEMA_VERSION, pattern=r"^\d{1,6}\.\d{1,6}$")
    created_utc: AwareDatetime
    rule: str
    verdict: str
    summary: str
    action: Literal["logged", "contained", "trapped"]
    site: str
    layer: Layer = Layer()
    role: Literal["target", "draft"] | None = None
    step: int | None = None
    offence_count: Size = 0
    included: tuple[str, ...] = ()
    files: dict[FileName, FileRecord] = {}
    tensors: dict[str, Unread] = {}


def manifest_json_schema() -> dict[str, Any]:
    """Return the JSON schema of a manifest, as published in manifest.schema.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Manifest.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(manifest_json_schema(), indent=2))
