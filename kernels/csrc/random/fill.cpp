// The baseline of the random numbers, the choice between instruction sets, and their Python face.
#define MGE_RANDOM random_base
#include "random/fill.inc"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "runtime/bind.h"
#include "runtime/isa.h"

namespace nb = nanobind;

namespace mge {

RandomKernel active_random() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return random_avx512;
    if (active_isa() >= Isa::kAvx2) return random_avx2;
#endif
    return random_base;
}

void bind_random(nb::module_& m) {
    using Out = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
    // No conversion: numbers written to a copy would be lost.
    m.def(
        "random_fill",
        [](std::uint64_t key, const Out& dst, bool normal, float scale, float shift) {
            const RandomFill fill{key, dst.data(), static_cast<std::int64_t>(dst.size()), scale, shift};
            nb::gil_scoped_release released;
            active_random()(fill, normal);
        },
        nb::arg("key"), nb::arg("dst").noconvert(), nb::arg("normal"), nb::arg("scale"), nb::arg("shift"));
}

}  // namespace mge
