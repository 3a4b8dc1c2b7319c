// Counter-based random numbers: element i depends on the key and on i alone, and every instruction set gives
// the same bits. kernels/reference/philox.py is the same in NumPy.
#pragma once
#include <cstdint>

namespace mge {

// dst[i] = x * scale + shift for i in [0, size); x is uniform in [0, 1), or normal.
struct RandomFill {
    std::uint64_t key;
    float* dst;
    std::int64_t size;
    float scale, shift;
};

using RandomKernel = void (*)(const RandomFill& f, bool normal);
void random_base(const RandomFill& f, bool normal);
void random_avx2(const RandomFill& f, bool normal);
void random_avx512(const RandomFill& f, bool normal);
RandomKernel active_random();

}  // namespace mge
