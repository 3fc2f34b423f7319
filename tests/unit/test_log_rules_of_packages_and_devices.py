"""What words of wheels, compilers, files and operators say, and lines in another form than a server writes."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from made_logs import TRACEBACK, decode, found_in, stamp

HIT = f"{stamp(1)} Scheduler hit an exception: {TRACEBACK}"
FRAME = '  File "/s/python/sglang/srt/{}", line 12, in {}\n    call()\n'
START = "python -m sglang.launch_server --model-path m {}\n"


def leads(*lines: str):
    return findings(read_log("server.log", ["".join(lines).encode()]))[0]


def died(last: str, *frames: str) -> str:
    return HIT + FRAME.format("managers/scheduler.py", "run") + "".join(frames) + last + "\n"


PTXAS = "subprocess.CalledProcessError: Command '['/x/triton/backends/nvidia/bin/ptxas', '-v', '--gpu-name={}', "
PTXAS += "'/tmp/a.ptx', '-o', '/tmp/a.o']' returned non-zero exit status 255."
REGISTERS = "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
REGISTERS += "ptxas fatal: Register allocation failed with register count of '255'."
OLD_PTXAS = (
    "NoTritonConfigsError: No valid triton configs. PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
)
OLD_PTXAS += "`ptxas` stderr:\nptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'"
SITE = "/v/lib/python3.12/site-packages/{}"
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
NOT_THERE = "OSError: {} does not appear to have a file named preprocessor_config.json. Checkout 'https://x' for files."
ARCHITECTURES = "RuntimeError: No supported CUDA architectures found for major versions [9, 10]."
COMM = '  File "/v/site-packages/flashinfer/jit/comm.py", line 61, in gen_trtllm_comm_module\n'
ACTIVATION = "RuntimeError: Invalid activation type. (moe_gemm_template_dispatch.h:1042)"
UNKNOWN_GPU = (
    "RuntimeError: Get GPU arch from rocminfo failed \"Unknown GPU architecture: gfx1101. Supported: ['gfx942']\""
)
BUILD = "RuntimeError: [aiter] build [module_moe_b16] under /opt/aiter/jit/build/module_moe_b16/build failed !!!!!!"
TAKEN = "ray.exceptions.ActorAlreadyExistsError: The name sglang_scheduler_rank0node=10.0.0.7_pp0_tp0 is already taken."
CONV = "RuntimeError: Expected conv_states_.scalar_type() == input_type to be true, but got false."


@pytest.mark.parametrize(
    ("last", "cause", "advice"),
    [
        ("RuntimeError: Could not load libtorchcodec. Likely causes:", "FFmpeg", "install ffmpeg"),
        ("AssertionError: libcudart is not loaded in the current process", "a build without CUDA", "without a GPU"),
        (REGISTERS, "more registers", "another backend of what it computes than triton"),
        (PTXAS.format("sm_103a"), "a kernel for sm_103a", "TRITON_PTXAS_PATH"),
        (OLD_PTXAS, "older than this GPU", "TRITON_PTXAS_PATH"),
        (
            "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!",
            "another torch",
            "pip show torch",
        ),
        ("KeyError: 'sglang.multimodal_gen'", "ended halfway", "python -c 'import sglang.multimodal_gen'"),
        (NO_FILE.format(SITE.format("pkg/a/config.json")), "installed package pkg", "pip install --force-reinstall"),
        (NO_FILE.format("/models/m/config.json"), "A file of the checkpoint", "compare the folder"),
        (NOT_THERE.format("org/model"), "org/model has no file preprocessor_config.json", "hold the folder against"),
        (NOT_THERE.format("/models/m"), "A file of the checkpoint", "compare the folder"),
        ("RuntimeError: Tensor self not implemented for DT_UINT64", "tensors of type DT_UINT64", "a later release"),
        (
            UNKNOWN_GPU,
            "does not know this GPU (gfx1101)",
            "SGLANG_USE_AITER=0 with --attention-backend triton, and sgl-kernel built from source for gfx1101",
        ),
        (BUILD, "a variant that this release of AITER does not have", "the first error above: 'invalid choice'"),
        (TAKEN, "two replicas on one node", "a --port (and --nccl-port) of its own"),
        (ACTIVATION, "activation function", "another --moe-runner-backend"),
        (CONV, "SGLANG_MAMBA_CONV_DTYPE", "--dtype bfloat16"),
        (
            "RuntimeError: flashinfer-cubin version (0.6.8) does not match flashinfer version (0.6.10). Please install",
            "flashinfer-cubin 0.6.8 and flashinfer 0.6.10",
            "pip install both of one version",
        ),
    ],
)
def test_the_words_say_the_cause_and_what_to_do(last, cause, advice):
    finding = leads(died(last))
    assert cause in finding.cause
    assert finding.advice[0].startswith(advice)


def test_an_assembler_that_may_know_the_gpu_is_a_guess():
    assert leads(died(PTXAS.format("sm_120a"))).confidence is Confidence.POSSIBLE
    assert leads(died(PTXAS.format("sm_103a"))).confidence is Confidence.LIKELY


def test_an_exchange_between_gpus_is_not_an_attention_backend():
    assert leads(died(ARCHITECTURES, COMM)).advice[0].startswith("without --enable-flashinfer-allreduce-fusion")
    assert leads(died(ARCHITECTURES)).advice[0].startswith("another backend of what it computes")


def test_what_cann_adds_to_an_exception_is_no_failure_of_its_own():
    cann = "[ERROR] 2026-02-25-09:21:31 (PID:20114, Device:0, RankID:-1) ERR01100 OPS call acl api failed\n"
    first = leads(died("RuntimeError: Tensor self not implemented for DT_UINT64"), cann)
    assert first.rule == "told-by-words"


def test_words_that_name_the_way_round_are_a_failure():
    said = "To work around this error, add {} to your launch command.\n"
    frames = '  File "/v/site-packages/flashinfer/jit/cpp_ext.py", line 91, in f\n    return g()\n'
    finding = leads(frames, "\n", said.format("--disable-piecewise-cuda-graph"))
    assert finding.advice[0].startswith("--disable-piecewise-cuda-graph")
    assert "trace" in finding.cause
    assert leads(said.format("--skip-server-warmup")).advice[0].startswith("--skip-server-warmup")


class TestLines:
    def test_a_symbol_that_lacks_stands_alone(self):
        finding = leads(">>> import sgl_kernel\n", "undefined symbol: c10::cuda::check(int, char const*)\n")
        assert "c10::cuda::check, a name of torch's own" in finding.cause
        assert found_in([decode(1), "# an undefined symbol was mended\n", decode(2)]) == ()

    def test_an_exception_behind_a_blank(self):
        frame = '  File "/v/site-packages/flashinfer/jit/env.py", line 3, in _check_version\n'
        finding = leads("$ python deploy.py\n", frame, " RuntimeError: a version (1) does not match b version (2).\n")
        assert "a 1 and b 2 are installed together" in finding.cause

    def test_stages_of_vllm_stand_before_a_line(self):
        lines = ("EngineCore encountered a fatal error.", "RuntimeError: Missing prefill tokens of a stage")
        before = "(StageEngineCoreProc stage=1 pid=2466) ERROR "
        assert "Missing prefill tokens" in leads(*(f"{before}{line}\n" for line in lines)).cause

    def test_a_server_that_answered_did_not_die_before_its_first_request(self):
        answer = '(APIServer pid=1) INFO:     127.0.0.1:50412 - "POST /v1/audio/speech HTTP/1.1" 200 OK\n'
        ended = "(StageEngineCoreProc stage=1 pid=2) ERROR RuntimeError: Missing prefill tokens of a stage\n"
        assert leads("vllm serve a/b\n", answer, ended).advice[-1].startswith("send the last requests")
        assert not leads("vllm serve a/b\n", ended).advice[-1].startswith("send the last requests")

    def test_a_kernel_that_refuses_the_gpu(self):
        finding = leads("This kernel only supports sm100f.\n")
        assert "built for sm100f alone" in finding.cause


class TestPip:
    LAST = "ERROR: No matching distribution found for sglang-kernel\n"

    def test_a_wheel_that_was_renamed(self):
        said = (
            "Discarding a-0.4.0+cu130.whl: has inconsistent version: expected '0.4.0+cu130', but metadata has '0.4.0'\n"
        )
        finding = leads(said, self.LAST)
        assert finding.confidence is Confidence.LIKELY
        assert "expected '0.4.0+cu130'" in finding.cause
        assert finding.advice[0].startswith("another release of that package")

    def test_windows(self):
        finding = leads("  Using cached aiohttp-3.11.18-cp313-cp313-win_amd64.whl.metadata (8.0 kB)\n", self.LAST)
        assert "no wheel for Windows" in finding.cause
        assert "WSL 2" in finding.advice[0]

    def test_else_it_is_not_known(self):
        assert leads(self.LAST).cause.startswith("Unknown cause: pip found nothing")


class TestJustInstalled:
    DIED = "AttributeError: 'Var' object has no attribute 'scope'\n"

    @pytest.mark.parametrize(
        ("note", "named"),
        [
            ("# after: pip install git+https://github.com/apache/tvm-ffi.git\n", "tvm-ffi was installed anew"),
            ("$ pip install -U vllm\n", "vllm was installed anew"),
        ],
    )
    def test_what_was_installed_before_leads(self, note, named):
        assert named in leads(note, self.DIED).advice[0]

    @pytest.mark.parametrize(
        "note", ["# tried pip install -U torch, same error\n", "$ pip install sglang\n", "# pip list\n"]
    )
    def test_what_changed_nothing_does_not(self, note):
        assert "installed anew" not in leads(note, self.DIED).advice[0]

    def test_nor_what_was_installed_after(self):
        assert "installed anew" not in leads(self.DIED, "# pip install -U torch\n").advice[0]


class TestWeights:
    def test_an_update_meets_parameters_without_loaders(self):
        frames = (FRAME.format("model_executor/model_runner.py", name) for name in ("update_weights_from_disk", "load"))
        last = "AttributeError: 'Parameter' object has no attribute 'weight_loader'"
        loads = FRAME.format("models/deepseek_v2.py", "load_weights")
        finding = leads(died(last, *frames, loads, loads))
        assert "put new weights into the running server" in finding.cause
        assert "put new weights" not in leads(died(last, loads)).cause

    NARROW = "RuntimeError: start ({}) + length (384) exceeds dimension size ({})."

    def test_a_share_that_was_cut_before(self):
        loads = FRAME.format("layers/moe/fused_moe_triton/layer.py", "_load_w13")
        finding = leads(died(self.NARROW.format(384, 384), loads))
        assert "one share alone" in finding.cause
        assert finding.advice[0].startswith("once with --tp 1")
        assert "one share alone" not in leads(died(self.NARROW.format(384, 512), loads)).cause

    def test_layers_of_a_draft(self):
        loads = FRAME.format("models/qwen3_5_mtp.py", "load_weights")
        last = "AssertionError: param_data.shape == loaded_weight.shape"
        finding = leads(died(last, loads))
        assert "a layer of the draft" in finding.cause
        assert finding.advice[0].startswith("once without --speculative-algorithm")
        assert "draft" not in leads(died(last, FRAME.format("models/qwen3_5.py", "load_weights"))).cause

    def test_of_a_quantised_copy_the_release_comes_first(self):
        loads = FRAME.format("models/qwen3_5.py", "load_weights")
        died_of = died("KeyError: 'model.layers.0.mlp.experts.w2_weight'", loads)
        start = "sglang.launch_server --model-path {}\n"
        assert leads(start.format("a/M-AWQ"), died_of).advice[0].startswith("a later release")
        assert leads(start.format("a/M"), died_of).advice[0].startswith("the publisher's own")


def test_a_pipeline_of_pictures_that_is_cut_over_gpus():
    start = "$ sglang generate --model-path a/Image --prompt x --tp-size {}\n"
    stage = "[01-09 15:15:49] Running pipeline stages: ['denoising_stage', 'decoding_stage']\n"
    last = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4128x3840 and 1920x3840)\n"
    assert leads(start.format(2), stage, last).advice[0].startswith("once without --tp-size 2")
    assert "--tp-size" not in leads(start.format(1), stage, last).advice[0]


def test_a_library_that_shuffles_experts_computes_experts():
    frame = '  File "/v/site-packages/flashinfer/utils.py", line 758, in get_shuffle_matrix_sf_a_row_indices\n'
    finding = leads(died("AssertionError", FRAME.format("layers/a.py", "b"), frame))
    assert finding.advice[0].startswith("another --moe-runner-backend")
