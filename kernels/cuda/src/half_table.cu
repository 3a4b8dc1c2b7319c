// Numbers that a table of 2^16 gives for the bits of halves. TYPE: of as many bytes as an entry has.
KERNEL(half_table, TYPE* out, const unsigned short* x, const TYPE* table, i64 n) {
    FOR_EACH(i, n) out[i] = table[x[i]];
}
