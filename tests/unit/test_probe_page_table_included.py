"""KV values and token ids in the page-table probe's dumps: only when asked for, only of the rows concerned."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import slot_list_backends
from gemma4_dumps.caps import StoreCaps
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.included import KEYS, PAGE_IDS, TOKEN_IDS, TOKEN_INDPTR, TOKEN_ROWS, VALUES
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_runtime import current, steps
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.indices import included
from gemma4_runtime.indices.buffers import layer_buffers
from gemma4_runtime.probes import page_table
from gemma4_runtime.steps import Running, Step
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.run import replay
from slot_list_backends import triton_backends
from trtllm_world import FULL, PAGE, SLIDING, STAND_INS, batch, build, fill, trtllm_backend

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

ALL_OF_THEM = {KEYS, VALUES, PAGE_IDS, TOKEN_IDS, TOKEN_INDPTR, TOKEN_ROWS}


@pytest.fixture
def backend(swa_allocator):
    return trtllm_backend(swa_allocator)


@pytest.fixture
def pool(swa_allocator):
    """Return the pool pair, each slot of each layer with values of its own."""
    found = swa_allocator.get_kvcache()
    for layer_id in (SLIDING, 1, FULL):
        for number, buffer in enumerate(layer_buffers(found, layer_id)[:2]):
            generator = torch.Generator().manual_seed(10 * layer_id + number)
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return found


def ask(monkeypatch, words):
    monkeypatch.setenv("GEMMA4_TRIAGE_INCLUDE", words)


def pages_of(pool, layer_id):
    """Keys and values [pages, page_size, heads, head_dim] of a layer."""
    return tuple(part.unflatten(0, (-1, PAGE)).numpy() for part in layer_buffers(pool, layer_id)[:2])


def spoil(backend, row, column, page=65):
    """Spoil an entry of the finished SWA table, and ask the probe again."""
    backend.forward_metadata.swa_page_table[row, column] = page


def violation(backend, lengths):
    with pytest.raises(TrappedViolation) as caught:
        page_table.after_metadata(None, backend, batch(lengths))
    return read_dump(caught.value.dump)


class TestKeysAndValues:
    def test_of_the_offending_row_alone_and_bit_for_bit(self, attach, monkeypatch, backend, pool, swa_allocator):
        ask(monkeypatch, "kv")
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        right = backend.forward_metadata.swa_page_table[1, :7].tolist()
        spoil(backend, 1, 6)
        dump = violation(backend, [33, 100])
        # The entry that went wrong is 65 of 65, which is not read; what it should have been is.
        ids = dump.tensor(PAGE_IDS).tolist()
        assert ids == right[::-1]
        keys, values = pages_of(pool, SLIDING)
        np.testing.assert_array_equal(dump.tensor(KEYS), keys[ids])
        np.testing.assert_array_equal(dump.tensor(VALUES), values[ids])
        assert dump.manifest.included == ("kv",)
        assert dump.manifest.notes == ()
        assert dump.manifest.guards["settings"]["include"] == ["kv"]
        assert verify_dump(dump.path).ok
        assert not {TOKEN_IDS, TOKEN_INDPTR, TOKEN_ROWS} & dump.manifest.tensors.keys()

    def test_nothing_without_being_asked(self, attach, backend, pool, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        spoil(backend, 1, 6)
        request = SimpleNamespace(origin_input_ids=[424242], output_ids=[])
        with pytest.raises(TrappedViolation) as caught, Running(Step(3, (request, request))):
            page_table.after_metadata(None, backend, batch([33, 100]))
        dump = read_dump(caught.value.dump)
        assert (dump.manifest.included, dump.manifest.notes) == ((), ())
        assert not ALL_OF_THEM & dump.manifest.tensors.keys()
        assert not [name for name, record in dump.manifest.tensors.items() if not record.dtype.startswith("int")]
        held = b"".join(path.read_bytes() for path in dump.path.iterdir())
        keys, _ = pages_of(pool, SLIDING)
        for page in backend.forward_metadata.swa_page_table[1, :6].tolist():
            assert keys[page, 0, 0].tobytes() not in held
        assert np.int64(424242).tobytes() not in held

    def test_nothing_is_read_while_all_is_well(self, attach, monkeypatch, backend, pool, swa_allocator):
        ask(monkeypatch, "kv,tokens")
        attach("log", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        monkeypatch.setattr(included, "layer_buffers", lambda *_: pytest.fail("KV was read"))
        monkeypatch.setattr(steps, "request_of", lambda *_: pytest.fail("a request was read"))
        build(backend, batch([33, 100]))

    def test_another_pools_ids_concern_every_request_but_no_padding(
        self, attach, monkeypatch, backend, pool, swa_allocator
    ):
        ask(monkeypatch, "kv")
        attach("trap", "page-table", *STAND_INS)
        swa_allocator.clear()
        fill(backend, swa_allocator, [33, 50])
        backend._swa_kv_pool = None
        with pytest.raises(TrappedViolation, match="full page ids on the swa buffer") as caught:
            build(backend, batch([33, 50, 1], rows=[1, 2, 0]))
        dump = read_dump(caught.value.dump)
        assert dump.manifest.verdict == "wrong_space"
        named = backend.forward_metadata.page_table
        # The row that is shown comes first; page 0 is nobody's.
        assert dump.tensor(PAGE_IDS).tolist() == [*named[0, :3].tolist(), *named[1, :4].tolist()]

    @pytest.mark.parametrize("include", ["kv", "tokens", "tokens,kv"])
    def test_a_write_location_has_no_keys(self, attach, monkeypatch, backend, pool, swa_allocator, include):
        ask(monkeypatch, include)
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33])
        forward_batch.out_cache_loc = torch.tensor([170 * PAGE])
        backend.use_sliding_window_kv_pool = False
        with pytest.raises(TrappedViolation, match="out_cache_loc") as caught:
            build(backend, forward_batch)
        dump = read_dump(caught.value.dump)
        assert dump.manifest.included == ()
        said = {"kv": "no KV values: out_cache_loc says where", "tokens": "no token ids: these rows belong to no"}
        assert len(dump.manifest.notes) == len(include.split(","))
        for word in include.split(","):
            assert any(note.startswith(said[word]) for note in dump.manifest.notes)

    def test_what_does_not_fit_is_counted_and_the_nearest_stay(self, attach, monkeypatch, backend, pool, swa_allocator):
        ask(monkeypatch, "kv")
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 200])
        build(backend, batch([33, 200]))
        right = backend.forward_metadata.swa_page_table[1, :13].tolist()
        spoil(backend, 1, 5)
        # A page is 16 slots of 2 heads of 8 floats, keys and values: 2 KiB.
        monkeypatch.setattr(current.guard(), "_caps", StoreCaps(bytes_per_dump=24 * 1024))
        dump = violation(backend, [33, 200])
        ids = dump.tensor(PAGE_IDS).tolist()
        assert 1 < len(ids) < 13
        assert ids == [right[column] for column in (5, 4, 6, 3, 7, 2, 8, 1, 9, 0, 10, 11, 12)][: len(ids)]
        np.testing.assert_array_equal(dump.tensor(VALUES), pages_of(pool, SLIDING)[1][ids])
        for name in (PAGE_IDS, KEYS, VALUES):
            cut = dump.manifest.truncated[name]
            assert (cut.from_shape[0], cut.to_shape[0]) == (13, len(ids))
            assert dump.manifest.tensors[name].truncated_from_shape == cut.from_shape
        assert sum(path.stat().st_size for path in dump.path.iterdir()) <= 24 * 1024
        # The window hides the others.
        assert replay(dump, ReplayOptions()).values_from.startswith("from the dump for ")

    @pytest.mark.parametrize(("mode", "later"), [("trap", False), ("log", True), ("contain", True)])
    def test_whether_they_may_be_of_later_is_said(self, attach, monkeypatch, backend, pool, swa_allocator, mode, later):
        ask(monkeypatch, "kv")
        dumps = attach(mode, "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        spoil(backend, 1, 6)
        if mode == "log":
            page_table.after_metadata(None, backend, batch([33, 100]))
            (path,) = [path for path in dumps.iterdir() if path.name.startswith("20")]
            dump = read_dump(path)
        else:
            dump = violation(backend, [33, 100])
        assert [note.startswith("KV values are of when this dump was written") for note in dump.manifest.notes] == (
            [True] * later
        )
        assert len(dump.tensor(PAGE_IDS)) == 7

    def test_a_failure_is_a_note_and_the_trap_comes(self, attach, monkeypatch, backend, pool, swa_allocator):
        ask(monkeypatch, "kv,tokens")
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        spoil(backend, 1, 6)

        class Dead(list):
            def __getitem__(self, index):
                raise RuntimeError("CUDA error: an illegal memory access\nand more")

        monkeypatch.setattr(pool.swa_kv_pool, "v_buffer", Dead())
        # A request that has no token ids to give.
        with pytest.raises(TrappedViolation, match="page 65 of 65") as caught, Running(Step(3, ("no", "request"))):
            page_table.after_metadata(None, backend, batch([33, 100]))
        assert caught.value.__cause__ is None
        dump = read_dump(caught.value.dump)
        assert (dump.manifest.included, dump.manifest.verdict) == ((), "out_of_range")
        assert dump.tensor("swa_page_table")[1, 6] == 65
        assert dump.manifest.notes == (
            "token ids could not be read: AttributeError: 'str' object has no attribute 'origin_input_ids'",
            "KV values could not be read: RuntimeError: CUDA error: an illegal memory access",
        )

    def test_bfloat16_stays_bfloat16(self, attach, monkeypatch, backend, pool, swa_allocator):
        ask(monkeypatch, "kv")
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        spoil(backend, 1, 6)
        inner = pool.swa_kv_pool
        halves = {name: [one.to(torch.bfloat16) for one in getattr(inner, name)] for name in ("k_buffer", "v_buffer")}
        for name, buffers in halves.items():
            monkeypatch.setattr(inner, name, buffers)
        monkeypatch.setattr(inner, "dtype", torch.bfloat16)
        monkeypatch.setattr(inner, "store_dtype", torch.bfloat16)
        dump = violation(backend, [33, 100])
        assert dump.manifest.tensors[KEYS].dtype == "bfloat16"
        ids = dump.tensor(PAGE_IDS).tolist()
        expected = halves["k_buffer"][0].unflatten(0, (-1, PAGE))[ids].float().numpy()
        np.testing.assert_array_equal(dump.as_float32(KEYS), expected)

    def test_eight_bit_floats_that_are_stored_as_bytes(self, attach, monkeypatch, backend, pool, swa_allocator):
        ask(monkeypatch, "kv")
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        spoil(backend, 1, 6)
        inner, float8 = pool.swa_kv_pool, torch.float8_e4m3fn
        for name in ("k_buffer", "v_buffer"):
            stored = [one.to(float8).view(torch.uint8) for one in getattr(inner, name)]
            monkeypatch.setattr(inner, name, stored)
        monkeypatch.setattr(inner, "dtype", float8)
        dump = violation(backend, [33, 100])
        ids = dump.tensor(PAGE_IDS).tolist()
        assert dump.manifest.tensors[VALUES].dtype == "float8_e4m3fn"
        expected = inner.v_buffer[0].view(float8).float().unflatten(0, (-1, PAGE))[ids].numpy()
        np.testing.assert_array_equal(dump.as_float32(VALUES), expected)

    def test_a_list_of_slots(self, attach, monkeypatch, pool, swa_allocator):
        ask(monkeypatch, "kv")
        attach("trap", "page-table", *STAND_INS)
        with triton_backends(swa_allocator, monkeypatch) as make:
            triton = make()
            slot_list_backends.fill(triton, [33, 50])
            swa_allocator.full_to_swa_index_mapping[slot_list_backends.slots_of(triton, 2, 45)] = 65 * PAGE
            with pytest.raises(TrappedViolation) as caught:
                triton.init_forward_metadata(slot_list_backends.batch([33, 50]))
        dump = read_dump(caught.value.dump)
        offence = dump.manifest.offences[0]
        indptr = dump.tensor(f"{offence.table}_indptr")
        slots = dump.tensor(offence.table)[indptr[offence.row] : indptr[offence.row + 1]]
        inside = {slot // PAGE for slot in slots.tolist() if PAGE <= slot < offence.upper}
        ids = dump.tensor(PAGE_IDS).tolist()
        # The offence stands at position 45 of a list that begins at 19.
        assert (ids, inside) == ([6, 7, 5], {5, 6, 7})
        # Where no entry is worse than the others, as with another pool's slots: from the first on.
        made = SimpleNamespace(array=lambda _: triton._gemma4_build.array(offence.table), page_size=PAGE)
        evidence = {
            name: TensorPayload.from_array(dump.tensor(name)) for name in (offence.table, f"{offence.table}_indptr")
        }
        use = SimpleNamespace(array=offence.table)
        assert included._nearest_pages(made, use, evidence, (offence.row,), (), 65) == [5, 6, 7]
        keys, _ = pages_of(pool, dump.manifest.layer.id)
        np.testing.assert_array_equal(dump.tensor(KEYS), keys[ids])


class TestTokenIds:
    def test_of_the_requests_concerned(self, attach, monkeypatch, backend, swa_allocator):
        ask(monkeypatch, "tokens")
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        spoil(backend, 1, 6)
        requests = [
            SimpleNamespace(origin_input_ids=[5, 6, 7], output_ids=[8]),
            SimpleNamespace(origin_input_ids=[9, 262_143], output_ids=[11, 12]),
        ]
        with pytest.raises(TrappedViolation) as caught, Running(Step(3, tuple(requests))):
            page_table.after_metadata(None, backend, batch([33, 100]))
        dump = read_dump(caught.value.dump)
        assert dump.tensor(TOKEN_IDS).tolist() == [9, 262_143, 11, 12]
        assert (dump.tensor(TOKEN_INDPTR).tolist(), dump.tensor(TOKEN_ROWS).tolist()) == ([0, 4], [1])
        assert (dump.manifest.included, dump.manifest.notes) == (("tokens",), ())
        assert KEYS not in dump.manifest.tensors

    def test_what_does_not_fit_is_counted(self, attach, monkeypatch, backend, swa_allocator):
        ask(monkeypatch, "tokens")
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        spoil(backend, 1, 6)
        monkeypatch.setattr(current.guard(), "_caps", StoreCaps(bytes_per_dump=32 * 1024))
        request = SimpleNamespace(origin_input_ids=list(range(9000)), output_ids=[1, 2])
        with pytest.raises(TrappedViolation) as caught, Running(Step(3, (request, request))):
            page_table.after_metadata(None, backend, batch([33, 100]))
        dump = read_dump(caught.value.dump)
        kept = len(dump.tensor(TOKEN_IDS))
        assert 100 < kept < 4096
        assert dump.tensor(TOKEN_IDS).tolist() == list(range(kept))
        assert dump.tensor(TOKEN_INDPTR).tolist() == [0, 9002]
        assert dump.manifest.truncated[TOKEN_IDS].from_shape == (9002,)

    def test_while_results_are_read_they_are_of_the_step_that_is_read(self):
        first, second = Step(1, ("a",)), Step(2, ("b",))
        seen = []
        first.unread.append(lambda: seen.append(steps.request_of(0)))
        with Running(second):
            assert steps.request_of(0) == "b"
            first.settle()
        assert seen == ["a"]
        assert steps.request_of(0) is None

    def test_two_rows_of_one_request_are_one(self, attach, monkeypatch, backend, swa_allocator):
        ask(monkeypatch, "tokens")
        attach("trap", "page-table", *STAND_INS)
        made = SimpleNamespace(rows_per_request=2)
        request = SimpleNamespace(origin_input_ids=[5], output_ids=[])
        with Running(Step(3, (request,))):
            found, notes = included.included(made, None, {}, (1, 0), ())
        assert (found[TOKEN_ROWS].data.tolist(), found[TOKEN_IDS].data.tolist(), notes) == ([0], [5], ())
