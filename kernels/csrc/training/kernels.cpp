// The baseline of the training kernels, the choice between instruction sets, and their Python face.
#define MGE_TRAINING_KERNELS training_kernels_base
#include "training/kernels.inc"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "runtime/bind.h"
#include "runtime/isa.h"

namespace nb = nanobind;

namespace mge {
namespace {

using In = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

const TrainingKernels& kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return training_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return training_kernels_avx2();
#endif
    return training_kernels_base();
}

void expect(bool fits, const char* what) {
    if (!fits) throw std::invalid_argument(std::string("sizes do not fit: ") + what);
}

// Rows of [rows, channels], where every vector has `channels` elements.
template <class... Vectors>
std::int64_t rows_of(const char* what, std::size_t size, std::size_t channels, const Vectors&... vectors) {
    expect(channels > 0 && size > 0 && size % channels == 0 && ((vectors.size() == channels) && ...), what);
    return static_cast<std::int64_t>(size / channels);
}

void forward(In x, In scale, In bias, float eps, Out y, Out mean, Out var) {
    const auto rows = rows_of("batch_norm", x.size(), scale.size(), bias, mean, var);
    expect(y.size() == x.size(), "batch_norm");
    nb::gil_scoped_release release;
    kernels().batch_norm(x.data(), scale.data(), bias.data(), eps, rows,
                         static_cast<std::int64_t>(scale.size()), y.data(), mean.data(), var.data());
}

void backward(In x, In ct, In scale, In mean, In var, float eps, Out dx, Out dscale, Out dbias) {
    const auto rows = rows_of("batch_norm_backward", x.size(), scale.size(), mean, var, dscale, dbias);
    expect(ct.size() == x.size() && dx.size() == x.size(), "batch_norm_backward");
    nb::gil_scoped_release release;
    kernels().batch_norm_backward(x.data(), ct.data(), scale.data(), mean.data(), var.data(), eps, rows,
                                  static_cast<std::int64_t>(scale.size()), dx.data(), dscale.data(),
                                  dbias.data());
}

void relu(In ct, In y, Out dx) {
    expect(ct.size() == y.size() && dx.size() == y.size(), "relu_backward");
    nb::gil_scoped_release release;
    kernels().relu_backward(ct.data(), y.data(), dx.data(), static_cast<std::int64_t>(y.size()));
}

// lengths: n, h, w, c, oh, ow, kh, kw, stride (2), top, left
void pool(In ct, In x, Out dx, const std::vector<std::int64_t>& l) {
    expect(l.size() == 12, "max_pool_backward");
    const PoolShape s{l[0], l[1], l[2], l[3], l[4], l[5], l[6], l[7], l[8], l[9], l[10], l[11], false};
    expect(static_cast<std::int64_t>(x.size()) == s.n * s.h * s.w * s.c && x.size() == dx.size() &&
               static_cast<std::int64_t>(ct.size()) == s.n * s.oh * s.ow * s.c,
           "max_pool_backward");
    nb::gil_scoped_release release;
    kernels().max_pool_backward(ct.data(), x.data(), dx.data(), s);
}

using Bytes = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;

void round(In t, Bytes residual, bool has_residual, bool is_signed, float zero, float ratio, float lo,
           float hi, std::int32_t offset, Out total, OutBytes q, Out ends) {
    expect(residual.size() == t.size() && (total.size() == t.size() || !has_residual) &&
               q.size() == t.size() && ends.size() == 2,
           "round_sums");
    const RoundedSums s{has_residual, is_signed, zero, ratio, lo, hi, offset};
    nb::gil_scoped_release release;
    kernels().round_sums(t.data(), residual.data(), s, static_cast<std::int64_t>(t.size()), total.data(),
                         q.data(), ends.data());
}

double round_backward(In ct, In t, float lo, float hi, float below, float above, bool rounding, Out dx,
                      Out sums) {
    const auto rows = rows_of("round_sums_backward", t.size(), sums.size());
    expect(ct.size() == t.size() && dx.size() == t.size(), "round_sums_backward");
    const RoundedSlope s{lo, hi, below, above, rounding};
    nb::gil_scoped_release release;
    return kernels().round_sums_backward(ct.data(), t.data(), s, rows, static_cast<std::int64_t>(sums.size()),
                                         dx.data(), sums.data());
}

}  // namespace

void bind_training(nb::module_& m) {
    using nb::arg;
    m.def("batch_norm", &forward, arg("x"), arg("scale"), arg("bias"), arg("eps"), arg("y"), arg("mean"),
          arg("var"));
    m.def("batch_norm_backward", &backward, arg("x"), arg("ct"), arg("scale"), arg("mean"), arg("var"),
          arg("eps"), arg("dx"), arg("dscale"), arg("dbias"));
    m.def("relu_backward", &relu, arg("ct"), arg("y"), arg("dx"));
    m.def("round_sums", &round, arg("steps"), arg("residual"), arg("has_residual"), arg("is_signed"),
          arg("zero"), arg("ratio"), arg("lo"), arg("hi"), arg("offset"), arg("total"), arg("q"),
          arg("ends"));
    m.def("round_sums_backward", &round_backward, arg("ct"), arg("steps"), arg("lo"), arg("hi"), arg("below"),
          arg("above"), arg("rounding"), arg("dx"), arg("sums"));
    m.def("max_pool_backward", &pool, arg("ct"), arg("x"), arg("dx"), arg("lengths"));
}

}  // namespace mge
