// Elements at places that index arrays name. SIZE: bytes of a unit. INDEX: the type of an index array.
#include "indices.cuh"

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
