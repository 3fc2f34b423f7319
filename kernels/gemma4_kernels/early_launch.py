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
    """Wait for the end of the kernel ahead, and let the one behind start: behind the wait (1) or before it (2).

    It stands before the first access to what another kernel reads or writes.
    """
    if EARLY_LAUNCH == 2:
        gdc_launch_dependents()
        gdc_wait()
    elif EARLY_LAUNCH:
        gdc_wait()
        gdc_launch_dependents()
