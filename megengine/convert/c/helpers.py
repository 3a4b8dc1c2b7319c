"""C functions that the steps of a network call: the float32 arithmetic of the specification, in integers.

`real` is a float32 number m * 2**e with m = 0 or 2**23 <= |m| < 2**24. Every function rounds once, to the nearest
number, ties to even, as IEEE 754 does, so compilers and processors have no say in the results: not their contraction,
excess precision, rounding mode or fast mathematics. `$p` stands for the prefix of all names of a file.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Helper:
    """The text of a function, and the functions that it calls."""

    text: str
    needs: tuple[str, ...] = ()


HELPERS: dict[str, Helper] = {
    "bits": Helper("""
/* how many bits a number has */
static int32_t ${p}bits(uint64_t v)
{
#if defined(__GNUC__)
    return v ? 64 - (int32_t)__builtin_clzll(v) : 0;
#else
    int32_t n = 0, k;
    for (k = 32; k; k >>= 1)
        if (v >> k) {
            v >>= k;
            n += k;
        }
    return n + (int32_t)v;
#endif
}
"""),
    "shifted": Helper("""
/* v / 2**n, rounded to the nearest integer, ties to even; 0 < n < 64 */
static uint64_t ${p}shifted(uint64_t v, int32_t n)
{
    uint64_t half = (uint64_t)1 << (n - 1), rest = v & ((half << 1) - 1), whole = v >> (n - 1) >> 1;
    return whole + ((rest > half) | ((rest == half) & (whole & 1)));
}
"""),
    "rounded": Helper(
        """
typedef struct {
    int64_t m;
    int32_t e;
} ${p}real;

/* m * 2**e as float32 */
static ${p}real ${p}rounded(int64_t m, int32_t e)
{
    ${p}real r = {0, -100000};
    uint64_t v = m < 0 ? (uint64_t)0 - (uint64_t)m : (uint64_t)m;
    int32_t n = ${p}bits(v) - 24;
    if (n < -149 - e)
        n = -149 - e;
    if (n > 63 || v == 0)
        return r;
    if (n > 0) {
        v = ${p}shifted(v, n);
        e += n;
        if (v == 0)
            return r;
    }
    n = 24 - ${p}bits(v);
    v = n < 0 ? v >> -n : v << n;
    r.m = m < 0 ? -(int64_t)v : (int64_t)v;
    r.e = e - n > 104 ? 1 << 20 : e - n; /* infinite */
    return r;
}
""",
        ("bits", "shifted"),
    ),
    "of_bits": Helper(
        """
/* the number whose float32 has these bits */
static ${p}real ${p}of_bits(uint32_t bits)
{
    int64_t m = bits & 0x7fffff;
    int32_t e = (int32_t)(bits >> 23) & 255;
    m = e ? m | 0x800000 : m;
    return ${p}rounded(bits >> 31 ? -m : m, e ? e - 150 : -149);
}
""",
        ("rounded",),
    ),
    "mul": Helper(
        """
static ${p}real ${p}mul(${p}real a, ${p}real b)
{
    return ${p}rounded(a.m * b.m, a.e + b.e);
}
""",
        ("rounded",),
    ),
    "add": Helper(
        """
static ${p}real ${p}add(${p}real a, ${p}real b)
{
    if (a.e < b.e) {
        ${p}real c = a;
        a = b;
        b = c;
    }
    if (b.m == 0 || a.e - b.e > 30)
        return a;
    return ${p}rounded(a.m * ((int64_t)1 << (a.e - b.e)) + b.m, b.e);
}
""",
        ("rounded",),
    ),
    "div": Helper(
        """
/* a / b; b is not 0 */
static ${p}real ${p}div(${p}real a, ${p}real b)
{
    uint64_t x = (uint64_t)(a.m < 0 ? -a.m : a.m) << 38, y = (uint64_t)(b.m < 0 ? -b.m : b.m);
    int64_t q = (int64_t)(x / y | (x % y != 0));
    return ${p}rounded((a.m < 0) != (b.m < 0) ? -q : q, a.e - b.e - 38);
}
""",
        ("rounded",),
    ),
    "nearest": Helper(
        """
/* the nearest integer, ties to even, within lo and hi */
static int32_t ${p}nearest(${p}real a, int32_t lo, int32_t hi)
{
    int32_t v;
    if (a.e >= 0)
        return a.m < 0 ? lo : hi;
    if (a.e < -25)
        v = 0;
    else if (a.m < 0)
        v = -(int32_t)${p}shifted((uint64_t)-a.m, -a.e);
    else
        v = (int32_t)${p}shifted((uint64_t)a.m, -a.e);
    return v < lo ? lo : v > hi ? hi : v;
}
""",
        ("rounded",),
    ),
    "store": Helper(
        """
/* write a number as float32 */
static void ${p}store(${p}f32 *y, ${p}real a)
{
    uint32_t v = (uint32_t)(a.m < 0 ? -a.m : a.m), bits;
    if (v == 0)
        bits = 0;
    else if (a.e > 104)
        bits = 0x7f800000u;
    else if (a.e < -149)
        bits = v >> (-149 - a.e);
    else
        bits = ((uint32_t)(a.e + 150) << 23) | (v & 0x7fffffu);
    bits |= a.m < 0 ? 0x80000000u : 0;
    memcpy(y, &bits, 4);
}
""",
        ("rounded",),
    ),
    "quantized": Helper(
        """
/* x / s, rounded and clamped; NaN gives lo */
static int32_t ${p}quantized(const ${p}f32 *x, ${p}real s, int32_t lo, int32_t hi)
{
    uint32_t bits;
    memcpy(&bits, x, 4);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return bits == 0x7f800000u ? hi : lo;
    return ${p}nearest(${p}div(${p}of_bits(bits), s), lo, hi);
}
""",
        ("of_bits", "div", "nearest"),
    ),
    "layer": Helper(
        """
/* acc * M + B, each operation rounded */
static ${p}real ${p}layer(int64_t acc, ${p}real M, ${p}real B)
{
    return ${p}add(${p}mul(${p}rounded(acc, 0), M), B);
}
""",
        ("mul", "add"),
    ),
    "nibble": Helper("""
/* the weight i of those of 4 bits, which lie two to a byte */
static int32_t ${p}nibble(const uint8_t *w, int32_t i)
{
    return (int32_t)((w[i >> 1] >> (4 * (i & 1))) & 15u) - 8;
}
"""),
    "wide": Helper(
        """
/* a float64 number m * 2**e with m = 0 or 2**52 <= m < 2**53; with `more`, v * 2**e lacks a little, and v is longer */
typedef struct {
    uint64_t m;
    int32_t e;
} ${p}wide;

static ${p}wide ${p}widened(uint64_t v, int32_t e, uint64_t more)
{
    ${p}wide r;
    int32_t n = ${p}bits(v) - 53;
    if (v == 0) {
        r.m = 0;
        r.e = -100000;
        return r;
    }
    v |= more;
    v = n > 0 ? ${p}shifted(v, n) : v << -n;
    e += n;
    if (v >> 53) {
        v >>= 1;
        e += 1;
    }
    r.m = v;
    r.e = e;
    return r;
}
""",
        ("bits", "shifted"),
    ),
    "wide_add": Helper(
        """
static ${p}wide ${p}wide_add(${p}wide a, ${p}wide b)
{
    int32_t d;
    if (a.e < b.e) {
        ${p}wide c = a;
        a = b;
        b = c;
    }
    d = a.e - b.e;
    if (d > 60)
        return a;
    return d <= 9 ? ${p}widened((a.m << d) + b.m, b.e, 0)
                  : ${p}widened((a.m << 9) + (b.m >> (d - 9)), a.e - 9, (b.m & (((uint64_t)1 << (d - 9)) - 1)) != 0);
}
""",
        ("wide",),
    ),
    "wide_div": Helper(
        """
static ${p}wide ${p}wide_div(${p}wide a, ${p}wide b)
{
    uint64_t rest = a.m, q = 0;
    int32_t i;
    for (i = 0; i < 60; ++i) {
        q = q << 1 | (rest >= b.m);
        rest = (rest >= b.m ? rest - b.m : rest) << 1;
    }
    return ${p}widened(q, a.e - b.e - 59, rest != 0);
}
""",
        ("wide",),
    ),
    "wide_sqrt": Helper(
        """
static ${p}wide ${p}wide_sqrt(${p}wide a)
{
    uint64_t m = a.m << (a.e & 1), rest = 0, root = 0;
    int32_t e = a.e - (a.e & 1), i;
    for (i = 0; i < 56; ++i) { /* a bit of the root for two bits of m, and of zeros behind it */
        rest = rest << 2 | (i < 27 ? m >> (52 - 2 * i) & 3 : 0);
        root <<= 1;
        if (rest > root << 1) {
            rest -= root << 1 | 1;
            root |= 1;
        }
    }
    return ${p}widened(root, e / 2 - 29, rest != 0);
}
""",
        ("wide",),
    ),
}


def in_order(names: set[str]) -> list[str]:
    """The helpers with all that they call, in the order in which they stand in a file."""
    wanted, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += HELPERS[name].needs
    return [name for name in HELPERS if name in wanted]
