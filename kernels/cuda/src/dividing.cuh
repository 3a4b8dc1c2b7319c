// Division of places, which are mostly below 2**31: then by 32-bit instructions, a quarter of the others.
#pragma once
// What is left of a place when it is divided; the place becomes the quotient.
COC_FN unsigned split_off(i64& place, unsigned by) {
    if (place >> 31 == 0) {
        const unsigned whole = (unsigned)place, quotient = whole / by;
        place = quotient;
        return whole - quotient * by;
    }
    const i64 quotient = place / by;
    const unsigned rest = (unsigned)(place - quotient * by);
    place = quotient;
    return rest;
}
