"""Record what the real MegEngine answers to the cases: `python record.py OUT.npz`, with megengine 1.13.0 installed.

For each case the file holds its results (`NAME -> out 0`, ...) and the gradients of its float inputs (`NAME -> grad 0`, ...), or
`NAME -> error` where the call fails there; `NAME -> no gradient` where only its gradient does. A crash loses only its case.
"""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import edge_cases  # noqa: F401  (enters those of the other files too)
import packed
from cases import CASES, cotangent


def answer(engine, functional, autodiff, entry):
    """Name -> array of one case, asked of one MegEngine."""
    inputs = [engine.tensor(x, dtype=x.dtype) for x in entry.inputs]
    moving = [t for t, x in zip(inputs, entry.inputs) if entry.grad and x.dtype == np.float32]
    manager = autodiff.GradManager()
    manager.attach(moving)
    with manager:
        found = entry.call(functional, *inputs)
        outputs = [y for y in (found if isinstance(found, (tuple, list)) else [found]) if y is not None]
        smooth = [y for y in outputs if moving and hasattr(y, "dtype") and y.dtype == np.float32]
        if smooth:
            manager.backward(sum((y * engine.tensor(cotangent(tuple(y.shape)))).sum() for y in smooth))
    answers = {
        "%s -> out %d" % (entry.name, k): np.asarray(getattr(y, "numpy", lambda y=y: y)())
        for k, y in enumerate(outputs)
    }
    assert all(y.dtype != object for y in answers.values()), "%s is no array" % entry.name
    for k, t in enumerate(moving if smooth else []):
        if t.grad is not None:
            answers["%s -> grad %d" % (entry.name, k)] = t.grad.numpy()
    return answers


def in_child(work):
    """The arrays that `work()` returns, computed in a forked process: the engine may abort."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        child = os.fork()
        if not child:
            np.savez(file.name, **work())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        return dict(np.load(file.name)) if status == 0 else None


def record(names):
    """All answers of the real MegEngine; must run where the engine was not yet used (it does not survive a fork)."""
    import megengine
    import megengine.autodiff
    import megengine.functional

    megengine.config.async_level = 0
    answers = {}
    for name in names:
        try:
            answers.update(answer(megengine, megengine.functional, megengine.autodiff, CASES[name]))
        except BaseException as exc:  # the engine raises what it likes
            answers[name + " -> error"] = np.array("%s: %s" % (type(exc).__name__, str(exc)[:200]))
    return answers


def record_apart(names):
    """The answers to all names, asked for in child processes; a case that kills its process is an error."""
    found, size = {}, 40
    pending = [names[k : k + size] for k in range(0, len(names), size)]
    while pending:
        chunk = pending.pop()
        answers = in_child(lambda chunk=chunk: record(chunk))
        if answers is not None:
            found.update(answers)
        elif len(chunk) > 1:
            pending += [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
        else:
            found[chunk[0] + " -> error"] = np.array("the process was killed")
    return found


def without_gradients(found):
    """Ask for the results alone where a gradient was asked for and the case failed."""
    failed = [name for name in CASES if CASES[name].grad and name + " -> error" in found]
    for name in failed:
        CASES[name] = CASES[name]._replace(grad=False)
    again = record_apart(failed)
    for name in failed:
        if name + " -> error" not in again:
            again[name + " -> no gradient"] = found.pop(name + " -> error")
    return dict(found, **again)


def main():
    found = without_gradients(record_apart(list(CASES)))
    packed.save(sys.argv[1], found)
    print("%d cases, %d fail there" % (len(CASES), sum(k.endswith(" -> error") for k in found)))


if __name__ == "__main__":
    main()
