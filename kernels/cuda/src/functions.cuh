// Functions of one number. Of float: the operations of kernels/reference/functions.py and wide_functions.py, in their
// order, and so their bits, in programs whose products and sums are not joined (--fmad=false). Of double: CUDA's own.
#pragma once

typedef unsigned long long u64;

COC_FN int bits_of(float x) { return (int)__float_as_uint(x); }
COC_FN float float_of(int bits) { return __uint_as_float((unsigned)bits); }
COC_FN float infinity() { return float_of(0x7f800000); }
COC_FN float no_number() { return float_of(0x7fc00000); }
COC_FN double wide_of(u64 bits) { return __longlong_as_double((i64)bits); }
COC_FN u64 wide_bits(double x) { return (u64)__double_as_longlong(x); }
COC_FN bool negative(float x) { return bits_of(x) < 0; }
constexpr double kShift = 6755399441055744.;  // 1.5 * 2^52: the last bits of a sum with it are a whole number

// ---------------------------------------------------------------- in float

COC_FN float power_of_two(int n) { return float_of((n + 127) << 23); }

// 2^n * exp(r), |r| <= ln(2)/2. 2^n is two factors, because it may be subnormal.
COC_FN float exp_of(float x) {
    constexpr float round = 12582912.f;  // 1.5 * 2^23
    float v = x < -104.f ? -104.f : x;
    v = v > 89.f ? 89.f : v;
    const float n = (v * 1.44269504f + round) - round;
    const float r = (v - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 0.00138144f;
    p = p * r + 0.0083688f;
    p = p * r + 0.0416684f;
    p = p * r + 0.1666652f;
    p = p * r + 0.49999993f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    const int whole = (int)(n == n ? n : 0.f), half = whole >> 1;
    return p * power_of_two(half) * power_of_two(whole - half);
}

// Of softmax, which takes no powers that are subnormal numbers.
COC_FN float power_of_distance(float x) { return exp_of(x < -87.33654f ? -104.f : x); }

COC_FN float log_of(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int bits = bits_of(tiny ? x * 8388608.f : x);
    const int exponent = (int)((unsigned)bits - 0x3f3504f3u) >> 23;
    const float m = float_of((int)((unsigned)bits - ((unsigned)exponent << 23)));
    const float e = (float)(tiny ? exponent - 23 : exponent);
    const float s = (m - 1.f) / (m + 1.f), t = s * s;
    float p = 0.23620364f;
    p = p * t + 0.2853484f;
    p = p * t + 0.40000388f;
    p = p * t + 0.6666666f;
    p = p * t + 2.f;
    const float y = (s * p + e * -2.12194440e-4f) + e * 0.693359375f;
    const float low = x == 0.f ? -infinity() : y;
    return x >= 0.f ? (x == infinity() ? x : low) : no_number();
}

// log(1 + x) for x in [0, 1].
COC_FN float log1p_near(float x) {
    const float s = x / (x + 2.f), t = s * s;
    float p = 0.28012202f;
    p = p * t + 0.28001765f;
    p = p * t + 0.40021529f;
    p = p * t + 0.66666416f;
    p = p * t + 2.f;
    return s * p;
}

COC_FN float erf_of(float x) {
    float v = x < -4.f ? -4.f : x;
    v = v > 4.f ? 4.f : v;
    const float s = v * v;
    float p = 1.98678302e-06f;
    p = p * s + 0.000284565986f;
    p = p * s + 0.00388334571f;
    p = p * s + 0.0531017532f;
    p = p * s + 0.193545095f;
    p = p * s + 1.12837914f;
    float q = 3.74201857e-05f;
    q = q * s + 0.00118557161f;
    q = q * s + 0.0152072553f;
    q = q * s + 0.115350016f;
    q = q * s + 0.50485743f;
    q = q * s + 1.f;
    const float y = v * p / q;
    const float low = y < -1.f ? -1.f : y;
    return low > 1.f ? 1.f : low;
}

COC_FN float tanh_of(float x) {
    float v = x < -9.1f ? -9.1f : x;
    v = v > 9.1f ? 9.1f : v;
    const float s = v * v, t = s * s;
    const float p = (s * 0.133826643f + 1.f) + t * ((s * 2.06354398e-05f + 0.00349743594f) + t * 1.33837865e-08f);
    const float q = (s * 0.467159808f + 1.f) + t * ((s * 0.000328848255f + 0.0258842707f) + t * 7.79001141e-07f);
    const float y = v * p / q;
    const float low = y < -1.f ? -1.f : y;
    return low > 1.f ? 1.f : low;
}

COC_FN float sigmoid_of(float x) { return 1.f / (1.f + exp_of(-x)); }
COC_FN float silu_of(float x) { return x * (1.f / (1.f + exp_of(-x))); }
COC_FN float gelu_of(float x) { return x * 0.5f * (1.f + erf_of(x * 0.70710678f)); }
COC_FN float softplus_of(float x) {
    return (x < 0.f ? 0.f : x) + log1p_near(exp_of(negative(x) ? x : -x));
}

// ---------------------------------------------------------------- in double, rounded once

template <int N>
COC_FN double horner(const double (&factors)[N], double x) {
    double p = factors[0];
#pragma unroll
    for (int i = 1; i < N; ++i) p = p * x + factors[i];
    return p;
}

// exp(v), v in [-104, 92].
COC_FN double exp_wide(double v) {
    const double shifted = v * 1.4426950408889634 + kShift, n = shifted - kShift;
    const double p = horner({1. / 479001600., 1. / 39916800., 1. / 3628800., 1. / 362880., 1. / 40320., 1. / 5040.,
                             1. / 720., 1. / 120., 1. / 24., 1. / 6., 0.5, 1., 1.},
                            v - n * 0.6931471805599453);
    return p * wide_of((wide_bits(shifted) + 1023) << 52);
}

COC_FN double log_series(double t) {
    return horner({1. / 17., 1. / 15., 1. / 13., 1. / 11., 1. / 9., 1. / 7., 1. / 5., 1. / 3., 1.}, t);
}

// log(u), u normal and above 0.
COC_FN double log_wide(double u) {
    constexpr u64 one = 1023ull << 52, root = 0x3fe6a09e667f3bcdull;
    const u64 bits = wide_bits(u), exponent = (bits + (one - root)) >> 52;
    const double m = wide_of(bits - (exponent << 52) + one);
    const double e = (double)(i64)exponent - 1023.;
    const double s = (m - 1.) / (m + 1.);
    return e * 0.6931471805599453 + 2. * s * log_series(s * s);
}

COC_FN double log1p_wide(double x) {
    const double u = 1. + x;
    const double y = log_wide(u) + (x - (u - 1.)) / u;
    const double far = u == (double)infinity() ? (double)infinity() : y;
    const double low = u == 0. ? -(double)infinity() : far;
    return u >= 0. ? low : (double)no_number();
}

COC_FN float with_sign_of(float x, double y) {
    const float size = (float)y;
    return negative(x) ? -size : size;
}

COC_FN float log1p_of(float x) {
    const float y = (float)log1p_wide((double)x);
    return x == 0.f ? x : y;
}

COC_FN float expm1_of(float x) {
    double v = (double)x;
    v = v < -104. ? -104. : v;
    v = v > 92. ? 92. : v;
    const double near = v * horner({1. / 40320., 1. / 5040., 1. / 720., 1. / 120., 1. / 24., 1. / 6., 0.5, 1.}, v);
    const float y = (float)(fabs(v) < 0.0625 ? near : exp_wide(v) - 1.);
    return x == 0.f ? x : y;
}

COC_FN double size_of_hyperbolic(float x) {
    const double a = fabs((double)x);
    return a > 92. ? 92. : a;
}

COC_FN float sinh_of(float x) {
    const double a = size_of_hyperbolic(x), e = exp_wide(a);
    const double near = a * horner({1. / 5040., 1. / 120., 1. / 6., 1.}, a * a);
    return with_sign_of(x, a < 0.0625 ? near : (e - 1. / e) * 0.5);
}

COC_FN float cosh_of(float x) {
    const double e = exp_wide(size_of_hyperbolic(x));
    return (float)((e + 1. / e) * 0.5);
}

COC_FN float asinh_of(float x) {
    const double a = fabs((double)x), s = a * a;
    const double y = log1p_wide(a + s / (1. + sqrt(s + 1.)));
    return with_sign_of(x, a == (double)infinity() ? a : y);
}

COC_FN float acosh_of(float x) {
    const double t = (double)x - 1.;
    const double y = log1p_wide(t + sqrt(t * (t + 2.)));
    return (float)(t >= 0. ? y : (double)no_number());
}

COC_FN float atanh_of(float x) {
    const double a = fabs((double)x);
    return with_sign_of(x, 0.5 * log1p_wide(a + a == 2. ? (double)infinity() : (a + a) / (1. - a)));
}

// ---------------------------------------------------------------- sine, cosine, tangent

// A multiple of pi/2, of which the last two bits count, and the rest: at most pi/4.
struct Turned {
    u64 quarters;
    double rest;
};

// `count` bits of 2/pi from a place on; 8 zeros stand before the point.
COC_FN double bits_of_two_over_pi(int place, int count) {
    constexpr u64 w0 = 0x00a2f9836e4e4415ull, w1 = 0x29fc2757d1f534ddull, w2 = 0xc0db6295993c4390ull,
                  w3 = 0x41fe516300000000ull;
    const int word = place >> 6, shift = place & 63;
    const u64 high = word == 0 ? w0 : word == 1 ? w1 : word == 2 ? w2 : w3;
    const u64 low = word == 0 ? w1 : word == 1 ? w2 : word == 2 ? w3 : 0;
    const u64 bits = shift ? high << shift | low >> (64 - shift) : high;
    return (double)(i64)(bits >> (64 - count));
}

// From 2^19 on: m * 2^e of 24 bits, whose products with 29 bits are exact.
COC_FN Turned far_angle(float a) {
    const int bits = bits_of(a), row = (bits >> 23) - 146, e = (row < 108 ? row : 108) - 4;
    const double m = (double)((bits & 0x7fffff) | 0x800000);
    const double high = m * (bits_of_two_over_pi(e + 6, 29) * 0x1p-27), shifted = high + kShift;
    const double sum = (high - (shifted - kShift)) + m * (bits_of_two_over_pi(e + 35, 29) * 0x1p-56);
    const double again = sum + kShift;
    const double rest = (sum - (again - kShift)) + m * (bits_of_two_over_pi(e + 64, 53) * 0x1p-109);
    const double known = a == infinity() || a != a ? (double)no_number() : rest;
    return {wide_bits(shifted) + wide_bits(again), known * 1.5707963267948966};
}

COC_FN Turned turned(float x) {
    const float a = fabsf(x);
    if (a >= 524288.f) return far_angle(a);
    const double shifted = (double)a * 0.6366197723675814 + kShift, n = shifted - kShift;
    return {wide_bits(shifted), ((double)a - n * 1.5707963267341256) - n * 6.077100506506192e-11};
}

COC_FN double sine_of(double r) {
    return r * horner({1. / 6227020800., -1. / 39916800., 1. / 362880., -1. / 5040., 1. / 120., -1. / 6., 1.}, r * r);
}

COC_FN double cosine_of(double r) {
    return horner({-1. / 87178291200., 1. / 479001600., -1. / 3628800., 1. / 40320., -1. / 720., 1. / 24., -0.5, 1.},
                  r * r);
}

// The sine of an angle `quarters` quarter turns behind another.
COC_FN double sine_behind(const Turned& t, u64 quarters) {
    const u64 n = t.quarters + quarters;
    const double y = (n & 1) ? cosine_of(t.rest) : sine_of(t.rest);
    return (n & 2) ? -y : y;
}

COC_FN float sin_of(float x) { return with_sign_of(x, sine_behind(turned(x), 0)); }
COC_FN float cos_of(float x) { return (float)sine_behind(turned(x), 1); }
COC_FN float tan_of(float x) {
    const Turned t = turned(x);
    const double s = sine_of(t.rest), c = cosine_of(t.rest);
    const bool odd = t.quarters & 1;
    return with_sign_of(x, (odd ? -c : s) / (odd ? s : c));
}

// ---------------------------------------------------------------- angles

// The angle in [0, pi/2] of the point (x, y), both not negative.
COC_FN double angle_of(double y, double x) {
    const bool steep = y > x;
    const double least = steep ? x : y, most = steep ? y : x;
    const double whole = least == most ? (most == 0. ? 0. : 1.) : least / most;
    const bool far = whole > 0.41421356237309503;
    const double t = far ? (whole - 1.) / (whole + 1.) : whole;
    const double p = horner({-0.025316479573776474, 0.05024762118940128, -0.0650598296717084, 0.07673535428183285,
                             -0.09089529956562307, 0.11111048853751296, -0.14285712661684793, 0.19999999978392663,
                             -0.3333333333322143, 0.999999999999999},
                            t * t);
    const double a = (far ? 0.7853981633974483 : 0.) + t * p;
    return steep ? 1.5707963267948966 - a : a;
}

COC_FN float atan_of(float x) { return with_sign_of(x, angle_of(fabs((double)x), 1.)); }
COC_FN float asin_of(float x) {
    const double a = fabs((double)x);
    return with_sign_of(x, angle_of(a, sqrt((1. - a) * (1. + a))));
}
COC_FN float acos_of(float x) {
    const double v = (double)x;
    return (float)(2. * angle_of(sqrt(1. - v), sqrt(1. + v)));
}
COC_FN float atan2_of(float y, float x) {
    const double a = angle_of(fabs((double)y), fabs((double)x));
    return with_sign_of(y, negative(x) ? 3.141592653589793 - a : a);
}

// ---------------------------------------------------------------- powers

// The square root of x^(3/2), or of its reciprocal, of x times a power of two with which nothing overflows.
COC_FN float three_quarters(float x, bool below) {
    const bool large = x > 18446744073709551616.f, normal = x > 5.42101086e-20f;  // 2^64, 2^-64
    const float v = x * (large ? 5.42101086e-20f : normal ? 1.f : 7.92281625e28f);
    const float whole = v * sqrtf(v), root = sqrtf(below ? 1.f / whole : whole);
    const float up = 281474976710656.f, down = 3.55271368e-15f;  // 2^48
    const float far_up = 4722366482869645213696.f, far_down = 2.11758237e-22f;  // 2^72
    if (normal) return large ? root * (below ? down : up) : root;
    return root * (below ? far_up : far_down);
}

// x^(fourths / 4) by square roots.
COC_FN float quarters_power(float number, int fourths) {
    const float x = number == 0.f || number == -infinity() ? fabsf(number) : number;
    const bool below = fourths < 0;
    const int size = below ? -fourths : fourths;
    if (size == 3) return three_quarters(x, below);
    const float root = sqrtf(x), half = below ? 1.f / root : root;
    return size == 1 ? sqrtf(half) : half;
}

// exp(y * log|x|), with the sign of odd powers.
COC_FN float general_power(float x, float y) {
    const float whole = fabsf(x);
    const bool tiny = whole < 1.17549435e-38f;
    const int bits = bits_of(tiny ? whole * 8388608.f : whole);
    const int exponent = (bits - 0x3f3504f3) >> 23;
    const double m = (double)float_of((int)((unsigned)bits - ((unsigned)exponent << 23)));
    const double s = (m - 1.) / (m + 1.);
    double log = (double)(tiny ? exponent - 23 : exponent) * 0.6931471805599453 + 2. * s * log_series(s * s);
    log = whole == 0.f ? -(double)infinity() : whole == infinity() ? (double)infinity() : log;
    log = x != x ? (double)x : log;
    double v = (double)y * log;
    const bool undefined = v != v;
    v = v < -160. || undefined ? -160. : v;
    v = v > 160. ? 160. : v;
    const float z = (float)exp_wide(v);
    const float size = undefined ? no_number() : z;
    const float half = y * 0.5f;
    const bool integral = floorf(y) == y, odd = integral && floorf(half) != half;
    const float with_sign = odd && negative(x) ? -size : size;
    const float real = x < 0.f && whole != infinity() && !integral ? no_number() : with_sign;
    return y == 0.f || x == 1.f || (x == -1.f && fabsf(y) == infinity()) ? 1.f : real;
}

COC_FN float pow_of(float x, float y) {
    const float fourths = y * 4.f;
    const bool few = fabsf(fourths) <= 3.f && fourths == floorf(fourths) && fourths != 0.f;
    return few ? quarters_power(x, (int)fourths) : general_power(x, y);
}

// ---------------------------------------------------------------- of double

#define WIDE_FUNCTION(name) \
    COC_FN double name##_of(double x) { return name(x); }
WIDE_FUNCTION(exp)
WIDE_FUNCTION(log)
WIDE_FUNCTION(tanh)
WIDE_FUNCTION(erf)
WIDE_FUNCTION(log1p)
WIDE_FUNCTION(expm1)
WIDE_FUNCTION(sinh)
WIDE_FUNCTION(cosh)
WIDE_FUNCTION(asinh)
WIDE_FUNCTION(acosh)
WIDE_FUNCTION(atanh)
WIDE_FUNCTION(sin)
WIDE_FUNCTION(cos)
WIDE_FUNCTION(tan)
WIDE_FUNCTION(asin)
WIDE_FUNCTION(acos)
WIDE_FUNCTION(atan)
COC_FN double sigmoid_of(double x) { return 1. / (1. + exp(-x)); }
COC_FN double silu_of(double x) { return x * sigmoid_of(x); }
COC_FN double gelu_of(double x) { return x * 0.5 * (1. + erf(x / 1.4142135623730951)); }
COC_FN double softplus_of(double x) { return x == 0. ? 0.6931471805599453 : (x > 0. ? x : 0.) + log1p(exp(-fabs(x))); }
COC_FN double atan2_of(double y, double x) { return atan2(y, x); }
COC_FN double pow_of(double x, double y) { return pow(x, y); }
