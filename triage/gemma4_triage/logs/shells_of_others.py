"""What shells that speak no English say of a process that a signal ended, as bash and the C library translate it."""

from __future__ import annotations

import re

from gemma4_triage.logs.late_pattern import pattern

_KILLED = ("已杀死", "被殺死", "強制終了", "Getötet", "Убито", "Processus arrêté", "Ucciso", "Morto")
_CRASHED = (
    *("段错误", "段錯誤", "程式記憶體區段錯誤", "总线错误", "Speicherzugriffsfehler", "Segmentierungsfehler"),
    *("Erreur de segmentation", "Erreur du bus", "Ошибка сегментирования", "Ошибка шины", "Violación de segmento"),
    *("Errore di segmentazione", "Falha de segmentação", "セグメンテーション違反", "バスエラー"),
)
# Their words for "aborted" mean much else: only beside a dump.
_DUMPED = (
    "已中止",
    "已放弃",
    "中止",
    "アボートしました",
    "Abgebrochen",
    "Abandon",
    "Аварийный останов",
    "Abortado",
    "Annullato",
)
_LINES = "行|Zeile|ligne|строка|línea|linea|linha"
_DUMPS = (
    r"\((?:核心已转储|核心已傾印|吐核|コアダンプ(?:しました)?|Speicherabzug geschrieben|core dumped|vidage mémoire|"
    r"стек памяти сброшен на диск|"
    r"образ памяти сброшен на диск|volcado de memoria|core dump creato|imagem do núcleo gravada|core créé)\)"
)


def _line(words: tuple[str, ...], behind: str) -> bytes:
    """Return an expression of a line that is one of the words alone, or bash's line about a script's process."""
    one = "|".join(map(re.escape, words))
    return rf"^\s*(?:{one}){behind}\s*$|: (?:{_LINES}) ?\d+:? *:? *\d+ +(?:{one})(?:\s|$)".encode()


KILLED = _line(_KILLED, "")
CRASHED = _line(_CRASHED, rf"(?: ?{_DUMPS})?") + b"|" + _line(_DUMPED, rf" ?{_DUMPS}")
TRIGGERS = tuple(word.encode().lower() for word in (*_KILLED, *_CRASHED, *_DUMPED))
"""Bytes of which one is in every such line, as `bytes.lower` leaves them."""
_KILLED_TEXT = pattern(KILLED.decode())
_BUS = pattern(r"(?:^|\d +)\s*(?:总线错误|Erreur du bus|Ошибка шины|バスエラー)")


def is_killed(text: str) -> bool:
    """Say whether a line tells of SIGKILL."""
    return _KILLED_TEXT.search(text) is not None


def is_of_the_bus(text: str) -> bool:
    """Say whether a line tells of SIGBUS."""
    return _BUS.search(text) is not None
