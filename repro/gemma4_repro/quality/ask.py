"""Asks a server every item through the OpenAI client, several at a time, and reads each reply."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gemma4_repro.errors import EnvironmentLacks, UnknownName
from gemma4_repro.quality import colours, mmlu
from gemma4_repro.quality.questions import Question

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MMLU, COLOURS = "mmlu", "colours"
APIS = ("completions", "chat")
_READ: dict[str, Callable[[str], str | None]] = {MMLU: mmlu.read_letter, COLOURS: colours.read_colour}
_PROBE_LIMIT_S = 10.0
_TOLD_EVERY = 100


@dataclass(frozen=True)
class Item:
    """One thing to ask. `request` is the body for one of APIS, without the model's name."""

    id: str
    part: str
    expected: str
    api: str
    request: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came back for an item: a reply and what was read from it, or the error that came instead."""

    id: str
    part: str
    expected: str
    reply: str | None = None
    read: str | None = None
    finish: str | None = None
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether the reply names what was expected. An error is neither right nor wrong: ask for it first."""
        return self.read == self.expected


@dataclass
class Asked:
    """What one side was asked so far. `ended` says why it was not asked the rest, or is empty."""

    model: str = ""
    answers: list[Answer] = field(default_factory=list)
    ended: str = ""


def mmlu_items(questions: Sequence[Question], examples: Sequence[Question], api: str) -> Iterator[Item]:
    """Yield an item per question, with the examples of its subject in front of it."""
    shown = mmlu.by_subject(examples)
    for question in questions:
        text = mmlu.prompt(question, shown.get(question.subject, ()))
        request: dict[str, Any] = {"prompt": text}
        if api == "chat":
            request = {"messages": [{"role": "user", "content": mmlu.CHAT_INSTRUCTION + text}]}
        yield Item(question.id, MMLU, question.answer, api, request | {"max_tokens": mmlu.MAX_TOKENS})


def colour_items() -> Iterator[Item]:
    """Yield the thirty colour prompts, each an image and a question in one message."""
    for id, url, colour in colours.prompts():
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": colours.QUESTION}]
        request = {"messages": [{"role": "user", "content": content}], "max_tokens": colours.MAX_TOKENS}
        yield Item(id, COLOURS, colour, "chat", request)


def api_root(url: str) -> str:
    """Return the address below which the OpenAI API lies: the URL with /v1 at its end. Raises UnknownName."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UnknownName(f"{url!r} is no address of a server", "for example http://127.0.0.1:30000")
    root = url.rstrip("/")
    return root if root.endswith("/v1") else f"{root}/v1"


def served_model(root: str, wanted: str | None) -> str:
    """Return the name of the model that a server serves, or the wanted one if it serves that.

    Raises:
        EnvironmentLacks: It cannot be reached, is no server of the OpenAI API, or serves nothing.
        UnknownName: It does not serve the wanted model, or serves several and none was named.
    """
    from openai import OpenAI, OpenAIError

    try:
        with OpenAI(base_url=root, api_key=_key(), max_retries=0, timeout=_PROBE_LIMIT_S) as client:
            names = [model.id for model in client.models.list().data]
    except (OpenAIError, AttributeError, TypeError, ValueError) as error:
        raise EnvironmentLacks(
            f"{root} does not list its models: {_in_words(error)}",
            "name the address of a server of the OpenAI API that is up; OPENAI_API_KEY is its key, if it wants one",
        ) from error
    if wanted is not None and wanted not in names:
        raise UnknownName(f"{root} does not serve {wanted!r}", f"it serves: {', '.join(map(str, names)) or 'nothing'}")
    if not names:
        raise EnvironmentLacks(f"{root} serves no model", "name the address of a server that has loaded one")
    if wanted is None and len(names) > 1:
        raise UnknownName(f"{root} serves {len(names)} models", f"name one with --model: {', '.join(map(str, names))}")
    return wanted or names[0]


def ask_all(
    root: str, items: Sequence[Item], asked: Asked, parallel: int, timeout_s: float, tell: Callable[[str], None]
) -> None:
    """Ask every item of the model `asked.model`, and append the answers to `asked` as they come.

    It ends early, and says so in `asked`, once the server can no longer be reached, or fails so many requests in a row
    that the rest is not worth waiting for.
    """
    asyncio.run(_ask_all(root, items, asked, parallel, timeout_s, tell))


async def _ask_all(
    root: str, items: Sequence[Item], asked: Asked, parallel: int, timeout_s: float, tell: Callable[[str], None]
) -> None:
    from openai import AsyncOpenAI

    left = iter(items)
    patience = 2 * parallel + 4
    failed_in_a_row = 0

    async def ask_one_by_one(client: AsyncOpenAI) -> None:
        nonlocal failed_in_a_row
        for item in left:
            answer = await _ask(client, asked.model, item)
            asked.answers.append(answer)
            if len(asked.answers) % _TOLD_EVERY == 0:
                tell(f"{len(asked.answers)} of {len(items)} asked")
            failed_in_a_row = failed_in_a_row + 1 if answer.error else 0
            if answer.error and not asked.ended:
                if not await _is_there(client):
                    asked.ended = f"the server is gone: {answer.error}"
                elif failed_in_a_row >= patience:
                    asked.ended = f"{failed_in_a_row} requests in a row failed, the last with: {answer.error}"
            if asked.ended:
                return

    async with AsyncOpenAI(base_url=root, api_key=_key(), max_retries=0, timeout=timeout_s) as client:
        await asyncio.gather(*(ask_one_by_one(client) for _ in range(parallel)))


async def _ask(client: AsyncOpenAI, model: str, item: Item) -> Answer:
    from openai import OpenAIError

    create: Any = client.completions.create if item.api == "completions" else client.chat.completions.create
    try:
        choice = (await create(model=model, temperature=0, **item.request)).choices[0]
        reply = (choice.text if item.api == "completions" else choice.message.content) or ""
        read = _READ[item.part](reply)
        return Answer(item.id, item.part, item.expected, reply, read, choice.finish_reason)
    # The last four: an answer that is no document of the API, which the client passes on as it is.
    except (OpenAIError, AttributeError, IndexError, TypeError, ValueError) as error:
        return Answer(item.id, item.part, item.expected, error=_in_words(error))


async def _is_there(client: AsyncOpenAI) -> bool:
    from openai import APIConnectionError, OpenAIError

    try:
        await client.with_options(timeout=_PROBE_LIMIT_S).models.list()
    except APIConnectionError:
        return False
    except (OpenAIError, AttributeError, TypeError, ValueError):
        return True
    return True


def _in_words(error: Exception) -> str:
    text = f"{type(error).__name__}: {error.__cause__ or error}"
    return " ".join(text.split())[:300]


def _key() -> str:
    # The client wants one; a server without --api-key takes any.
    return os.environ.get("OPENAI_API_KEY") or "none"


def paths_taken(root: str) -> dict[str, dict[str, int]] | None:
    """Return how often each patch of the server took which path, as /server_info has it; None if it does not say."""
    request = urllib.request.Request(root.removesuffix("/v1") + "/server_info")
    request.add_header("Authorization", f"Bearer {_key()}")
    try:
        with urllib.request.urlopen(request, timeout=_PROBE_LIMIT_S) as answer:
            states = json.loads(answer.read())["internal_states"]
        ranks = [state["gemma4_triage_paths"] for state in states]
        total: dict[str, dict[str, int]] = {}
        for rank in ranks:
            for patch, paths in rank.items():
                counted = total.setdefault(patch, {})
                for path, times in paths.items():
                    counted[path] = counted.get(path, 0) + int(times)
    # Another server's answer may be of any form.
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return None
    return total
