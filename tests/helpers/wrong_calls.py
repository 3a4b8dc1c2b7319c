"""Wrong calls of everything public, made of right ones: each argument in turn is replaced by what does not fit.

As a script, `python wrong_calls.py`, it makes all of them and prints what is wrong with the answers: an error that is
not ours, one that does not name the call, one with the words of Python or NumPy about our insides, a misspelt option
whose right name is not offered; and no error at all where an option is misspelt, an axis does not exist, or an
argument is of a kind that cannot be meant.
"""

from __future__ import annotations

import inspect
import re
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from valid_calls import Call, every_call

import megengine as mge
from megengine.core.errors import MegEngineError

# words that tell how something is written inside, not what was wrong with the call
_INSIDES = re.compile(
    r"object has no attribute|not supported between|unsupported operand|bad operand|cannot be interpreted|"
    r"is not iterable|unpack|incompatible function arg|subscriptable|only integer scalar|could not convert|"
    r"invalid literal|ufunc|must be real number|'NoneType'|int\(\) argument|"
    r"float\(\) argument|has no len|expected string or|must be str|'_\w+'|C long|not hashable|unhashable|operands could"
)
MEMORY = 6 << 30  # bytes of addresses: what asks for more must be refused, not end the process
SECONDS = 5  # of CPU time, for one call
CPU_SECONDS = 200  # for all of them, which take ten
_HUGE = (1 << 31, 1 << 40, 1 << 70)


def _instead_of_tensor(x: Any) -> Iterator[Any]:
    array = x.numpy()
    if x.dtype.kind not in "fiub":
        array = array.astype(np.float32)
    yield from (None, "text", object(), {}, True, [[1], [1, 2]], mge.Tensor(x, device="test0"))
    yield from (mge.tensor(array[None], array.dtype), mge.tensor(array.reshape(-1), array.dtype), mge.tensor(1.0))
    yield mge.tensor(np.zeros((0, *array.shape[1:]), array.dtype), array.dtype)
    yield mge.tensor(np.concatenate([array, array], -1), array.dtype) if array.ndim else mge.tensor([1.0, 2])
    yield from (mge.tensor(array.astype(t), t) for t in ("bool", "int64", "float16", "int8"))
    yield mge.tensor(np.full(array.shape, 1000), "int32" if array.dtype.kind in "iu" else "float32")
    yield mge.tensor(np.full(array.shape, -1000), "int32" if array.dtype.kind in "iu" else "float32")
    if array.dtype.kind == "f":
        yield from (mge.tensor(np.full_like(array, v)) for v in (np.nan, np.inf))
    yield of_other_layout(array)


def of_other_layout(array: np.ndarray) -> Any:
    """The values with a gap after each and the axes in memory the other way round."""
    if not array.ndim:
        return mge.tensor(array)
    wide = np.empty((*array.shape[::-1], 2), array.dtype)
    view = wide[..., 0].transpose()
    view[...] = array
    return mge.Tensor._wrap(view)


def _instead_of_number(x: float) -> Iterator[Any]:
    yield from (None, "text", object(), -1, 0, 7, -100, 0.5, float("nan"), float("inf"), (1, 2), [], 1 << 31, 1 << 70)
    yield from (mge.tensor([1.0, 2]), np.zeros(2), 1j, True, *_HUGE)


def _instead_of_text(x: str) -> Iterator[Any]:
    yield from (x[:-1] + "_", x + "x", "nonsense", "", None, 3, ["a"], object(), mge.tensor(1.0))


def _instead_of_several(x: Any) -> Iterator[Any]:
    kind = type(x)
    yield from (None, "text", 3, -1, kind(), kind([*x, *x[:1]]), kind(x[:-1]), object(), {}, 1.5, np.zeros(3))
    for other in (-1, 0, 0.5, None, "a", *_HUGE):
        yield kind([other, *x[1:]])
        yield kind([other for _ in x])


def instead(value: Any) -> Iterator[Any]:
    """What to give in place of a right argument."""
    if isinstance(value, mge.Tensor):
        yield from _instead_of_tensor(value)
    elif isinstance(value, str):
        yield from _instead_of_text(value)
    elif isinstance(value, bool):
        yield from (None, "yes", 3, mge.tensor([1.0, 2]), object())
    elif isinstance(value, (int, float)):
        yield from _instead_of_number(value)
    elif isinstance(value, (tuple, list)):
        yield from _instead_of_several(value)
        if value and isinstance(value[0], mge.Tensor):
            yield from (type(value)([other, *value[1:]]) for other in _instead_of_tensor(value[0]))
    else:
        yield from ("text", 3, -1, 1.5, object(), mge.tensor([1.0, 2]), [], {}, lambda *_: None)


def places(call: Call) -> list[tuple[Any, Any]]:
    """(place, value) of each argument, defaults included: a place is an index or a name."""
    found: list[tuple[Any, Any]] = list(enumerate(call.args)) + list(call.kwargs.items())
    try:
        signature = inspect.signature(call.make())
        bound = signature.bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return found
    left_out = [p for p in signature.parameters.values() if p.name not in bound.arguments]
    return found + [(p.name, p.default) for p in left_out if p.default is not p.empty]


def wrong_calls(call: Call) -> Iterator[tuple[Any, Any, list[Any], dict[str, Any]]]:
    """(place, wrong value, arguments) of each wrong call made of a right one."""
    for place, value in places(call):
        for other in instead(value):
            args, kwargs = call.fresh()
            if isinstance(place, int):
                args[place] = other
            else:
                kwargs[place] = other
            yield place, other, args, kwargs
    args, kwargs = call.fresh()
    yield "*", "one more", [*args, *[None] * 12], kwargs
    yield "bananas", "unknown", args, {**kwargs, "bananas": 1}
    if args:
        yield "*", "one less", args[:-1], kwargs


def text_of(error: BaseException) -> str:
    """The message with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def judged(name: str, error: BaseException) -> str:
    """What is wrong with the error of a wrong call; empty if nothing is."""
    if not isinstance(error, MegEngineError):
        if re.fullmatch(rf"[\w.<>]*\b({name}|__init__)\(\) (takes|got|missing) .*", str(error)):
            return ""  # what Python says of a wrong number of arguments names the function
        return f"{type(error).__name__}: {error}"
    if not str(error).strip():
        return f"{type(error).__name__} without a message"
    text = text_of(error)
    if not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text):
        return f"the call is not named: {text}"
    first = str(error).partition("; got ")[0]
    if _INSIDES.search(first):
        return f"words about our insides: {error}"
    return ""


def _misspelt(option: Any, other: Any) -> bool:
    """Whether a text is an option with one wrong letter; paths of files are no options."""
    return option is not None and isinstance(other, str) and "/" not in other and other[:-1] in (option, option[:-1])


# (function, argument) whose wrong values nobody reads -> why
_UNREAD = {
    **dict.fromkeys((("Identity", "inputs"), ("QuantStub", "inputs"), ("DequantStub", "inputs")), "passed on as it is"),
    **{(n, w): "without affine there is none" for n in ("general_norm", "group_norm", "instance_norm", "layer_norm")
       for w in ("weight", "bias")},
    **{(n, "commit"): "of a repository, not of a folder" for n in ("help", "list", "load")},
    ("VisionDataset", "root"): "a subclass reads the folder",
    ("save", "obj"): "a text too can be saved",
    ("Softmax", "axis"): "the number of axes is known when it is called",
}  # fmt: skip


def _argument(call: Call, place: Any) -> str:
    """The name of the argument at a place."""
    if not isinstance(place, int):
        return place
    try:
        return [*inspect.signature(call.make()).parameters][place]
    except (TypeError, ValueError, IndexError):
        return str(place)


def must_be_refused(name: str, right: Any, wrong: Any) -> bool:
    """Whether a value in place of a right one cannot be meant, whatever the function: `name` is the argument's."""
    if name == "name" or isinstance(right, bool):
        return type(wrong) is object and name == "name"  # any text is a name; of any object Python knows the truth
    if isinstance(right, str) and isinstance(wrong, str):
        return len(right) > 3 and right.isidentifier() and _misspelt(right, wrong)
    if name == "axis" and type(right) is type(wrong) is int:
        return wrong in (7, -100)
    return type(wrong) is object or (isinstance(wrong, str) and right is not None)


def problems(call: Call) -> Iterator[str]:
    """What is wrong with the answers to the wrong calls made of one."""
    texts = {place: value for place, value in places(call) if isinstance(value, str)}
    options = {place: value for place, value in texts.items() if len(value) > 3 and value.isidentifier()}
    given = dict(places(call))
    for place, other, args, kwargs in wrong_calls(call):
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            result = call.make()(*args, **kwargs)
            for r in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(r, mge.Tensor):
                    r.numpy()
            name = _argument(call, place) if place in given else ""
            if name and (call.name, name) not in _UNREAD and must_be_refused(name, given[place], other):
                yield f"{call.name}: {name}={repr(other)[:60]}: accepted"
            continue
        except Exception as exc:
            error = exc
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        fault = judged(call.name, error)
        if not fault and _misspelt(options.get(place), other) and repr(options[place]) not in str(error):
            fault = f"{options[place]!r} is not offered: {error}"
        if fault:
            yield f"{call.name}: {place}={repr(other)[:60]}: {fault}"


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"the call took more than {SECONDS} s of CPU time")


def main() -> int:
    """Print every problem; the last line on stderr names the call during which the process died, if it did."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    signal.signal(signal.SIGVTALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))  # ends the process if native code hangs
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    mge.set_log_level("ERROR")
    found = 0
    for call in every_call():
        print(f"# {call.name}", file=sys.stderr, flush=True)
        for problem in problems(call):
            found += 1
            print(problem.replace("\n", " | "))
        mge.set_default_device("cpu0")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
