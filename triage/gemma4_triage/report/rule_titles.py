"""What each rule of `diagnose` and `logs` is about, in one sentence."""

from __future__ import annotations

import sys

from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.logs import catalog as logs
from gemma4_triage.logs.rules import known_issue, other_crash, refused_by_check, unexplained_line
from gemma4_triage.readers.catalog import TITLES


def rule_titles() -> dict[str, str]:
    """Return titles by rule id. A rule of `diagnose` is named by the first line of its module's docstring."""
    diagnosed = {rule.id: (sys.modules[rule.find.__module__].__doc__ or rule.id) for rule in RULES}
    titles = {rule: text.strip().splitlines()[0] for rule, text in diagnosed.items()}
    titles |= {rule.ID: rule.TITLE for rule in (known_issue, other_crash, refused_by_check, unexplained_line)}
    titles |= TITLES
    return titles | {rule.id: rule.title for rule in (*logs.ENDINGS, *logs.FALLBACKS, *logs.LOADS)}
