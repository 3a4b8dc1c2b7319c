// A cache of results about calls, by their arguments: tensors count by their specs, everything else by its
// exact value (1, 1.0 and True differ).
#pragma once
#include <Python.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace mge {

// The arguments of a call, all borrowed: positional ones, then keywords.
struct Given {
    static constexpr Py_ssize_t kMost = 24;  // calls with more of either are not remembered

    PyObject* head = nullptr;  // the function, where one memo serves several
    PyObject* const* positional = nullptr;
    Py_ssize_t count = 0;
    PyObject* const* names = nullptr;
    PyObject* const* values = nullptr;
    Py_ssize_t named = 0;

    Given(PyObject* head, PyObject* const* args, Py_ssize_t count, PyObject* kwnames)
        : head(head),
          positional(args),
          count(count),
          names(kwnames ? &PyTuple_GET_ITEM(kwnames, 0) : nullptr),
          values(args + count),
          named(kwnames ? PyTuple_GET_SIZE(kwnames) : 0) {}
    Given(PyObject* head, PyObject* const* args, Py_ssize_t count, PyObject* const* names,
          PyObject* const* values, Py_ssize_t named)
        : head(head), positional(args), count(count), names(names), values(values), named(named) {}
};

// Which values other than tensors may stand in a key.
enum class Options {
    kPlain,     // None, Ellipsis, booleans, numbers, strings, dtypes, slices and tuples: all immutable
    kHashable,  // anything hashable
};

// A key that owns its parts: specs of tensors, and values.
class Key {
  public:
    // Empty, with or without a Python error set, if the call cannot be remembered.
    static std::optional<std::uint64_t> hash(const Given& given, Options options);

    Key(const Given& given, std::uint64_t hash);
    ~Key();
    Key(const Key&) = delete;
    Key& operator=(const Key&) = delete;

    std::uint64_t hash() const { return hash_; }

    // True, false, or -1 with a Python error set. May run Python code for values that are not plain.
    int matches(const Given& given, std::uint64_t hash) const;

  private:
    std::uint64_t hash_;
    PyObject* head_;
    Py_ssize_t count_;
    std::vector<PyObject*> held_;  // positional ones, names, values
};

// A bounded map from calls to values, under the GIL; emptied when it is full.
template <class Value>
class CallMemo {
  public:
    explicit CallMemo(std::size_t limit) : limit_(limit), slots_(16) {}

    // Null if there is none, or with a Python error set.
    std::shared_ptr<Value> find(const Given& given, std::uint64_t hash) const {
        for (std::size_t at = hash & (slots_.size() - 1); slots_[at]; at = (at + 1) & (slots_.size() - 1)) {
            if (slots_[at]->key.hash() != hash) continue;
            const std::shared_ptr<Entry> entry =
                slots_[at];  // a comparison may run code that empties the memo
            const std::uint64_t version = version_;
            const int same = entry->key.matches(given, hash);
            if (same == 1) return entry->value;
            if (same < 0 || version != version_) return nullptr;
        }
        return nullptr;
    }

    void insert(const Given& given, std::uint64_t hash, std::shared_ptr<Value> value) {
        if (size_ >= limit_) clear();
        if (2 * (size_ + 1) > slots_.size()) grow();
        place(std::make_shared<Entry>(given, hash, std::move(value)));
        ++size_;
        ++version_;
    }

    void clear() {
        std::vector<std::shared_ptr<Entry>> dropped(16);
        dropped.swap(slots_);  // destroyed at the end: that may run Python code
        size_ = 0;
        ++version_;
    }

    std::size_t size() const { return size_; }

  private:
    struct Entry {
        Entry(const Given& given, std::uint64_t hash, std::shared_ptr<Value> v)
            : key(given, hash), value(std::move(v)) {}
        Key key;
        std::shared_ptr<Value> value;
    };

    void place(std::shared_ptr<Entry> entry) {
        std::size_t at = entry->key.hash() & (slots_.size() - 1);
        while (slots_[at]) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = std::move(entry);
    }

    void grow() {
        std::vector<std::shared_ptr<Entry>> old(2 * slots_.size());
        old.swap(slots_);
        for (auto& entry : old)
            if (entry) place(std::move(entry));
    }

    std::size_t limit_, size_ = 0;
    std::vector<std::shared_ptr<Entry>> slots_;  // open addressing, a power of two, at most half full
    std::uint64_t version_ = 0;
};

}  // namespace mge
