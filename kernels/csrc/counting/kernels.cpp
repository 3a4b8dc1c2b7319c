// The baseline of the counting kernels, the choice between instruction sets, and their Python face.
#define MGE_COUNTING_KERNELS counting_kernels_base
#include "counting/kernels.inc"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "runtime/bind.h"
#include "runtime/isa.h"

namespace nb = nanobind;

namespace mge {
namespace {

using In = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<std::int64_t, nb::c_contig, nb::device::cpu>;

const CountingKernels& kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return counting_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return counting_kernels_avx2();
#endif
    return counting_kernels_base();
}

// `sums` without elements are not wanted.
bool extrema_of(In x, std::int64_t inner, Out lo, Out hi, Sums sums) {
    const auto size = static_cast<std::int64_t>(x.size()), channels = static_cast<std::int64_t>(lo.size());
    if (inner < 1 || channels < 1 || hi.size() != lo.size() || size % (channels * inner) ||
        (sums.size() && sums.size() != lo.size()))
        throw nb::value_error("extrema: sizes do not fit");
    nb::gil_scoped_release release;
    return kernels().extrema(x.data(), size / (channels * inner), channels, inner, lo.data(), hi.data(),
                             sums.size() ? sums.data() : nullptr);
}

// The GIL is held: counts are the caller's, who may read them from another thread.
void count_into(In x, float factor, std::int32_t first, Counts counts) {
    if (!kernels().count(x.data(), static_cast<std::int64_t>(x.size()), factor, first,
                         static_cast<std::int64_t>(counts.size()), counts.data()))
        throw nb::value_error("count: a value lies outside of the bins");
}

}  // namespace

void bind_counting(nb::module_& m) {
    using nb::arg;
    m.def("extrema", &extrema_of, arg("x").noconvert(), arg("inner"), arg("lo").noconvert(),
          arg("hi").noconvert(), arg("sums").noconvert());
    m.def("count", &count_into, arg("x").noconvert(), arg("factor"), arg("first"), arg("counts").noconvert());
}

}  // namespace mge
