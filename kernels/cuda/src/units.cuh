// What moves are written with: elements as units of SIZE bytes whatever their type is, and places found from numbers.
#pragma once
#if SIZE == 1
typedef u8 Unit;
#elif SIZE == 2
typedef unsigned short Unit;
#elif SIZE == 4
typedef unsigned Unit;
#elif SIZE == 8
typedef unsigned long long Unit;
#else
typedef int4 Unit;
#endif

#define MOST_AXES 12

// Lengths of axes with what divides by them: n / size == (high word of n * magic + n) >> shift for n < 2**31.
struct Lengths {
    unsigned size[MOST_AXES], magic[MOST_AXES], shift[MOST_AXES];
};
// The coordinate along an axis of a number that counts elements in C order; what is left counts the axes before it.
COC_FN unsigned split_off(const Lengths& lengths, int axis, unsigned& left) {
    const unsigned high = (unsigned)((unsigned long long)left * lengths.magic[axis] >> 32);
    const unsigned next = (high + left) >> lengths.shift[axis], coordinate = left - next * lengths.size[axis];
    left = next;
    return coordinate;
}

// Two arrays in step along axes: `part` holds one row for each index, `whole` is indexed. Along axis `which` of `part`
// the place in `whole` is what the index names * step.
struct Rows {
    int axes, which;
    Lengths lengths;
    i64 whole[MOST_AXES], part[MOST_AXES], first_whole, first_part, first_index, step;
};

// Every unit of [0, n), n < 2**31.
#define EACH_UNIT(i, n) \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x, i##_step = gridDim.x * blockDim.x; i < (n); i += i##_step)
