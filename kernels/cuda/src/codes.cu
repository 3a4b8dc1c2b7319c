// Places in an array from index arrays. INDEX: the type of theirs.
#define SIZE 1
#include "indices.cuh"

// codes = codes * length + index, places += index * distance: the next of several index arrays. Both begin at 0.
KERNEL(join, i64* codes, i64* places, const INDEX* index, i64 start, i64 apart, i64 length, i64 distance, int first,
       int* refused, i64 n) {
    FOR_EACH(i, n) {
        const i64 at = inside(index[start + i * apart], length, refused);
        codes[i] = first ? at : codes[i] * length + at;
        if (places) places[i] = (first ? 0 : places[i]) + at * distance;
    }
}

KERNEL(places_along, i64* places, const INDEX* index, Rows rows, i64 length, int* refused, unsigned n) {
    EACH_UNIT(i, n) places[rows.first_index + i] = along(index, rows, length, refused, i);
}
