// Indices of INDEX, checked.
#pragma once
#include "units.cuh"

// Reports an index outside: of those too large the largest, else the smallest, as a number that is never 0.
COC_FN void refuse(int* refused, i64 index) {
    const i64 most = (1 << 30) - 1;
    const i64 size = index < 0 ? -index : index;
    atomicMax(refused, (int)((index < 0 ? 0 : 1 << 30) + (size > most || size < 0 ? most : size)));
}

// The index counted from 0 along an axis of `length`; one outside is refused, and 0.
COC_FN i64 inside(INDEX given, i64 length, int* refused) {
    i64 index = (i64)given;
    if ((INDEX)-1 > (INDEX)0 && index < 0) index = 0x7fffffffffffffffLL;  // 2**63 or more
    if (index < -length || index >= length) {
        refuse(refused, index);
        return 0;
    }
    return index < 0 ? index + length : index;
}

// The place in `whole` of an index array's element, whose own place is rows.first_index + i; part of it is along `which`.
COC_FN i64 along(const INDEX* index, const Rows& rows, i64 length, int* refused, unsigned i) {
    unsigned left = i;
    i64 place = rows.first_whole;
    for (int axis = rows.axes - 1; axis >= 0; axis--) {
        const unsigned at = split_off(rows.lengths, axis, left);
        place += at * rows.whole[axis];
    }
    return place + inside(index[rows.first_index + i], length, refused) * rows.step;
}
