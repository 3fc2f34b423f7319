"""Starts that a list, a checkpoint's code or a module refuses, and what only follows from another rank's end."""

import pytest

from gemma4_triage.logs.rules import hang
from gemma4_triage.logs.suspects import suspects
from support.logs import found_in, only, read, told
from support.made_logs import WATCHDOG, death, decode, stamp

