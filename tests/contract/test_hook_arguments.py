"""A hook is not broken by an argument that a later release of SGLang passes to the function."""

import inspect
import pkgutil
from functools import partial

import pytest

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.hook_arguments import handing_on
from gemma4_runtime.patch import Hook, How
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.standing import State, standing
from gemma4_runtime.targets import dotted_path

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

RELEASE = installed_or_base()
HOOKS = {
    f"{one.implementation} on {one.target}": one
    for patch in CATALOG
    if standing(patch, RELEASE).state is State.ATTACHES
    for one in patch.attachments_in(RELEASE)
    if isinstance(one, Hook)
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def around(original, subject, first):
    return original(subject, first=first)


def around_with_names(original, subject, **named):
    return original(subject, **named)


def before(subject, first):
    return (subject, first + 1), {}


def before_without_answer(subject, first):
    return None


def after(result, subject, **_unknown):
    return (*result, "seen")


def of_today(subject, first):
    return subject, first


def of_tomorrow(subject, first, second=0, *, third=0):
    return subject, first, second, third


def of_any(subject, first, **named):
    return subject, first, named


def hooked(how, hook, target):
    """Return the target with its hook, as SGLang's HookRegistry calls them."""
    if how is How.AROUND:
        return partial(hook, target)

    def call(*args, **named):
        if how is How.BEFORE:
            args, named = hook(*args, **named) or (args, named)
            return target(*args, **named)
        return hook(target(*args, **named), *args, **named)

    return call


@pytest.mark.parametrize(
    ("how", "hook", "expected"),
    [
        (How.AROUND, around, ("s", 1, 2, 3)),
        (How.AROUND, around_with_names, ("s", 1, 2, 3)),
        (How.BEFORE, before, ("s", 2, 2, 3)),
        (How.BEFORE, before_without_answer, ("s", 1, 2, 3)),
        (How.AFTER, after, ("s", 1, 2, 3, "seen")),
    ],
)
def test_an_argument_that_is_new_reaches_the_target_whichever_way_it_is_passed(how, hook, expected):
    call = hooked(how, handing_on(how, hook, of_tomorrow), of_tomorrow)
    assert call("s", 1, 2, third=3) == expected
    assert call("s", 1, second=2, third=3) == expected
    assert call("s", first=1, second=2, third=3) == expected


def test_names_that_the_target_takes_without_listing_them_reach_it():
    assert hooked(How.AROUND, handing_on(How.AROUND, around, of_any), of_any)("s", 1, new=5) == ("s", 1, {"new": 5})


def test_the_original_keeps_its_name():
    hook = handing_on(How.AROUND, lambda original, subject, first: original.__name__, of_tomorrow)
    assert hook(of_tomorrow, "s", 1, 2) == "of_tomorrow"


@pytest.mark.parametrize("hook", [around, before, after])
def test_a_hook_that_knows_every_parameter_is_left_as_it_is(hook):
    how = How[hook.__name__.upper()]
    assert handing_on(how, hook, of_today if hook is not after else lambda subject: None) is hook


@pytest.mark.parametrize("by_name", [False, True], ids=["by place", "by name"])
@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_lives_on_when_its_target_gets_two_more_parameters(name, by_name):
    """The hook's body is replaced by one that hands on what it is given; its signature is the real one.

    Called by name, a method's own object alone is given by its place, as Python does.
    """
    one = HOOKS[name]
    hook = pkgutil.resolve_name(one.implementation)
    path = dotted_path(RELEASE, one.target)
    target = pkgutil.resolve_name(path)
    if one.how is How.REPLACE:
        pytest.skip("a body that replaces SGLang's is read anew for each release")
    names = [p.name for p in inspect.signature(hook).parameters.values() if p.kind in POSITIONAL]
    lead = [] if one.how is How.BEFORE else names[:1]
    listed = [p.name for p in inspect.signature(target).parameters.values() if p.kind in POSITIONAL]
    keywords = [p.name for p in inspect.signature(target).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if inspect.ismethod(target):
        listed.insert(0, "cls")
    arguments = {n: object() for n in [*listed, *names[len(lead) + len(listed) :]]}
    received = {}

    def sglangs(*args, **named):
        received.update(zip((*arguments, "new_by_place"), args, strict=False))
        received.update(named)
        return "answer"

    grown = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in (*arguments, "new_by_place")]
    grown += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in (*keywords, "new_by_name")]
    sglangs.__signature__ = inspect.Signature(grown)
    bare = {How.AROUND: lambda original, /, *a, **n: original(*a, **n), How.BEFORE: lambda *a, **n: None}

    def stand_in(*args, **named):
        inspect.signature(hook).bind(*args, **named)
        return bare.get(one.how, lambda answer, /, *a, **n: answer)(*args, **named)

    stand_in.__signature__ = inspect.signature(hook)
    call = hooked(one.how, handing_on(one.how, stand_in, sglangs), sglangs)
    given = {**arguments, "new_by_place": object()}
    named = {n: object() for n in (*keywords, "new_by_name")}
    placed = list(given)
    if by_name:
        placed = placed[: 1 if belongs_to_a_class(path) else 0]
    by_keyword = {n: value for n, value in given.items() if n not in placed}
    assert call(*(given[n] for n in placed), **by_keyword, **named) == "answer"
    assert received == {**given, **named}


def belongs_to_a_class(path):
    """Say whether a function is called with an object or a class before its arguments."""
    owner, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    return inspect.isclass(owner) and not isinstance(vars(owner)[name], staticmethod)
