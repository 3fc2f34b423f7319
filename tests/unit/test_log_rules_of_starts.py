"""What findings say of starts that fail: the GPU, its driver, the system's libraries, the disk and the network."""

import pytest

from made_logs import MADE, TRACEBACK, death, decode, found_in, only, stamp, started

CAPTURE = "Exception: Capture cuda graph failed: "
NO_IMAGE = "RuntimeError: RMSNorm failed with error code no kernel image is available for execution on the device"


class TestKernelsThatTheGpuLacks:
    def test_a_capture_that_fails_for_it_is_no_failure_of_capture(self):
        finding = only([death(1, NO_IMAGE), death(1, NO_IMAGE.replace("RuntimeError: ", CAPTURE))])
        assert finding.rule == "no-kernel-image"
        assert any("--disable-cuda-graph do not help" in advice for advice in finding.advice)

    @pytest.mark.parametrize(
        ("said", "words", "other"),
        [
            ("Compute capability below sm80. Use float16.", "older than compute capability 8.0", "newer"),
            ("- Compute capability: 120", "newer than the build", "older"),
            ("GPU with CUDA compute capability sm_75", "older than compute capability 8.0", "newer"),
        ],
    )
    def test_what_the_log_says_of_the_gpu_decides(self, said, words, other):
        finding = only([f"{stamp(0)} {said}\n", death(1, NO_IMAGE)])
        assert words in finding.cause
        assert f"is {other} than the build" not in " ".join(finding.advice)

    def test_without_it_both_are_told(self):
        advice = " ".join(only(MADE["no-kernel-image"]).advice)
        assert "newer than the build" in advice
        assert "older than the build" in advice

    @pytest.mark.parametrize(
        ("frame", "switch"),
        [("ep_moe_kernels.py", "--moe-runner-backend"), ("extend_attention.py", "--attention-backend")],
    )
    def test_a_tile_that_is_too_large_names_what_to_switch(self, frame, switch):
        last = "OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376."
        finding = only([death(1, last, frame=frame), death(1, last.replace("OutOfResources: ", CAPTURE))])
        assert (finding.rule, switch in finding.advice[0]) == ("kernel-too-large", True)
        assert "131072 of on-chip shared memory, and this GPU has 101376" in finding.cause


class TestGpusAndDrivers:
    def test_a_driver_that_only_a_warning_names(self):
        warning = "UserWarning: The NVIDIA driver on your system is too old (found version 12020). Please update\n"
        finding = only([warning, death(1, "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU) is available.")])
        assert "CUDA 12.2 at most" in finding.cause

    def test_no_accelerator_in_the_words_of_a_release_with_platform_plugins(self):
        said = "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available."
        finding = only([death(1, said)])
        assert (finding.rule, finding.confidence.value) == ("no-gpu", "certain")

    def test_a_driver_that_is_new_enough_is_not_blamed(self):
        assert only(MADE["no-gpu"]).cause == (
            "The process can use no GPU: it sees none, or its torch is a build without CUDA."
        )


DAEMON = "docker: Error response from daemon: "
NOT_THERE = DAEMON + 'failed to create task: exec: "{}": executable file not found in $PATH: unknown.\n'


class TestWhatTheStartWasGiven:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            (NOT_THERE.format("--host"), "before the arguments"),
            (NOT_THERE.format("sglang"), "--entrypoint"),
            ("exec /usr/bin/python3: exec format error\n", "--platform"),
            (DAEMON + "manifest for lmsysorg/sglang:v9 not found: manifest unknown.\n", "list of tags"),
            (DAEMON + "Bind for 0.0.0.0:30000 failed: port is already allocated.\n", "another --port"),
            ("launch_server.py: error: ambiguous option: --a could match --a-b, --a-c\n", "in full (--a-b, --a-c)"),
            (death(1, "ValueError: Please pass the argument `trust_remote_code=True` to run it."), "--trust-remote"),
            (death(1, "AssertionError: res=<Response [403]>, res.text='<html>'"), "no_proxy"),
        ],
    )
    def test_is_told_with_what_to_give_instead(self, line, words):
        finding = only([line])
        assert finding.rule == "start-refused"
        assert words in " ".join(finding.advice)

    def test_a_format_that_the_gpu_has_not(self):
        said = "RuntimeError: FP4 is not available on this device: NVIDIA GeForce RTX 4090"
        finding = only([death(1, said, frame="nvfp4.py")])
        assert "no kernel for the checkpoint's format" in finding.cause
        assert "NVFP4 at 10.0" in " ".join(finding.advice)

    @pytest.mark.parametrize(
        ("place", "words"), [("mlir/Allocation.cpp", "Triton's compiler"), ("src/queue.hpp", "PYTHONFAULTHANDLER")]
    )
    def test_a_check_in_native_code(self, place, words):
        finding = only([f"python: /build/{place}:43: void f(): Assertion `a < b' failed.\n"])
        assert f"a check in native code ({place.partition('/')[2]}) does not hold" in finding.cause
        assert words in finding.advice[0 if "mlir" in place else 1]


class TestPackages:
    def test_a_module_that_python_has_not_on_windows_is_no_package_to_install(self):
        finding = only([death(1, "ModuleNotFoundError: No module named 'resource'")])
        assert "SGLang does not run on Windows" in finding.cause
        assert "WSL" in finding.advice[0]

    def test_what_pip_could_not_install_is_a_finding(self):
        finding = only(["ERROR: No matching distribution found for sgl-kernel==0.3.9\n"])
        assert finding.rule == "unexplained-line"

    @pytest.mark.parametrize(
        "name", ["requests.exceptions.ReadTimeout", "httpx.ConnectTimeout", "subprocess.TimeoutExpired"]
    )
    def test_an_exception_whose_name_does_not_end_in_error_is_one(self, name):
        frame = '  File "/venv/site-packages/sglang/srt/utils.py", line 10, in load\n'
        finding = only(["Traceback (most recent call last):\n", frame, f"{name}: no answer within 10 s\n"])
        assert (finding.rule, name.rpartition(".")[2] in finding.cause) == ("other-crash", True)


class TestMessagesThatBeginBelowTheirException:
    BELOW = (
        "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\n3. Standard import - failed\n"
        "- ImportError: {}\n- ModuleNotFoundError: No module named 'common_ops'\n"
    )

    @pytest.mark.parametrize(
        "outermost", ['"<frozen runpy>", line 198, in _run_module_as_main', '"/usr/lib/runpy.py", line 9, in _run_code']
    )
    @pytest.mark.parametrize(
        ("said", "words"),
        [
            ("libnuma.so.1: cannot open shared object file: No such file", "library libnuma.so.1 is missing"),
            ("/x/common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_", "different releases of torch"),
        ],
    )
    def test_the_attempts_that_it_lists_say_the_cause(self, outermost, said, words):
        finding = only([TRACEBACK, f"  File {outermost}\n", self.BELOW.format(said)])
        assert words in finding.cause

    def test_what_stands_below_an_ordinary_message_is_not_taken_for_it(self):
        found = found_in([death(1, "KeyError: 'a'").rstrip() + "\n- ImportError: libnuma.so.1: cannot open shared\n"])
        assert found[0].rule == "other-crash"


class TestDisksAndNetworks:
    @pytest.mark.parametrize(
        "last",
        [
            "RuntimeError: Data processing error: CAS service error : IO Error: No space left on device (os error 28)",
            "OSError: [Errno 122] Disk quota exceeded: '/cache/model.safetensors'",
            "OSError: Not enough free disk space to download the file.",
        ],
    )
    def test_a_disk_that_is_full(self, last):
        finding = only([death(1, last, frame="file_download.py")])
        assert finding.rule == "disk-full"
        assert "weights" in finding.cause

    def test_shared_memory_is_no_disk(self):
        assert only(MADE["shared-memory"]).rule == "shared-memory"

    def test_a_retried_download_is_none(self):
        assert found_in([decode(1), f"{stamp(2)} Not enough free disk space, retrying\n", decode(3)]) == ()

    def test_a_vocabulary_that_cannot_be_fetched_is_no_answer(self):
        last = "openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download"
        finding = only([started(model_path="openai/gpt-oss-20b"), death(2, last, frame="harmony_utils.py")])
        assert finding.rule == "weights-missing"
        assert "TIKTOKEN_ENCODINGS_BASE" in finding.advice[0]
