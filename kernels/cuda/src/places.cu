// Places by running counts, groups of sorted elements, and numbers: what does not depend on the type of elements.

#include "dividing.cuh"

// out [axes, count]: the coordinates of the elements that `sums`, the running count, finds.
struct Shape {
    int axes;
    unsigned size[64];
};
KERNEL(write_places, i64* out, const int* sums, Shape shape, i64 count, i64 n) {
    FOR_EACH(i, n) {
        const int at = sums[i] - 1;
        if (at < (i ? sums[i - 1] : 0)) continue;
        i64 left = i;
        for (int axis = shape.axes - 1; axis >= 0; axis--) {
            out[axis * count + at] = split_off(left, shape.size[axis]);
        }
    }
}

KERNEL(count_up, i64* out, i64 n) {
    FOR_EACH(i, n) out[i] = i;
}

// then = before[places]
KERNEL(compose, int* then, const int* before, const int* places, i64 n) {
    FOR_EACH(i, n) then[i] = before ? before[places[i]] : places[i];
}

// Groups in sorted order: ids[i] counts the groups up to i. first: where each stands in the array; start: in sorted order.
KERNEL(write_groups, i64* first, i64* start, i64* inverse, const int* ids, const int* order, i64 n) {
    FOR_EACH(i, n) {
        const i64 group = ids[i] - 1;
        inverse[order[i]] = group;
        if (i == 0 || ids[i - 1] != ids[i]) {
            first[group] = order[i];
            start[group] = i;
        }
    }
}
KERNEL(write_counts, i64* counts, const i64* start, i64 n, i64 groups) {
    FOR_EACH(i, groups) counts[i] = (i + 1 < groups ? start[i + 1] : n) - start[i];
}

// Groups numbered by where they first stand: ranks counts the first places up to each.
KERNEL(mark_first, int* marks, const i64* first, i64 groups) {
    FOR_EACH(i, groups) marks[first[i]] = 1;
}
KERNEL(renumber_groups, i64* first_out, i64* counts_out, const i64* first, const i64* counts, const int* ranks, i64 groups) {
    FOR_EACH(i, groups) {
        const i64 at = ranks[first[i]] - 1;
        first_out[at] = first[i];
        counts_out[at] = counts[i];
    }
}
KERNEL(renumber, i64* inverse_out, const i64* inverse, const i64* first, const int* ranks, i64 n) {
    FOR_EACH(i, n) inverse_out[i] = ranks[first[inverse[i]]] - 1;
}
