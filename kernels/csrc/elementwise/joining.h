// Which rows of a program are computed as chains.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "elementwise/kernels.h"

namespace mge {

// (op, type of its operands, type of its result, lower bound or parameter, upper bound, sources)
using Row = std::tuple<std::string, std::string, std::string, double, double, std::vector<std::size_t>>;

template <class Names>
int place_of(const Names& names, const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

// Of a known name; raises ValueError.
Type type_of(const std::string& name);

struct JoinedRows {
    std::size_t first, last;
    Chain chain;
};

// Rows that follow each other and whose results, but that of the last one, no other row takes. types: of the
// inputs.
std::vector<JoinedRows> joined(const std::vector<Row>& rows, const std::vector<std::string>& types);

}  // namespace mge
