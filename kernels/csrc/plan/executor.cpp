// Runs the steps of a plan one after the other over one arena, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "common/fork_gate.h"
#include "common/step_capsule.h"
#include "plan/thread_pool.h"
#include "runtime/bind.h"
#include "runtime/fork_mutex.h"
#include "runtime/memory.h"

namespace nb = nanobind;

namespace mge {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kTail = 4096;  // kernels may read (never write) past the end of their last row

using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;  // outputs are made by the caller and writable

std::byte* bytes_of(const AnyArray& a) { return static_cast<std::byte*>(const_cast<void*>(a.data())); }

struct Free {
    void operator()(std::byte* p) const { give_block(p); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory allocate(std::size_t bytes) {
    const std::size_t size = bytes + kTail;
    Memory memory(static_cast<std::byte*>(take_block(size)));
    std::memset(memory.get(), 0, size);
    return memory;
}

const Step* step_of(nb::handle capsule) {
    void* p = PyCapsule_GetPointer(capsule.ptr(), kStepCapsule);
    if (!p) nb::raise_python_error();
    return static_cast<const Step*>(p);
}

// A step that calls back into Python: ops without a native kernel run their reference this way.
class PythonStep final : public Step {
  public:
    PythonStep(nb::handle function, std::size_t buffers) : function_(function), buffers_(buffers) {}
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        nb::gil_scoped_acquire gil;
        nb::list addresses;
        for (std::size_t i = 0; i < buffers_; ++i)
            addresses.append(reinterpret_cast<std::uintptr_t>(buffers[i]));
        PyObject* result = PyObject_CallOneArg(function_.ptr(), addresses.ptr());
        if (result) Py_DECREF(result);  // an error stays set; the plan raises it after the step
    }

  private:
    nb::handle function_;  // the plan owns it
    std::size_t buffers_;
};

double thread_cpu() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Whether a signal has raised an error, KeyboardInterrupt most often, asked for a few times a second: Python
// sees signals when the main thread runs its code, and a plan may run for long.
class Interruption {
  public:
    bool came() {
        const auto now = std::chrono::steady_clock::now();
        if (now < next_) return false;
        next_ = now + kBetween;
        nb::gil_scoped_acquire gil;
        return PyErr_CheckSignals() != 0;
    }

  private:
    static constexpr std::chrono::milliseconds kBetween{100};
    std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kBetween;
};

// A plan while it runs: the Python code of a step or of a signal may not run it again in the same thread,
// which would wait for itself.
class Running {
  public:
    explicit Running(const void* plan) {
        if (std::find(all().begin(), all().end(), plan) != all().end())
            throw std::runtime_error(
                "plan: it is running in this thread, which runs it again, from a signal handler or an op; "
                "compile another "
                "plan for that");
        all().push_back(plan);
    }
    ~Running() { all().pop_back(); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

  private:
    static std::vector<const void*>& all() {
        thread_local std::vector<const void*> plans;
        return plans;
    }
};

class Plan {
  public:
    Plan(std::size_t arena_bytes, int threads)
        : arena_(allocate(arena_bytes)), threads_(std::max(threads, 1)) {}

    int add_arena(std::size_t offset) { return add({Kind::kArena, offset}); }
    int add_input(std::size_t bytes) {
        input_bytes_.push_back(bytes);
        return add({Kind::kInput, input_bytes_.size() - 1});
    }
    int add_output(std::size_t bytes) {
        output_bytes_.push_back(bytes);
        return add({Kind::kOutput, output_bytes_.size() - 1});
    }
    int add_constant(AnyArray array) {
        constants_.push_back(array);
        return add({Kind::kConstant, constants_.size() - 1});
    }

    // `otherwise` is called, like the function of add_call, for inputs that the step refuses.
    void add_step(nb::object capsule, std::vector<int> buffers, nb::object otherwise) {
        const std::size_t count = buffers.size();
        append(step_of(capsule), std::move(buffers), false);
        capsules_.push_back(capsule);
        if (otherwise.is_none()) return;
        calls_.push_back(std::make_unique<PythonStep>(otherwise, count));
        entries_.back().otherwise = calls_.back().get();
        functions_.push_back(std::move(otherwise));
    }

    // A function called with the list of the addresses of its buffers.
    void add_call(nb::callable function, std::vector<int> buffers) {
        calls_.push_back(std::make_unique<PythonStep>(function, buffers.size()));
        append(calls_.back().get(), std::move(buffers), true);
        functions_.push_back(std::move(function));
    }

    // Functions reach whatever they close over, the plan too: Python's collector must see and break such
    // circles.
    static int traverse(PyObject* self, visitproc visit, void* arg) {
        Py_VISIT(Py_TYPE(self));
        if (!nb::inst_ready(self)) return 0;
        for (const nb::object& f : nb::inst_ptr<Plan>(self)->functions_) Py_VISIT(f.ptr());
        return 0;
    }
    static int clear(PyObject* self) {
        Plan* plan = nb::inst_ptr<Plan>(self);
        plan->entries_.clear();
        plan->functions_.clear();
        return 0;
    }

    void run(std::vector<AnyArray> inputs, std::vector<AnyArray> outputs,
             std::vector<double>* times = nullptr) {
        check(inputs, input_bytes_, "input");
        check(outputs, output_bytes_, "output");
        const Running running(this);
        bool failed = false;
        {
            nb::gil_scoped_release release;
            std::lock_guard lock(mutex_);
            prepare();
            std::vector<std::byte*> base = resolve(inputs, outputs);
            std::vector<std::byte*> pointers;
            Team team(threads_);
            Interruption interruption;
            for (const Entry& e : entries_) {
                if (interruption.came()) {
                    failed = true;
                    break;
                }
                const double begin = times ? thread_cpu() : 0;
                pointers.clear();
                for (int b : e.buffers) pointers.push_back(base[b]);
                const bool refused = e.otherwise && e.step->refuses(pointers.data());
                run_step(team, refused ? e.otherwise : e.step, pointers.data());
                if (times) times->push_back(thread_cpu() - begin);
                if ((e.python || refused) && error_set()) {
                    failed = true;
                    break;
                }
            }
        }
        if (failed) nb::raise_python_error();
    }

    // One run on memory that is there, inputs and then outputs, by the caller alone, as a part of another
    // plan's step: without a lock, so one at a time.
    void run_at(std::byte* const* outside) const noexcept {
        std::byte* pointers[kMostBuffers];
        for (const Entry& e : entries_) {
            for (std::size_t i = 0; i < e.buffers.size(); ++i) {
                const Buffer& b = buffers_[static_cast<std::size_t>(e.buffers[i])];
                pointers[i] = b.kind == Kind::kArena    ? arena_.get() + b.at
                              : b.kind == Kind::kInput  ? outside[b.at]
                              : b.kind == Kind::kOutput ? outside[input_bytes_.size() + b.at]
                                                        : bytes_of(constants_[b.at]);
            }
            for (int part = 0; part < e.step->parts(); ++part) e.step->run(part, pointers, scratch_.get());
        }
    }

    // Makes what `run_at` needs; returns the bytes of inputs and outputs. Raises if a step takes too many
    // buffers, calls Python, or may refuse inputs.
    std::vector<std::size_t> made_ready() {
        for (const Entry& e : entries_)
            if (e.python || e.otherwise || e.buffers.size() > kMostBuffers)
                throw std::invalid_argument("plan: a step that no other plan can run");
        std::vector<std::size_t> outside = input_bytes_;
        outside.insert(outside.end(), output_bytes_.begin(), output_bytes_.end());
        if (outside.size() > kMostBuffers)
            throw std::invalid_argument("plan: too many ends for another plan");
        prepare();
        return outside;
    }

    static constexpr std::size_t kMostBuffers =
        64;  // of a step, and of the ends of a plan inside another one

    std::vector<double> profile(std::vector<AnyArray> inputs, std::vector<AnyArray> outputs) {
        std::vector<double> times;
        run(std::move(inputs), std::move(outputs), &times);
        return times;
    }

  private:
    enum class Kind { kArena, kInput, kOutput, kConstant };
    struct Buffer {
        Kind kind;
        std::size_t at;  // offset in the arena, or index
    };
    struct Entry {
        const Step* step;
        std::vector<int> buffers;
        bool python;
        const Step* otherwise;
    };

    void append(const Step* step, std::vector<int> buffers, bool python) {
        for (int b : buffers)
            if (b < 0 || b >= static_cast<int>(buffers_.size()))
                throw std::out_of_range("plan: no such buffer");
        const auto scratch = (step->scratch_bytes() + kAlign - 1) / kAlign * kAlign;
        scratch_each_ = std::max(scratch_each_, scratch);
        entries_.push_back({step, std::move(buffers), python, nullptr});
        scratch_.reset();
    }

    int add(Buffer b) {
        buffers_.push_back(b);
        return static_cast<int>(buffers_.size()) - 1;
    }

    static void check(const std::vector<AnyArray>& arrays, const std::vector<std::size_t>& bytes,
                      const char* what) {
        if (arrays.size() != bytes.size())
            throw std::invalid_argument(std::string("plan: wrong number of ") + what + "s");
        for (std::size_t i = 0; i < arrays.size(); ++i)
            if (arrays[i].nbytes() != bytes[i])
                throw std::invalid_argument(std::string("plan: wrong size of an ") + what);
    }

    static bool error_set() {
        nb::gil_scoped_acquire gil;
        return PyErr_Occurred() != nullptr;
    }

    void prepare() {
        const InKernel running;
        if (!scratch_) scratch_ = allocate(scratch_each_ * static_cast<std::size_t>(threads_));
    }

    std::vector<std::byte*> resolve(const std::vector<AnyArray>& in, const std::vector<AnyArray>& out) const {
        std::vector<std::byte*> base;
        base.reserve(buffers_.size());
        for (const Buffer& b : buffers_) {
            switch (b.kind) {
                case Kind::kArena:
                    base.push_back(arena_.get() + b.at);
                    break;
                case Kind::kInput:
                    base.push_back(bytes_of(in[b.at]));
                    break;
                case Kind::kOutput:
                    base.push_back(bytes_of(out[b.at]));
                    break;
                case Kind::kConstant:
                    base.push_back(bytes_of(constants_[b.at]));
                    break;
            }
        }
        return base;
    }

    void run_step(Team& team, const Step* step, std::byte* const* pointers) {
        const InKernel running;
        std::byte* scratch = scratch_.get();
        team.run(step->parts(), [&](int part, int member) {
            step->run(part, pointers, scratch + scratch_each_ * static_cast<std::size_t>(member));
        });
    }

    Memory arena_, scratch_;
    int threads_;
    ForkMutex mutex_;
    std::vector<Buffer> buffers_;
    std::vector<Entry> entries_;
    std::vector<nb::object> capsules_, functions_;
    std::vector<std::unique_ptr<Step>> calls_;
    std::vector<AnyArray> constants_;
    std::vector<std::size_t> input_bytes_, output_bytes_;
    std::size_t scratch_each_ = 0;
};

// A plan for one picture, run for each of a batch by as many copies of it as there are parts: what lies
// between its steps stays in the cache.
class EachPicture final : public Step {
  public:
    EachPicture(std::vector<nb::object> plans, std::int64_t count)
        : owners_(std::move(plans)), count_(count) {
        for (const nb::object& one : owners_) plans_.push_back(nb::cast<Plan*>(one));
        for (Plan* plan : plans_) bytes_ = plan->made_ready();
    }
    int parts() const override { return static_cast<int>(plans_.size()); }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t end = count_ * (part + 1) / parts();
        std::byte* ends[Plan::kMostBuffers];
        for (std::int64_t i = count_ * part / parts(); i < end; ++i) {
            for (std::size_t k = 0; k < bytes_.size(); ++k)
                ends[k] = buffers[k] + static_cast<std::size_t>(i) * bytes_[k];
            plans_[static_cast<std::size_t>(part)]->run_at(ends);
        }
    }

  private:
    std::vector<nb::object> owners_;
    std::vector<Plan*> plans_;
    std::vector<std::size_t> bytes_;  // of one picture: inputs, then outputs
    std::int64_t count_;
};

nb::object each_picture_step(std::vector<nb::object> plans, std::int64_t count) {
    if (plans.empty() || count < static_cast<std::int64_t>(plans.size()))
        throw std::invalid_argument("each_picture_step: expected a plan, and no more of them than pictures");
    return capsule(std::make_unique<EachPicture>(std::move(plans), count));
}

void run_step(nb::handle capsule, const std::vector<AnyArray>& arrays) {
    const Step* step = step_of(capsule);
    std::vector<std::byte*> pointers;
    for (const auto& a : arrays) pointers.push_back(bytes_of(a));
    nb::gil_scoped_release release;
    const InKernel running;
    const std::unique_ptr<void, void (*)(void*)> scratch(
        step->scratch_bytes() ? take_block(step->scratch_bytes() + kTail) : nullptr,
        [](void* block) { give_block(block); });
    for (int part = 0; part < step->parts(); ++part)
        step->run(part, pointers.data(), static_cast<std::byte*>(scratch.get()));
}

PyType_Slot plan_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(Plan::traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(Plan::clear)},
                            {0, nullptr}};

}  // namespace

void bind_executor(nb::module_& m) {
    nb::class_<Plan>(m, "Plan", nb::type_slots(plan_slots))
        .def(nb::init<std::size_t, int>(), nb::arg("arena_bytes"), nb::arg("threads"))
        .def("add_arena", &Plan::add_arena, nb::arg("offset"))
        .def("add_input", &Plan::add_input, nb::arg("bytes"))
        .def("add_output", &Plan::add_output, nb::arg("bytes"))
        .def("add_constant", &Plan::add_constant, nb::arg("array"))
        .def("add_step", &Plan::add_step, nb::arg("capsule"), nb::arg("buffers"),
             nb::arg("otherwise") = nb::none())
        .def("add_call", &Plan::add_call, nb::arg("function"), nb::arg("buffers"))
        .def("run", [](Plan& p, std::vector<AnyArray> i,
                       std::vector<AnyArray> o) { p.run(std::move(i), std::move(o)); })
        .def("profile", &Plan::profile);
    m.def("each_picture_step", &each_picture_step, nb::arg("plans"), nb::arg("count"));
    m.def("run_step", &run_step, nb::arg("capsule"), nb::arg("arrays"));
}

}  // namespace mge
