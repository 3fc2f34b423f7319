"""What is done with a bad entry at a site: what the debug mode says, unless `clamp` is in force.

| in force                | entries          | requests                           | dumps |
|-------------------------|------------------|------------------------------------|-------|
| `page-table`, log       | followed         | go on                              | yes   |
| `page-table`, contain   | the null page    | end with an error                  | yes   |
| `page-table`, trap      | nothing runs     | the process ends                   | yes   |
| `clamp`                 | the null page    | go on, marked in their meta info   | no    |
| `clamp` and log         | the null page    | go on, marked in their meta info   | yes   |
| `clamp` and any other   | the start is refused, see `selection.py`                      |
"""

from __future__ import annotations

from gemma4_runtime import current
from gemma4_runtime.selection import CLAMP
from gemma4_runtime.settings import Mode


def act_at(in_graph: bool) -> Mode:
    """`off`, `log`, `contain`, `trap` or `clamp`."""
    if current.switched_on(CLAMP):
        return Mode.CLAMP
    return current.guard().mode.at(in_graph)
