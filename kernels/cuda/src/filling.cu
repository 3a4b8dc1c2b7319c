// Arrays of one value. TYPE: that of an element.
KERNEL(fill, TYPE* out, TYPE value, i64 n) {
    FOR_EACH(i, n) out[i] = value;
}
