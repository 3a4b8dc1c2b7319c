// Arithmetic without subnormal numbers.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace mge {

// Subnormal numbers count as zero while it lives: products of them take hundreds of times as long, and what
// softmax makes of a mask is full of them.
class FlushSubnormals {
  public:
#if defined(__SSE2__)
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // of results, of operands
    ~FlushSubnormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#else
    FlushSubnormals() {}
    ~FlushSubnormals() {}

  public:
#endif
    FlushSubnormals(const FlushSubnormals&) = delete;
    FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

}  // namespace mge
