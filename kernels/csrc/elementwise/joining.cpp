#include "elementwise/joining.h"

#include <nanobind/nanobind.h>

namespace mge {
namespace {

constexpr const char *kFloat = "float32", *kHalf = "bfloat16";
constexpr const char* kLinks[] = {"add", "sub", "mul", "div", "maximum", "minimum", "relu", "relu6", "clip"};

bool can_link(const Row& row) {
    const auto& [op, type, to, lo, hi, sources] = row;
    if (op == "cast") return (type == kFloat && to == kHalf) || (type == kHalf && to == kFloat);
    return type == kFloat && std::find(std::begin(kLinks), std::end(kLinks), op) != std::end(kLinks);
}

// The row as a link behind a value.
Link link_of(const Row& row, std::size_t value) {
    const auto& [op, type, to, lo, hi, sources] = row;
    const bool second = sources.front() != value;
    return {static_cast<Operation>(place_of(kOperationNames, op)), second, static_cast<float>(lo),
            static_cast<float>(hi), second ? sources.front() : sources.back()};
}

Chain chain_of(const std::vector<Row>& rows, std::size_t inputs, std::size_t first, std::size_t last) {
    Chain chain{std::get<5>(rows[first]).front(),
                type_of(std::get<1>(rows[first])),
                type_of(std::get<2>(rows[last])),
                {}};
    bool half = chain.from == Type::kBfloat16;  // whether the number is one that bfloat16 holds
    for (std::size_t i = first; i <= last; ++i) {
        const auto& [op, type, to, lo, hi, sources] = rows[i];
        if (op == "cast" && (half || to == kFloat)) continue;  // it changes no number
        chain.links.push_back(link_of(rows[i], i == first ? chain.source : inputs + i - 1));
        half = op == "cast" || (half && (op == "relu" || op == "relu6"));
    }
    return chain;
}

}  // namespace

Type type_of(const std::string& name) {
    const int found = place_of(kTypeNames, name);
    if (found < 0) throw nanobind::value_error(("elementwise_step: no type " + name).c_str());
    return static_cast<Type>(found);
}

std::vector<JoinedRows> joined(const std::vector<Row>& rows, std::size_t inputs) {
    std::vector<std::size_t> uses(inputs + rows.size());
    for (const Row& row : rows)
        for (std::size_t source : std::get<5>(row)) ++uses[source];
    std::vector<JoinedRows> found;
    for (std::size_t first = 0, last = 0; first < rows.size(); first = last + 1) {
        last = first;
        const auto goes_on = [&](std::size_t i) {
            const auto& sources = std::get<5>(rows[i]);
            return can_link(rows[i]) && uses[inputs + i - 1] == 1 &&
                   std::find(sources.begin(), sources.end(), inputs + i - 1) != sources.end();
        };
        while (can_link(rows[first]) && last + 1 < rows.size() && goes_on(last + 1)) ++last;
        Chain chain = last > first ? chain_of(rows, inputs, first, last) : Chain{};
        if (!chain.links.empty()) found.push_back({first, last, std::move(chain)});
    }
    return found;
}

}  // namespace mge
