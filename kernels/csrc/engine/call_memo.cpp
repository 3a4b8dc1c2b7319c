#include "engine/call_memo.h"

#include <array>
#include <bit>

#include "engine/numpy_api.h"
#include "engine/tensor_type.h"

namespace mge {
namespace {

std::uint64_t mixed(std::uint64_t seed, std::uint64_t value) {
    const std::uint64_t x = (seed ^ value) * 0x9E3779B97F4A7C15u;
    return x ^ (x >> 29);
}

std::uint64_t address(PyObject* object) { return reinterpret_cast<std::uintptr_t>(object) >> 4; }

// Start, stop and step.
std::array<PyObject*, 3> ends(PyObject* slice) {
    const auto* s = reinterpret_cast<PySliceObject*>(slice);
    return {s->start, s->stop, s->step};
}

// The hash of a value that is no tensor; empty if it cannot stand in a key.
std::optional<std::uint64_t> hash_value(PyObject* value, Options options) {
    if (value == Py_None || PyBool_Check(value) || PyArray_DescrCheck(value)) return address(value);
    if (PyLong_CheckExact(value)) {
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow) return mixed(1, static_cast<std::uint64_t>(number));
    } else if (PyFloat_CheckExact(value)) {
        return mixed(2, std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(value)));
    } else if (PyUnicode_CheckExact(value)) {
        return mixed(3, static_cast<std::uint64_t>(PyObject_Hash(value)));
    } else if (PyTuple_CheckExact(value)) {
        std::uint64_t hash = 4;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
            const auto item = hash_value(PyTuple_GET_ITEM(value, i), options);
            if (!item) return {};
            hash = mixed(hash, *item);
        }
        return hash;
    } else if (PySlice_Check(value)) {
        std::uint64_t hash = 7;
        for (PyObject* end : ends(value)) {
            const auto part = hash_value(end, options);
            if (!part) return {};
            hash = mixed(hash, *part);
        }
        return hash;
    } else if (value == Py_Ellipsis) {
        return address(value);
    }
    if (options == Options::kPlain) return {};
    const Py_hash_t hash = PyObject_Hash(value);
    if (hash == -1) return {};
    return mixed(5, static_cast<std::uint64_t>(hash));
}

// 1, 0 or -1 with an error set. Plain values are compared without Python code.
int equal(PyObject* a, PyObject* b) {
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b) || a == Py_None || PyBool_Check(a)) return 0;
    if (PyFloat_CheckExact(a))
        return std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(a)) ==
               std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(b));
    if (PyTuple_CheckExact(a)) {
        if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
            if (const int same = equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)); same != 1)
                return same;
        return 1;
    }
    if (PySlice_Check(a)) {
        const auto of_a = ends(a), of_b = ends(b);
        for (std::size_t i = 0; i < of_a.size(); ++i)
            if (const int same = equal(of_a[i], of_b[i]); same != 1) return same;
        return 1;
    }
    return PyObject_RichCompareBool(a, b, Py_EQ);
}

// An argument as it is in a key: the spec for a tensor. Borrowed.
PyObject* held(PyObject* argument) { return is_tensor(argument) ? fields(argument)->spec : argument; }

int equal_argument(PyObject* argument, PyObject* kept) {
    // a spec stands for a tensor only: functions of tensors take no specs
    return is_tensor(argument) ? fields(argument)->spec == kept : equal(argument, kept);
}

std::optional<std::uint64_t> hash_argument(PyObject* argument, Options options) {
    if (!is_tensor(argument)) return hash_value(argument, options);
    PyObject* spec = spec_of(argument);
    if (!spec) return {};
    return mixed(6, address(spec));
}

}  // namespace

std::optional<std::uint64_t> Key::hash(const Given& given, Options options) {
    if (given.count > Given::kMost || given.named > Given::kMost) return {};
    std::uint64_t hash = mixed(static_cast<std::uint64_t>(given.count), address(given.head));
    for (Py_ssize_t i = 0; i < given.count; ++i) {
        const auto part = hash_argument(given.positional[i], options);
        if (!part) return {};
        hash = mixed(hash, *part);
    }
    for (Py_ssize_t i = 0; i < given.named; ++i) {
        const auto part = hash_argument(given.values[i], options);
        if (!part) return {};
        hash = mixed(mixed(hash, static_cast<std::uint64_t>(PyObject_Hash(given.names[i]))), *part);
    }
    return hash;
}

Key::Key(const Given& given, std::uint64_t hash) : hash_(hash), head_(given.head), count_(given.count) {
    held_.reserve(static_cast<std::size_t>(given.count + 2 * given.named));
    for (Py_ssize_t i = 0; i < given.count; ++i) held_.push_back(held(given.positional[i]));
    for (Py_ssize_t i = 0; i < given.named; ++i) {
        held_.push_back(given.names[i]);
        held_.push_back(held(given.values[i]));
    }
    Py_XINCREF(head_);
    for (PyObject* object : held_) Py_INCREF(object);
}

Key::~Key() {
    Py_XDECREF(head_);
    for (PyObject* object : held_) Py_DECREF(object);
}

int Key::matches(const Given& given, std::uint64_t hash) const {
    if (hash != hash_ || given.head != head_ || given.count != count_ ||
        static_cast<std::size_t>(given.count + 2 * given.named) != held_.size())
        return 0;
    PyObject* const* kept = held_.data();
    for (Py_ssize_t i = 0; i < given.count; ++i)
        if (const int same = equal_argument(given.positional[i], *kept++); same != 1) return same;
    for (Py_ssize_t i = 0; i < given.named; ++i) {
        if (const int same = equal(given.names[i], *kept++); same != 1) return same;
        if (const int same = equal_argument(given.values[i], *kept++); same != 1) return same;
    }
    return 1;
}

}  // namespace mge
