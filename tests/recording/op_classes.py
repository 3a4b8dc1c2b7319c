"""Record MegEngine's op classes: `python op_classes.py OUT.json`, with megengine 1.13.0 installed.

Of each class its options in their order, with defaults, and its choices. Devices and handles have no defaults there.
"""

import json
import re
import sys


def described(kind):
    names = [n for n in re.findall(r"(\w+): ", kind.__init__.__doc__ or "") if n != "self"]
    made = kind()
    state = made.__getstate__()
    choices = {
        name: [k for k in vars(value) if not k.startswith("_") and k != "dump"]
        for name, value in ((n, getattr(kind, n)) for n in dir(kind) if not n.startswith("_"))
        if isinstance(value, type)
    }
    return {"options": [[n, plain(state.get(n))] for n in names], "choices": choices, "text": repr(made)}


def plain(value):
    if isinstance(value, tuple):
        return value[0]
    return value if isinstance(value, (bool, int, float, str, list, type(None))) else str(value)


def main():
    from megengine.core.ops import builtin

    kinds = {n: getattr(builtin, n) for n in dir(builtin)}
    kinds = {n: k for n, k in kinds.items() if isinstance(k, type) and n not in ("OpDef", "PyOpBase")}
    with open(sys.argv[1], "w") as file:
        lines = ["%s: %s" % (json.dumps(n), json.dumps(described(k))) for n, k in sorted(kinds.items())]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
