// Launches of CUDA kernels without Python between: arguments go from objects into the driver's array of
// pointers.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

constexpr std::size_t kMostArguments = 96, kMostBytes = 16;
constexpr Py_ssize_t kMostStructure = 4096;  // what a kernel's parameters may take together

using LaunchKernel = int (*)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             void* stream, void** arguments, void** extra);

struct Size3 {
    std::array<unsigned, 3> n{1, 1, 1};
    explicit Size3(const nb::tuple& lengths) {
        const std::size_t count = nb::len(lengths);
        if (count < 1 || count > 3) throw std::invalid_argument("a grid or block has one to three lengths");
        for (std::size_t i = 0; i < count; ++i) n[i] = nb::cast<unsigned>(lengths[i]);
    }
};

// The launch of the driver's library; arguments go from objects into its array of pointers. It is loaded at
// run time: there is none on most machines.
class Launcher {
  public:
    explicit Launcher(const std::string& library) {
        void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle) throw std::runtime_error(dlerror());
        launch_ = reinterpret_cast<LaunchKernel>(dlsym(handle, "cuLaunchKernel"));
        if (!launch_) throw std::runtime_error(library + " has no cuLaunchKernel");
    }

    // Arguments are arrays (objects with an attribute `address`), None for a null pointer, NumPy scalars, and
    // structures: NumPy arrays without axes, which the driver reads where they lie.
    int operator()(std::uint64_t function, const nb::tuple& grid, const nb::tuple& block, unsigned shared,
                   std::uint64_t stream, const nb::tuple& arguments) const {
        const std::size_t count = nb::len(arguments);
        if (count > kMostArguments) throw std::invalid_argument("a kernel takes at most 96 arguments");
        alignas(kMostBytes) std::array<std::array<std::byte, kMostBytes>, kMostArguments> values;
        std::array<void*, kMostArguments> pointers;
        for (std::size_t i = 0; i < count; ++i) {
            PyObject* argument = PyTuple_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i));
            pointers[i] = stored(argument, values[i].data());
        }
        const Size3 blocks(grid), threads(block);
        return launch_(reinterpret_cast<void*>(function), blocks.n[0], blocks.n[1], blocks.n[2], threads.n[0],
                       threads.n[1], threads.n[2], shared, reinterpret_cast<void*>(stream), pointers.data(),
                       nullptr);
    }

  private:
    // Where the driver finds the value: in `to`, or in the object's own memory.
    static void* stored(PyObject* value, std::byte* to) {
        static PyObject* name = PyUnicode_InternFromString("address");
        std::uint64_t address = 0;
        if (value != Py_None && !PyObject_CheckBuffer(value)) {
            const nb::object found = nb::steal(PyObject_GetAttr(value, name));
            if (!found.is_valid()) throw nb::python_error();
            address = PyLong_AsUnsignedLongLong(found.ptr());
            if (PyErr_Occurred()) throw nb::python_error();
        } else if (value != Py_None) {
            return stored_scalar(value, to);
        }
        std::memcpy(to, &address, sizeof address);
        return to;
    }

    static void* stored_scalar(PyObject* value, std::byte* to) {
        Py_buffer view;
        if (PyObject_GetBuffer(value, &view, PyBUF_ND) < 0) throw nb::python_error();
        const bool fits = view.len > 0 && view.len <= static_cast<Py_ssize_t>(kMostBytes);
        const bool structure = view.ndim == 0 && view.len > 0 && view.len <= kMostStructure;
        void* where = to;
        if (fits)
            std::memcpy(to, view.buf, static_cast<std::size_t>(view.len));
        else
            where = view.buf;  // the arguments hold the array until the driver has copied it
        PyBuffer_Release(&view);
        if (!fits && !structure)
            throw std::invalid_argument("a scalar argument has at most 16 bytes, a structure 4096");
        return where;
    }

    LaunchKernel launch_ = nullptr;
};

// Bytes of a device's memory that values hold, now and at most.
struct Held {
    std::atomic<std::int64_t> now{0}, most{0};

    void add(std::int64_t size) {
        const std::int64_t total = now.fetch_add(size) + size;
        std::int64_t before = most.load();
        while (total > before && !most.compare_exchange_weak(before, total)) {
        }
    }
};

// Memory of a pool, counted as long as it is held.
class CountedMemory {
  public:
    CountedMemory(std::shared_ptr<Held> held, nb::object memory, std::int64_t size)
        : held_(std::move(held)), memory_(std::move(memory)), size_(size) {
        held_->add(size_);
    }
    CountedMemory(const CountedMemory&) = delete;
    CountedMemory& operator=(const CountedMemory&) = delete;
    ~CountedMemory() { held_->add(-size_); }

    const nb::object& pointer() const { return memory_; }

  private:
    std::shared_ptr<Held> held_;
    nb::object memory_;
    std::int64_t size_;
};

}  // namespace

void bind_cuda(nb::module_& m) {
    nb::class_<Held>(m, "CudaHeld")
        .def(nb::init<>())
        .def_prop_ro("now", [](const Held& held) { return held.now.load(); })
        .def_prop_ro("most", [](const Held& held) { return held.most.load(); })
        .def("reset", [](Held& held) { held.most.store(held.now.load()); });
    nb::class_<CountedMemory>(m, "CudaMemory")
        .def_prop_ro("pointer", &CountedMemory::pointer)
        .def(nb::init<std::shared_ptr<Held>, nb::object, std::int64_t>(), nb::arg("held"), nb::arg("memory"),
             nb::arg("size"));
    nb::class_<Launcher>(m, "CudaLauncher")
        .def(nb::init<const std::string&>(), nb::arg("library"))
        .def("__call__", &Launcher::operator(), nb::arg("function"), nb::arg("grid"), nb::arg("block"),
             nb::arg("shared"), nb::arg("stream"), nb::arg("arguments"));
}

}  // namespace mge
