"""Values of any of the project's types, made from the types themselves."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

_INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_SCALARS = st.none() | st.booleans() | _INTEGERS | _NUMBERS | st.text(max_size=5)
_ANYTHING = _SCALARS | st.lists(_SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), _SCALARS, max_size=2)
_PLAIN = {str: st.text(max_size=8), int: _INTEGERS, float: _NUMBERS, bool: st.booleans(), type(None): st.none()}


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type: dataclasses, enumerations, containers and unions of them; ``Any`` is what JSON can hold."""
    if kind is Any:
        return _ANYTHING
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind):
        return of_dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(of_type, arguments))
    if origin is list:
        return st.lists(of_type(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=2)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    raise TypeError(f"nothing is known of {kind}")


def of_dataclass(kind: Any, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any instance of a dataclass, some of its fields as given."""
    hints = get_type_hints(kind)
    made = {each.name: given[each.name] if each.name in given else of_type(hints[each.name]) for each in fields(kind)}
    return st.builds(kind, **made)
