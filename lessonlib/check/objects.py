"""Sequences of method calls on objects of a learner's class, and what each of them did.

A check of a class is a list of calls, and rules for what may come of each. The class is made, called and read in
one go by `replay`, so that it may as well live in another process.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lessonlib.check.harness import Answer, CheckFailed, NotWritten, TookTooLong, describe, same, show, where_raised


class Call(NamedTuple):
    """One method call: `object number on`.method(*args)."""

    method: str
    args: tuple
    on: int = 0


class Seen(NamedTuple):
    """What one call did, as plain data.

    Args:
        value: what it returned.
        errors: names of the classes of the exception that it raised, the most special one first; empty if none.
        message: text of that exception, with the line of code that raised it.
        state: name of each field -> its value after the call.
        trouble: why a field could not be read; empty if all could.
    """

    value: Any
    errors: tuple[str, ...]
    message: str
    state: dict[str, Any]
    trouble: str


def replay(
    cls: Callable[..., Any],
    made_with: Sequence[tuple],
    calls: Sequence[Call],
    fields: Mapping[str, int | None],
    seen: list[Seen] | None = None,
) -> list[Seen]:
    """Make objects, call their methods in turn, and note what came of each call.

    Args:
        cls: the class, or a function that makes objects.
        made_with: the arguments that each object is made with.
        calls: what to call.
        fields: name of each attribute to read after a call -> how many of its entries to read by index, or None
            to read it whole.
        seen: a list to add to, so that a caller sees how far this came.

    Returns:
        One entry for each object made, then one for each call. It ends early where an object cannot be made.
    """
    seen = [] if seen is None else seen
    objects = []
    for args in made_with:
        made, errors, message = _attempt(cls, args)
        seen.append(Seen(None, errors, message, *(({}, "") if errors else _read(made, fields))))
        if errors:
            return seen
        objects.append(made)
    for call in calls:
        seen.append(observe(objects[call.on], call, fields))
    return seen


def observe(target: Any, call: Call, fields: Mapping[str, int | None]) -> Seen:
    """Make one call on an object, and note what came of it."""
    given = copy.deepcopy(call.args)
    try:
        value, errors, message = _attempt(lambda *args: getattr(target, call.method)(*args), given)
    except NotImplementedError:
        raise NotWritten(f"{call.method}: not written yet.", "not-written") from None
    state, trouble = _read(target, fields)
    if not same(given, call.args):
        trouble = f"the call changed its arguments to {show(given)}"
    return Seen(plain(value), errors, message, state, trouble)


def _attempt(action: Callable[..., Any], args: tuple) -> tuple[Any, tuple[str, ...], str]:
    """The result of a call; or the names of its exception's classes, and the exception's text."""
    try:
        return action(*args), (), ""
    except (NotImplementedError, CheckFailed, TookTooLong, KeyboardInterrupt):
        raise
    except BaseException as error:
        names = [c.__name__ for c in type(error).__mro__ if c not in (Exception, BaseException, object)]
        return None, tuple(names), describe(error) + where_raised(error)


def _read(target: Any, fields: Mapping[str, int | None]) -> tuple[dict[str, Any], str]:
    """The fields of an object, and what went wrong with the first that cannot be read."""
    state, trouble = {}, ""
    for name, n_entries in fields.items():
        try:
            whole = getattr(target, name)
            state[name] = plain(whole) if n_entries is None else [plain(_entry(whole, i)) for i in range(n_entries)]
        except NotImplementedError:
            raise
        except Exception as error:
            trouble = trouble or f"{name} cannot be read: {describe(error)}"
    return state, trouble


def _entry(container: Any, i: int) -> Any:
    """Entry i; of a mapping that leaves out zeros, 0."""
    return container.get(i, 0) if isinstance(container, Mapping) else container[i]


def plain(value: Any) -> Any:
    """A copy made of dicts, lists and Python scalars; what is none of these becomes its text."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return show(value) if isinstance(value, int) and abs(value) > 10**40 else value
    if isinstance(value, Mapping):
        return {_key(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence | deque):  # no set: its order means nothing
        return [plain(entry) for entry in value]
    return repr(value)


def _key(key: Any) -> Any:
    return key.item() if isinstance(key, np.generic) else key


def replay_answer(
    answer: Answer, made_with: Sequence[tuple], calls: Sequence[Call], fields: Mapping[str, int | None]
) -> list[Seen]:
    """Make objects of the learner's class, call their methods in turn, and read their state after each call.

    A class that lives in another process has a method `replay(made_with, calls, fields)` of its own, which does
    the same there (by calling `replay`) and replies in one message.

    Args:
        made_with: the arguments that each object is made with.
        calls: what to call.
        fields: the state to read, see `replay`.
    """
    seen: list[Seen] = []
    remote = getattr(answer.function, "replay", None)

    def action() -> list[Seen]:
        if remote is not None:
            return [Seen(*entry) for entry in remote(made_with, calls, fields)]
        return replay(answer.function, made_with, calls, fields, seen)

    return answer.run(action, lambda: script(answer, made_with, calls[: max(0, len(seen) - len(made_with)) + 1]))


def script(answer: Answer, made_with: Sequence[tuple], calls: Sequence[Call], notes: Sequence[str] = ()) -> str:
    """The calls as the learner would write them, one a line, each with a note behind it."""
    names = ["pool"] if len(made_with) == 1 else [f"pool_{i + 1}" for i in range(len(made_with))]
    lines = [f"{name} = {answer.text(args)}" for name, args in zip(names, made_with, strict=True)]
    notes = [*notes, *[""] * (len(calls) - len(notes))]
    for call, note in zip(calls, notes, strict=True):
        line = f"{names[call.on]}.{call.method}({', '.join(show(a) for a in call.args)})"
        lines.append(f"{line:<28}  # {note}" if note else line)
    if len(lines) > 14:
        lines = [*lines[:3], f"…   # {len(lines) - 12} more calls", *lines[-9:]]
    return "\n".join(lines)
