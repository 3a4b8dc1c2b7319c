"""Record what the real MegEngine's attention gives: `python attention.py OUT.npz`, with megengine 1.13.0 installed.

Its gradient fails on a CPU, so these cases stand beside those of record.py, which ask for one.
"""

import sys

import numpy as np

CASES = {  # features of query, key, value; sizes of their projections (q and k, v, result); heads; biases; mask
    "square": ((6, 6, 6), (6, 6, 6), 2, False, None),
    "rectangular": ((6, 5, 7), (8, 4, 10), 2, True, "attn_mask"),
    "heads that do not divide": ((4, 4, 4), (6, 6, 4), 3, True, "key_padding_mask"),
}


def inputs_of(name):
    """Query, key, value, weights, mask as arrays, and the options of a call."""
    (eq, ek, ev), (pk, pv, po), _, bias, mask = CASES[name]
    rng = np.random.default_rng(len(name))
    count = (eq + ek) * pk + ev * pv + pv * po + (2 * pk + pv + po) * bias
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, eq), (2, 3, ek), (2, 3, ev), (1, count))]
    masks = {"attn_mask": rng.standard_normal((3, 3)), "key_padding_mask": np.array([[0, 1, 0], [0, 0, 1]]) * -1e9}
    options = {"qproj_size": pk, "kproj_size": pk, "vproj_size": pv, "oproj_size": po, "need_weights": True}
    options.update({"qbias": bias, "kbias": bias, "vbias": bias, "obias": bias, "training": False})
    return [*arrays, *([masks[mask].astype(np.float32)] if mask else [])], options


def attention(engine, functional, name):
    """(result, weights) of one case as arrays."""
    arrays, options = inputs_of(name)
    (eq, _, _), _, heads, _, mask = CASES[name]
    query, key, value, weights, *masks = map(engine.tensor, arrays)
    options.update(zip([mask], masks))
    found = functional.multi_head_attention(query, key, value, eq, heads, 0.0, 0.0, weights, **options)
    return [t.numpy() for t in found]


if __name__ == "__main__":
    import megengine
    import megengine.functional.nn

    recorded = {}
    for name in CASES:
        result, weights = attention(megengine, megengine.functional.nn, name)
        recorded.update({name + " -> result": result, name + " -> weights": weights})
    np.savez(sys.argv[1], **recorded)
