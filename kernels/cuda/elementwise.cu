// Elementwise kernels over dense float32 arrays, grid-stride loops. Compiled at run time (NVRTC) or by nvcc as a check.
// One UNARY / BINARY line adds a kernel: the Python side derives its list from these lines.
// Multiply and add stand in separate intrinsics where the integer specification demands separate roundings.
typedef unsigned char u8;
typedef signed char s8;

#define INDEX_LOOP(i, n)                                                             \
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (n);    \
         i += (long long)gridDim.x * blockDim.x)

#define UNARY(name, expression)                                                      \
    extern "C" __global__ void unary_##name(const float* src, float* dst, long long n) { \
        INDEX_LOOP(i, n) {                                                           \
            const float x = src[i];                                                  \
            dst[i] = (expression);                                                   \
        }                                                                            \
    }

#define BINARY(name, expression)                                                     \
    extern "C" __global__ void binary_##name(const float* a, const float* b, float* dst, long long n) { \
        INDEX_LOOP(i, n) {                                                           \
            const float x = a[i], y = b[i];                                          \
            dst[i] = (expression);                                                   \
        }                                                                            \
    }

// A comparison that is false for NaN keeps NaN where the other branch returns x.
UNARY(relu, x < 0.f ? 0.f : x)
UNARY(relu6, x < 0.f ? 0.f : (x > 6.f ? 6.f : x))
UNARY(neg, -x)
UNARY(abs, fabsf(x))
UNARY(exp, expf(x))
UNARY(log, logf(x))
UNARY(sqrt, sqrtf(x))
UNARY(tanh, tanhf(x))
UNARY(floor, floorf(x))
UNARY(ceil, ceilf(x))
UNARY(square, x * x)
UNARY(sigmoid, 1.f / (1.f + expf(-x)))
UNARY(silu, x / (1.f + expf(-x)))
UNARY(hsigmoid, fminf(fmaxf(x + 3.f, 0.f), 6.f) * (1.f / 6.f))
UNARY(hswish, x * fminf(fmaxf(x + 3.f, 0.f), 6.f) * (1.f / 6.f))

BINARY(add, x + y)
BINARY(sub, x - y)
BINARY(mul, x * y)
BINARY(div, x / y)
BINARY(maximum, (x != x || x > y) ? x : y)
BINARY(minimum, (x != x || x < y) ? x : y)

// y = rint(clamp(x / scale, lo, hi)) + zero_point, lo and hi relative to the zero point; true division, half to even.
template <typename T>
__device__ void quantize(const float* src, T* dst, float scale, float lo, float hi, int zero_point, long long n) {
    INDEX_LOOP(i, n) {
        const float t = fminf(fmaxf(__fdiv_rn(src[i], scale), lo), hi);
        dst[i] = (T)(__float2int_rn(t) + zero_point);
    }
}

extern "C" __global__ void quantize_u8(const float* src, u8* dst, float scale, float lo, float hi, int zero_point,
                                       long long n) {
    quantize(src, dst, scale, lo, hi, zero_point, n);
}

extern "C" __global__ void quantize_s8(const float* src, s8* dst, float scale, float lo, float hi, int zero_point,
                                       long long n) {
    quantize(src, dst, scale, lo, hi, zero_point, n);
}
