// What the oneDNN steps share: one OpenMP thread per pool thread, memories whose handles are set per run.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <functional>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "common/flush_subnormals.h"
#include "common/function_capsule.h"
#include "common/step_capsule.h"

namespace mge {

// oneDNN splits work over OpenMP threads; plans have their own pool, so every call is made with one.
class OneOmpThread {
  public:
    OneOmpThread();
    ~OneOmpThread();

  private:
    int before_;
};

dnnl::engine& cpu_engine();
dnnl::stream& this_thread_stream();

using F32 = nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>;
using AnyWeights = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;

dnnl::memory::data_type data_type(const std::string& name);
std::size_t size_of(dnnl::memory::data_type type);
std::size_t aligned(std::size_t bytes);  // for vectors
// Of layers that take values of a type: theirs, or 8-bit integers.
dnnl::memory::data_type weight_type(dnnl::memory::data_type source);

// Post-ops and scales of an epilogue: residual sum, activation, multiplier per channel.
struct Epilogue {
    std::string activation = "none";
    float lo = 0, hi = 0;  // bounds of "clip"
    std::string sum_type;  // empty: no residual
    float sum_scale = 1;
};
dnnl::primitive_attr make_attr(const Epilogue& e, int scale_mask);

// Weights in the form that a primitive reads.
struct Packing {
    dnnl::memory memory;
    std::shared_ptr<void> bytes;  // of the memory, which does not own them
};
Packing packed(const dnnl::memory::desc& plain, const void* data, const dnnl::memory::desc& wanted);
dnnl::memory copied(const F32& values);
dnnl::memory columns_of(const dnnl::memory& values, dnnl::memory::dim from, dnnl::memory::dim to);

// A result of `total` columns in pieces of whole vectors; `work`: products for each column.
struct Columns {
    using dim = dnnl::memory::dim;
    Columns(dim total, dim most, dim work);
    dim total, grain, pieces;

    dim begin(dim piece) const;
    double largest() const;  // share of the longest piece
};

// A primitive that was created does not fail when it runs; if it does, the error is printed.
void report(const dnnl::error& e) noexcept;

template <typename F>
void run_primitive(F run) noexcept {
    try {
        OneOmpThread one;
        run();
    } catch (const dnnl::error& e) {
        report(e);
    }
}

// One primitive and the places of its buffers.
struct Part {
    dnnl::primitive primitive;
    std::unordered_map<int, dnnl::memory> args;
    dnnl::memory src, dst, scratch;
    std::shared_ptr<void> weights;
    std::size_t src_offset = 0, dst_offset = 0;
    std::int64_t dst_size = 0;  // numbers
    // Of columns of the result, which the library cannot write in their place: their rows, and bytes of a row
    // of the part and of the whole. They are computed in scratch memory.
    std::size_t rows = 0, width = 0, pitch = 0;
    // Eager calls of several Python threads share one cached step: its handles belong to one run at a time.
    std::unique_ptr<std::mutex> busy = std::make_unique<std::mutex>();

    // Lets the result be the columns [from, to) of `total` in so many rows.
    void place(std::int64_t count, std::int64_t from, std::int64_t to, std::int64_t total, std::size_t item);
    std::size_t scratch_bytes() const;  // of the primitive and the columns
};

// Runs Part p: buffers are src, [residual, which is dst], dst.
class PartsStep final : public Step {
  public:
    std::vector<Part> parts_list;
    int dst_index = 1;
    bool floats = false, halves = false;  // results are float32 or bfloat16; bfloat16
    FloatFunction after{};  // of the results, while they are in the cache; none if it has no code

    int parts() const override { return static_cast<int>(parts_list.size()); }
    std::size_t scratch_bytes() const override;
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override;
};

using Split = std::function<void(PartsStep&)>;  // fills the parts
struct Values {
    dnnl::memory::data_type type;
    std::size_t count;
};

// What a step computes of noise: `read` are its operands, whose buffers end with their last number, and `dst`
// its result, which is the residual before. Splits are compared by it: the library may add in another order
// where lengths differ.
std::vector<std::byte> result_of(const Step& step, const std::vector<Values>& read, const Values& dst);

// A step with the first of the splits that gives the bits of the last one, which is the whole.
nanobind::object parts_step(const std::vector<Split>& splits, bool residual, const nanobind::object& after,
                            Values src, Values dst);

}  // namespace mge
