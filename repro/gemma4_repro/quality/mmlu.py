"""How MMLU asks, and how a reply is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gemma4_repro.quality.questions import LETTERS, Question

GUESS = 1 / len(LETTERS)
"""The share of right answers of a model that knows nothing and names a letter."""
MAX_TOKENS = 8
MOST_EXAMPLES = 5
"""As published: five worked examples of the question's subject."""
CHAT_INSTRUCTION = "Reply with the letter of the right choice (A, B, C or D) and nothing else.\n\n"

# An A before a word in lower case is the article: "A good answer is B" answers nothing.
_REPLY = re.compile(
    r"""[\s*_`"'(\[]*
        (?:(?i:(?:the\s+)?(?:correct\s+|right\s+)?answer(?:\s+is)?)[\s:*_`"'(\[]*)?
        (?P<letter>A(?!\s+[a-z])|[BCD])
        (?![\w'\u2019-])""",
    re.VERBOSE,
)


def prompt(question: Question, examples: Sequence[Question] = ()) -> str:
    """Return the prompt of the published evaluation: a header, examples, the question and "Answer:".

    Args:
        question: What is asked.
        examples: Questions shown with their answers.
    """
    about = f" about {question.subject.replace('_', ' ')}" if question.subject else ""
    header = f"The following are multiple choice questions (with answers){about}.\n\n"
    shown = "".join(f"{_body(example)} {example.answer}\n\n" for example in examples)
    return header + shown + _body(question)


def _body(question: Question) -> str:
    choices = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, question.choices, strict=True))
    return f"{question.text}\n{choices}\nAnswer:"


def read_letter(reply: str) -> str | None:
    """Return the letter that a reply begins with, or None.

    Markup, an opening bracket and "Answer:" or "The correct answer is" may come first; a letter further back does not
    count.
    """
    match = _REPLY.match(reply)
    return match["letter"] if match else None


def by_subject(examples: Sequence[Question]) -> Mapping[str, tuple[Question, ...]]:
    """Return the first five examples of each subject."""
    found: dict[str, list[Question]] = {}
    for example in examples:
        found.setdefault(example.subject, []).append(example)
    return {subject: tuple(of[:MOST_EXAMPLES]) for subject, of in found.items()}
