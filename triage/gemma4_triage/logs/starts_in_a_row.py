"""Counts how often the same server began again while no line said that the one before had been stopped."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_triage.logs.facts import Place, Remark

NAME = "begun_again"
_DIFFER = frozenset({"random_seed", "nccl_port"})
"""Arguments that a start chooses by itself."""
_GETS_ON = ("groups_begin", "before_weights", "ready", "http_ready")
_MOST_SERVERS = 64
_MOST_LINES = 6


class StartCounter:
    """Knows a server by its arguments and by who wrote its line: ranks, nodes and other servers have others."""

    def __init__(self) -> None:
        self._rows: dict[tuple, list[tuple[int, bool]]] = {}

    def begin(
        self,
        kept: dict[str, Remark],
        arguments: Mapping[str, str],
        writer: tuple[bytes, str],
        place: Place,
        stopped: bool,
    ) -> None:
        """Take a start; keep a remark of how many of one server stand in a row.

        Args:
            kept: the remarks, of which "ready" is the last time that a server was.
            arguments: of this start.
            writer: the stream and the rank that wrote its line.
            place: of its line.
            stopped: whether a line since the start before says that somebody stopped it.
        """
        key = (*writer, *sorted(item for item in arguments.items() if item[0] not in _DIFFER))
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) < _MOST_SERVERS and len(arguments) > 1:
                self._rows[key] = [(place.line, False)]
            return
        if stopped:
            row.clear()
        elif not any((done := kept.get(name)) and done.place.line > row[-1][0] for name in _GETS_ON):
            # Ranks, nodes or replicas that begin at once print one below the other.
            return
        else:
            ready = kept.get("ready") or kept.get("http_ready")
            line, _ = row[-1]
            row[-1] = line, ready is not None and ready.place.line > line
        row.append((place.line, False))
        never = not any(was_ready for _, was_ready in row)
        if len(row) >= 3 or (len(row) == 2 and never):
            lines = ", ".join(str(line) for line, _ in row[:_MOST_LINES])
            more = ", ..." if len(row) > _MOST_LINES else ""
            was = sum(was_ready for _, was_ready in row)
            text = f"{len(row)} starts of the same server, in lines {lines}{more}; {was} of those before the last ready"
            kept[NAME] = Remark(place, writer[1], text)
        else:
            kept.pop(NAME, None)


def lacks_ready(remark: Remark) -> bool:
    """Say whether none of the starts before the last was ready."""
    return "; 0 of those" in remark.text
