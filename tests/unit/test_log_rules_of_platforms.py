"""What asks for CUDA on a machine that has none: neither drivers, containers nor CUDA_HOME are at fault there."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.other_platform import platform
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import TRACEBACK, decode, found_in, stamp

HIT = f"{stamp(1)} Scheduler hit an exception: {TRACEBACK}"
START = "python -m sglang.launch_server --model-path m {}\n"
FRAME = '  File "/s/python/sglang/srt/{}", line 12, in run\n    call()\n'
LAZY = '  File "/v/site-packages/torch/cuda/__init__.py", line 3, in _lazy_init\n'
NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled\n"
NO_TOOLKIT = "RuntimeError: Could not find CUDA installation. Please set CUDA_HOME environment variable.\n"
AMD = "# 8x MI300X, rocm image\n"


def leads(*lines: str):
    return findings(read_log("server.log", ["".join(lines).encode()]))[0]


def died(last: str, file: str = "layers/mhc.py", *more: str) -> str:
    return HIT + FRAME.format(file) + "".join(more) + last


class TestNoGpu:
    @pytest.mark.parametrize(
        ("given", "named"),
        [
            ("--device xpu", "Intel GPUs"),
            ("--attention-backend intel_amx", "a CPU alone"),
            ("--device npu", "Ascend NPUs"),
        ],
    )
    def test_code_of_cuda_on_another_device_is_the_releases(self, given, named):
        finding = leads(START.format(given), died(NO_CUDA, "layers/mhc.py", LAZY))
        assert (finding.rule, finding.confidence) == ("no-gpu", Confidence.LIKELY)
        assert "layers/mhc.py" in finding.cause
        assert named in finding.cause
        assert "--gpus all" not in " ".join(finding.advice)
        assert "release" in finding.advice[0]

    def test_a_quantised_layer_can_go_without(self):
        file = "layers/quantization/compressed_tensors/compressed_tensors.py"
        found = findings(read_log("a.log", [(START.format("--device xpu") + died(NO_CUDA, file, LAZY)).encode()]))
        assert [one.rule for one in found] == ["no-gpu"]
        assert "bfloat16" in found[0].advice[-1]

    def test_where_nothing_names_a_device_both_are_said(self):
        finding = leads(START.format(""), died(NO_CUDA, "layers/mhc.py", LAZY))
        assert finding.confidence is Confidence.LIKELY
        assert "a build without CUDA" in finding.cause
        assert "--device cpu, xpu, npu" in " ".join(finding.advice)

    def test_no_gpu_of_nvidia_is_as_certain_as_before(self):
        finding = leads(START.format(""), died("RuntimeError: No CUDA GPUs are available\n"))
        assert finding.confidence is Confidence.CERTAIN
        assert "--gpus all" in finding.advice[0]

    def test_of_amd_devices_are_handed_to_the_container(self):
        finding = leads(AMD, START.format(""), died("RuntimeError: No HIP GPUs are available\n"))
        assert "/dev/kfd" in finding.advice[0]


class TestToolkit:
    def test_a_kernel_that_is_compiled_as_it_runs(self):
        finding = leads(AMD, died(NO_TOOLKIT, "jit_kernel/pos_enc.py"))
        assert finding.cause.startswith("The log speaks of AMD GPUs")
        assert "CUDA_HOME and nvcc do not help" in finding.advice[0]

    def test_on_a_machine_of_nvidia_it_is_the_toolkit(self):
        assert "set CUDA_HOME" in leads(died(NO_TOOLKIT, "jit_kernel/pos_enc.py")).advice[0]

    CMAKE = "CMake Error at /usr/share/cmake/Modules/Internal/CMakeCUDAFindToolkit.cmake:104 (message):\n"

    def test_a_build_of_kernels(self):
        finding = leads(self.CMAKE, "  Failed to find nvcc.\n", "$ ls /opt/rocm/bin/hipcc\n")
        assert "setup_rocm.py" in finding.advice[0]
        assert "this build asks for nvcc" in finding.cause

    def test_a_build_of_which_nothing_says_where_names_both(self):
        finding = leads(self.CMAKE, "  Failed to find nvcc.\n")
        assert "no CUDA toolkit" in finding.cause
        assert finding.advice[0].startswith("on a machine of NVIDIA")

    LIBRARY = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n"

    def test_a_wheel_for_nvidia(self):
        hip = "[W326 11:03:17.2 HIPAllocatorConfig.h:29] Warning: expandable_segments not supported on this platform\n"
        assert "built for GPUs of NVIDIA" in leads(hip, died(self.LIBRARY)).cause
        assert "the driver's own library" in leads(died(self.LIBRARY)).cause

    def test_a_kernel_that_the_build_for_it_lacks(self):
        lacks = "AttributeError: '_OpNamespace' 'sgl_kernel' object has no attribute 'awq_dequantize'\n"
        assert leads(AMD, died(lacks)).advice[0].startswith("the log speaks of AMD GPUs")
        assert "for this CUDA" in leads(died(lacks)).advice[0]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (AMD, "rocm"),
        ("# Intel Arc Pro B60, torch 2.11+xpu\n", "xpu"),
        ("export SGLANG_USE_CPU_ENGINE=1\n", "cpu"),
        (START.format("--device npu"), "npu"),
        (START.format("--device cuda"), ""),
        ("# MI note: a memory of 300 GB\n", ""),
        (AMD + f"{stamp(1)} NVIDIA B200 found\n", ""),
    ],
)
def test_what_names_a_platform(line, named):
    assert platform(read_log("a.log", [line.encode()])) == named


class TestSuspects:
    @staticmethod
    def of(*lines: str) -> list[str]:
        facts = read_log("a.log", ["".join(lines).encode()])
        assert findings(facts) == ()
        return [one.id for one in suspects(facts)]

    FP8 = "python -m sglang.launch_server --model-path zai-org/GLM-5-FP8 --tp 4\n"

    def test_fp8_on_amd(self):
        assert "fp8-on-rocm" in self.of(AMD, self.FP8, decode(1))
        assert "fp8-on-rocm" not in self.of(self.FP8, decode(1))
        assert "fp8-on-rocm" not in self.of(AMD, START.format(""), decode(1))

    def test_kernels_of_consumer_blackwell_by_a_note(self):
        assert "fp8-on-rtx-blackwell" in self.of("# DGX Spark (GB10)\n", self.FP8, decode(1))

    def test_pictures_in_batches(self):
        up = f"{stamp(1)} The server is fired up and ready to roll!\n"
        assert "pictures-in-batches" in self.of(START.format("--batching-mode dynamic"), up)
        assert "pictures-in-batches" not in self.of(START.format(""), up)

    def test_a_draft_of_a_quantised_copy(self):
        given = "--quantization modelslim --speculative-algorithm NEXTN"
        told = [START.format(given), decode(1, accept=1.07), decode(2, accept=1.07)]
        assert self.of(*told)[0] == "draft-of-a-quantised-copy"
        assert "draft-of-a-quantised-copy" not in self.of(START.format(given), decode(1, accept=2.4), decode(2))

    def test_a_compiler_that_was_seen_at_work(self):
        seen = "#  cicc --c++17 flashinfer/data/csrc/cascade.cu -arch compute_80\n"
        assert self.of(decode(1), seen, decode(2))[0] == "compiled-at-work"
        assert "compiled-at-work" not in self.of(decode(1), "# nvcc is installed\n", decode(2))

    def test_a_platform_comes_before_what_is_of_encoders(self):
        ids = self.of(START.format("--device npu --is-embedding"), decode(1))
        assert ids.index("platform") < ids.index("encoder")


class TestNotedStanding:
    WARM = "".join(
        (
            START.format("--tp 2 --mm-enable-dp-encoder"),
            f"{stamp(1)} INFO:     Application startup complete.\n",
            f"{stamp(2)} Prefill batch, #new-seq: 1, #new-token: 85, #cached-token: 0, token usage: 0.00, "
            "#running-req: 0, #queue-req: 0,\n",
        )
    )
    NOTE = "# nothing more: the warm-up request hangs\n"

    def test_a_warm_up_that_does_not_end(self):
        (finding,) = found_in([self.WARM, self.NOTE])
        assert (finding.rule, finding.confidence) == ("noted-silence", Confidence.POSSIBLE)
        assert finding.advice[0].startswith("without --mm-enable-dp-encoder")

    def test_without_that_option_stacks_come_first(self):
        (finding,) = found_in([self.WARM.replace("--mm-enable-dp-encoder", ""), self.NOTE])
        assert finding.advice[0].startswith("py-spy")

    def test_without_a_note_there_is_none_and_with_work_behind_it_a_trouble_alone(self):
        assert found_in([self.WARM]) == ()
        assert [one.rule for one in found_in([self.WARM, self.NOTE, decode(3)])] == ["noted-trouble"]

    def test_a_start_that_stands_in_the_capture(self):
        begun = f"{stamp(1)} Capture cuda graph begin. This can take up to several minutes.\n"
        (finding,) = found_in([START.format(""), begun, "# stuck here, no error\n"])
        assert finding.rule == "noted-silence"
        assert "rm -r ~/.cache/flashinfer" in finding.advice[0]
        assert found_in([START.format(""), begun]) == ()


OPERATOR = "RuntimeError: The Inner error is reported as above, and the current working operator name is {}.\n"
ON_AN_NPU = (
    "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', device='npu', attention_backend='ascend', "
    "chunked_prefill_size=8192{})\n"
)
DRAFTED = ", speculative_algorithm='EAGLE3'"
PICTURES = "# only with pictures in the request\n"


@pytest.mark.parametrize("name", ["GatherV2", "IndexPutV2", "EmbeddingDenseGrad", "aclnnIndexSelect", "ScatterUpdate"])
def test_an_operator_of_an_npu_that_looks_up_is_no_kernel_of_attention(name):
    found = leads(ON_AN_NPU.format(""), died(OPERATOR.format(name), "layers/vocab_parallel_embedding.py"))
    assert "looks rows up by number" in found.cause
    assert "--max-running-requests" not in "\n".join(found.advice)


def test_of_another_operator_nobody_says_that_it_is_of_attention():
    found = leads(ON_AN_NPU.format(""), died(OPERATOR.format("aclnnGroupedMatmulV4")))
    assert "Which part of the model calls that, the words do not say" in found.cause
    assert "--max-running-requests" not in "\n".join(found.advice)
    of_attention = leads(ON_AN_NPU.format(""), died(OPERATOR.format("PagedAttentionOperation")))
    assert "--max-running-requests" in "\n".join(of_attention.advice)


def test_with_drafts_and_pictures_a_look_up_on_an_npu_is_of_ids_above_the_vocabulary():
    fell = died(OPERATOR.format("GatherV2"), "layers/vocab_parallel_embedding.py")
    assert "SGLang 27863" in leads(ON_AN_NPU.format(DRAFTED), PICTURES, fell).advice[0]
    for lines in ((ON_AN_NPU.format(""), PICTURES, fell), (ON_AN_NPU.format(DRAFTED), fell)):
        assert "SGLang 27863" not in "\n".join(leads(*lines).advice)
