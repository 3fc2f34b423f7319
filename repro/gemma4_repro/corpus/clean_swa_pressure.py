"""Nothing is wrong: the load under which the SWA pool is nearly full and its ids differ from the full pool's."""

from gemma4_repro.detection.case import CleanCase
from gemma4_repro.detection.loads import UNDER_PRESSURE

CASE = CleanCase(id="clean-swa-pressure", title="eight requests that nearly fill the SWA pool", workload=UNDER_PRESSURE)
