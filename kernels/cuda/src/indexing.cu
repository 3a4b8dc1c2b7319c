// Elements at places that index arrays name. SIZE: bytes of a unit. INDEX: the type of an index array.
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

// part[...] = whole[index]: n units.
KERNEL(take, void* part, const void* whole, const INDEX* index, Rows rows, i64 length, int* refused, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned left = i;
        i64 from = rows.first_whole, to = rows.first_part;
        for (int axis = rows.axes - 1; axis >= 0; axis--) {
            const unsigned at = split_off(rows.lengths, axis, left);
            if (axis == rows.which)
                from += inside(index[rows.first_index + at], length, refused) * rows.step;
            else
                from += at * rows.whole[axis];
            to += at * rows.part[axis];
        }
        ((Unit*)part)[to] = ((const Unit*)whole)[from];
    }
}

// codes = codes * length + index, places += index * distance: the next of several index arrays. Both begin at 0.
KERNEL(join, i64* codes, i64* places, const INDEX* index, i64 start, i64 apart, i64 length, i64 distance, int first,
       int* refused, i64 n) {
    FOR_EACH(i, n) {
        const i64 at = inside(index[start + i * apart], length, refused);
        codes[i] = first ? at : codes[i] * length + at;
        if (places) places[i] = (first ? 0 : places[i]) + at * distance;
    }
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
KERNEL(places_along, i64* places, const INDEX* index, Rows rows, i64 length, int* refused, unsigned n) {
    EACH_UNIT(i, n) places[rows.first_index + i] = along(index, rows, length, refused, i);
}
KERNEL(take_along, void* part, const void* whole, const INDEX* index, Rows rows, i64 length, int* refused, unsigned n) {
    EACH_UNIT(i, n)
    ((Unit*)part)[rows.first_index + i] = ((const Unit*)whole)[along(index, rows, length, refused, i)];
}

// winners[code]: 1 + the last position that names it.
KERNEL(find_winners, int* winners, const i64* codes, i64 n) {
    FOR_EACH(i, n) atomicMax(&winners[codes[i]], (int)i + 1);
}

// whole[place] = part[position], where a position is the winner of its code.
KERNEL(put, void* whole, const void* part, const i64* codes, const i64* places, const int* winners, Rows rows, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned left = i;
        i64 to = rows.first_whole, from = rows.first_part;
        bool wins = true;
        for (int axis = rows.axes - 1; axis >= 0; axis--) {
            const unsigned at = split_off(rows.lengths, axis, left);
            from += at * rows.part[axis];
            if (axis == rows.which) {
                const i64 position = rows.first_index + at;
                to += places[position] * rows.step;
                wins = !winners || winners[codes[position]] == (int)position + 1;
            } else {
                to += at * rows.whole[axis];
            }
        }
        if (wins) ((Unit*)whole)[to] = ((const Unit*)part)[from];
    }
}
