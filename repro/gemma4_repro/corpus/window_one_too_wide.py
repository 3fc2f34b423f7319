"""W1: the release's own window."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF

CASE = FaultCase(
    id="window-one-too-wide",
    title="sliding layers see one key more than the model's window holds",
    origin=Origin("SGLang 26147", "outputs differ slightly from transformers' once a sequence passes the window"),
    injected="nothing: the release has it. The fix is off, as it is by default",
    without=("swa-window-width",),
    workload=BRIEF,
    findings=(Finding("geometry", "geometry", "window_width"),),
)
