// What a layer does to its sum before it is rounded to the dtype of the result. W: float or double.
#pragma once
template <class W>
COC_FN W act_none(W v) {
    return v;
}
