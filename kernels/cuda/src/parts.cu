// Up to 8 arrays as parts of the rows of one, or rows cut into as many. SIZE: bytes of a unit.
#include "units.cuh"

struct Parts {
    Lengths width;       // of the parts together, in units; the first entry
    unsigned starts[8];  // of each part in a row; those that do not exist begin at the end
    unsigned whole;      // units of a whole row
    unsigned first;      // where the parts begin in it
};
#define EIGHT(type, name) type name##0, type name##1, type name##2, type name##3, type name##4, type name##5, type name##6, type name##7

// The part of a column; the column becomes that in the part, `width` the part's.
#define CHOOSE(name, k, end) \
    if (column >= p.starts[k]) chosen = name##k, start = p.starts[k], stop = end;
#define PART_OF(type, name)              \
    type chosen = name##0;               \
    unsigned start = 0, stop = p.starts[1]; \
    CHOOSE(name, 1, p.starts[2])         \
    CHOOSE(name, 2, p.starts[3])         \
    CHOOSE(name, 3, p.starts[4])         \
    CHOOSE(name, 4, p.starts[5])         \
    CHOOSE(name, 5, p.starts[6])         \
    CHOOSE(name, 6, p.starts[7])         \
    CHOOSE(name, 7, p.width.size[0])     \
    const i64 inside = (i64)row * (stop - start) + (column - start), outside = (i64)row * p.whole + p.first + column;

KERNEL(join_parts, void* out, EIGHT(const void*, x), Parts p, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned row = i;
        const unsigned column = split_off(p.width, 0, row);
        PART_OF(const void*, x)
        ((Unit*)out)[outside] = ((const Unit*)chosen)[inside];
    }
}
KERNEL(cut_parts, const void* x, EIGHT(void*, out), Parts p, unsigned n) {
    EACH_UNIT(i, n) {
        unsigned row = i;
        const unsigned column = split_off(p.width, 0, row);
        PART_OF(void*, out)
        ((Unit*)chosen)[inside] = ((const Unit*)x)[outside];
    }
}
