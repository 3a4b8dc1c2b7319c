// The baseline of the update rules, the choice between instruction sets, and their Python face.
#define MGE_UPDATE update_base
#include "updates/kernels.inc"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "runtime/bind.h"
#include "runtime/isa.h"

namespace nb = nanobind;

namespace mge {

UpdateKernel active_update() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return update_avx512;
    if (active_isa() >= Isa::kAvx2) return update_avx2;
#endif
    return update_base;
}

namespace {

using In = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

struct Needs {
    std::size_t states, scalars;
};
constexpr Needs kNeeds[] = {{0, 1}, {1, 2}, {1, 2}, {2, 8}, {2, 8}, {1, 2}, {2, 4}};  // in the order of Rule

// One rule over many parameters; `states` holds the first state array of every parameter, then the second.
// The GIL is held: another thread never sees a value that is half updated.
void update(int rule, const std::vector<In>& w, const std::vector<In>& g, const std::vector<Out>& states,
            const std::vector<Out>& dst, float decay, const std::vector<float>& scalars) {
    if (rule < 0 || rule >= static_cast<int>(std::size(kNeeds)))
        throw nb::value_error("update: no such rule");
    const Needs needs = kNeeds[rule];
    const std::size_t count = w.size();
    if (g.size() != count || dst.size() != count || states.size() != count * needs.states ||
        scalars.size() != needs.scalars)
        throw nb::value_error("update: another number of arrays or scalars expected");
    const UpdateKernel run = active_update();
    std::vector<Update> updates;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t size = w[i].size();
        bool same = g[i].size() == size && dst[i].size() == size;
        Update u{
            w[i].data(), g[i].data(),   {nullptr, nullptr}, dst[i].data(), static_cast<std::int64_t>(size),
            decay,       scalars.data()};
        for (std::size_t s = 0; s < needs.states; ++s) {
            same = same && states[s * count + i].size() == size;
            u.state[s] = states[s * count + i].data();
        }
        if (!same) throw nb::value_error("update: arrays of one size expected for each parameter");
        updates.push_back(u);
    }
    for (const Update& u : updates) run(static_cast<Rule>(rule), u);
}

}  // namespace

void bind_update(nb::module_& m) {
    // No conversions: a result written to a copy would be lost.
    m.def("update", &update, nb::arg("rule"), nb::arg("w").noconvert(), nb::arg("g").noconvert(),
          nb::arg("states").noconvert(), nb::arg("dst").noconvert(), nb::arg("decay"), nb::arg("scalars"));
}

}  // namespace mge
