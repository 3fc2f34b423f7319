"""Claims that a start line, a pool or a split of servers narrows, and suspects of slow servers that load lines show."""

import pytest

from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import TRACEBACK, death, decode, died, found_in, only, prefill, stamp, started, told

STORE = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
STORE += "port: {}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
REFUSED = "Input length (90000 tokens) exceeds the maximum allowed length ({} tokens). Use a shorter input.\n"
POOLS = f"{stamp(0)} Use sliding window memory pool. full_layer_tokens=100000, swa_layer_tokens=20000\n"
NO_MODULE = (
    "ValueError: Cannot find target module name for base_model.model.model.layers.0.{}.lora_A.weight in {{'o_proj'}}"
)
NOT_STARTED = (
    "with exception KVTransferError(bootstrap_room=7): Request 7 timed out after 300.0s in KVPoll.Bootstrapping\n"
)
TIME_OUT = f"{stamp(9)} Decode transfer failed for request rank=0 decode_req.req.rid='a' {NOT_STARTED}"
COPIES = "disaggregation_decode_enable_offload_kvcache"
NO_ROOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.48 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 12.40 GiB is free. Process 20 has 46.02 GiB memory in use. Process 21 has 20.61 GiB memory in use.\n"
)
UNREAD = "Prefetch operation 0f failed to retrieve page 5b.\n"
SLOW = "E0714 22:51:09.771223  4410 transfer_task.cpp:204] Failed to complete transfers after 30 seconds for batch 1\n"


def shown(*lines: str) -> list[str]:
    return [one.id for one in suspects(read_log("server.log", ["".join(lines).encode()]))]


def test_a_port_that_the_start_names_was_not_chosen():
    asked = {"dist_init_addr": "10.0.0.1:20000", "nnodes": 2}
    of_replicas = only([started(dp_size=2, enable_dp_attention=False, **asked), death(1, STORE.format(20000))])
    assert "each of the 2 replicas" in of_replicas.cause
    of_one = only([started(dp_size=1, **asked), death(1, STORE.format(20000))])
    assert "ss -ltnp" in told(of_one)
    another = only([started(dp_size=2, **asked), death(1, STORE.format(43117))])
    assert "between choosing and using" in another.cause


@pytest.mark.parametrize(
    ("module", "words"),
    [("linear_attn.in_proj_qkvz", "merge the adapter"), ("mlp.down_proj", "--lora-target-modules all")],
)
def test_a_module_that_no_argument_adds_is_told_from_one_that_was_left_out(module, words):
    assert words in told(only([death(1, NO_MODULE.format(module), frame="lora/utils.py")]))


def test_a_limit_of_the_windows_pool_is_no_healthy_refusal_and_one_of_the_context_is():
    lines = [POOLS, prefill(1), f"{stamp(2)} {REFUSED.format(19994)}", decode(3)]
    finding = only(lines)
    assert finding.rule == "refused-for-room"
    assert "--disable-hybrid-swa-memory" in told(finding)
    assert found_in([POOLS, prefill(1), f"{stamp(2)} {REFUSED.format(65530)}", decode(3)]) == ()


def test_a_refusal_of_a_split_server_is_suspected_for_what_its_client_gets():
    lines = [prefill(1), f"{stamp(2)} {REFUSED.format(65530)}", decode(3)]
    assert shown(started(disaggregation_mode="prefill"), *lines)[0] == "refusal-behind-a-split"
    assert "refusal-behind-a-split" not in shown(started(disaggregation_mode="null"), *lines)


def test_a_full_pool_of_which_hardly_a_request_runs_is_no_want_of_capacity():
    start = started(disaggregation_mode="decode", **{COPIES: True})
    kept = only([start, decode(1, running=44), decode(2, running=0, full=0.97, graph=False), TIME_OUT])
    assert kept.rule == "kv-transfer"
    assert kept.advice[0].startswith(f"without --{COPIES.replace('_', '-')}")
    for last in (decode(2, running=40, full=0.97), decode(2, running=0, full=0.1)):
        assert "more decode capacity or fewer requests" in told(only([start, decode(1, running=44), last, TIME_OUT]))


def test_a_trainer_beside_a_server_is_not_told_of_activations():
    frames = '  File "/root/megatron/core/distributed/param_and_grad_buffer.py", line 741, in __init__\n    zeros()\n'
    lines = [POOLS, f"{stamp(2)} trainer\n{TRACEBACK}{frames}{NO_ROOM}"]
    told_of = told(only([started(enable_memory_saver=True), *lines]))
    assert "process 20 holds 46.0 GiB" in told_of
    assert "--disable-hybrid-swa-memory" in told_of
    assert "The trainer, not the server" not in told(only([started(enable_memory_saver=False), *lines]))


def test_pages_that_are_listed_and_not_read_are_of_a_store_that_lost_them():
    lines = [prefill(1), SLOW, f"{stamp(2)} {UNREAD}", SLOW, f"{stamp(3)} {UNREAD}", decode(4)]
    assert "take its segment out of the store" in told(found_in(lines)[0])
    assert "segment" not in told(found_in([line for line in lines if line is not SLOW])[0])


@pytest.mark.parametrize(
    ("settings", "lines", "suspect"),
    [
        (
            {"cuda_graph_max_bs": 24},
            [decode(1, running=24), decode(2, running=32, graph=False, rate=800)],
            "batches-above-the-graphs",
        ),
        ({"schedule_policy": "lpm"}, [prefill(1, new=1000, cached=9000, queued=5)], "longest-prefix-first"),
        (
            {"enable_hierarchical_cache": True, "hicache_write_policy": "write_back"},
            [POOLS, prefill(1)],
            "windows-not-written-back",
        ),
    ],
)
def test_load_lines_show_why_a_server_may_be_slow(settings, lines, suspect):
    assert suspect in shown(started(**settings), *lines)
    assert suspect not in shown(started(model_path="m"), *lines)
    assert suspect not in shown(started(**settings), decode(3))


class TestRoomsFeaturesAndGraphs:
    GONE = "FileNotFoundError: [Errno 2] No such file or directory: '/psm_9c2e41fa'"
    BUS = (
        'Fatal Python error: Bus error\n\nCurrent thread 0x1 (most recent call first):\n  File "/a/{}", line 7 in {}\n'
    )
    CAPTURED = f"{stamp(1)} Capture prefill cuda graph begin. backend=tc_piecewise\n"
    EAGER = f"{stamp(2)} Disable prefill CUDA graph because cuda_graph_config resolved\n"

    def test_features_that_a_rank_unpacks_are_not_gone_for_want_of_room(self):
        told_of = told(only([died(self.GONE, ("managers/mm_utils.py", "__setstate__", "x = f(y)"))]))
        assert ("something had removed" in told_of, "--shm-size" in told_of) == (True, False)

    @pytest.mark.parametrize(("file", "function", "room"), [("mm_utils.py", "wrap_shm_features", True),
                                                            ("reader.py", "read_table", False)])  # fmt: skip
    def test_a_bus_error_is_of_shared_memory_where_its_frame_is(self, file, function, room):
        finding = only([decode(1), self.BUS.format(file, function)])
        assert finding.rule == "bus-error"
        assert (finding.confidence.value == "likely", "--shm-size" in told(finding)) == (room, room)

    def test_a_graph_of_prefills_is_suspected_where_one_of_two_starts_has_it(self):
        assert "graph-of-prefills" in shown(self.EAGER, self.CAPTURED, decode(3))
        assert "graph-of-prefills" not in shown(self.CAPTURED, decode(3))
