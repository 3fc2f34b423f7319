"""Starting behind the kernel ahead before it has ended, on GPUs that can (programmatic dependent launch).

Between two short kernels lies the time to launch the second. Launched this way it starts while the first still runs,
loads its weights, which no kernel of a step writes, and waits for the first to end before it touches anything else.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def inputs_are_there(EARLY_LAUNCH: tl.constexpr):
    """Wait for the end of the kernel ahead, and let the one behind start.

    It stands before the first access to what another kernel reads or writes.
    """
    if EARLY_LAUNCH:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def ask_cache_for(start, size, number, programs):
    """Have the L2 cache read part `number` of `programs` of the `size` bytes at the address `start`, and go on.

    start and size are multiples of 16. It changes no value: whoever reads these bytes next finds them nearer.
    """
    # Whole lines of 128 bytes. All threads would ask alike, so only the first one does.
    part = tl.cdiv(tl.cdiv(size, programs), 128) * 128
    first = number * part
    count = tl.minimum(part, size - first)
    if (number >= 0) & (count > 0):
        tl.inline_asm_elementwise(
            """
            {
                .reg .pred first_thread;
                .reg .u32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 first_thread, thread, 0;
                @first_thread cp.async.bulk.prefetch.L2.global [$1], $2;
                mov.u32 $0, 0;
            }
            """,
            "=r,l,r",
            [start + first.to(tl.int64), count],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
