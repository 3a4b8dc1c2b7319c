#include "elementwise/joining.h"

#include <nanobind/nanobind.h>

#include <bit>
#include <optional>

namespace mge {
namespace {

constexpr const char *kFloat = "float32", *kHalf = "bfloat16", *kTruth = "bool";
constexpr const char* kLinks[] = {"add",   "sub",   "mul",     "div",  "maximum", "minimum",
                                  "equal", "less",  "abs",     "neg",  "square",  "not_equal",
                                  "relu",  "relu6", "greater", "clip", "where"};
constexpr const char* kOtherLinks[] = {"less_equal", "greater_equal"};
constexpr Function kFunctionLinks[] = {Function::kSigmoid, Function::kSilu,      Function::kHsigmoid,
                                       Function::kHswish,  Function::kTanh,      Function::kGelu,
                                       Function::kErf,     Function::kSoftplus,  Function::kExp,
                                       Function::kSqrt,    Function::kLeakyRelu, Function::kRsqrt};

template <class List, class T>
bool holds(const List& list, const T& one) {
    return std::find(std::begin(list), std::end(list), one) != std::end(list);
}

bool can_link(const Row& row) {
    const auto& [op, type, to, lo, hi, sources] = row;
    if (op == "cast") return (type == kFloat && to == kHalf) || (type == kHalf && to == kFloat);
    if (type != kFloat) return false;
    const int function = place_of(kFunctionNames, op);
    return holds(kLinks, op) || holds(kOtherLinks, op) ||
           (function >= 0 && holds(kFunctionLinks, static_cast<Function>(function)));
}

// Of float32 numbers that are bfloat16 numbers the results are such ones, too.
bool keeps_halves(const Row& row) {
    const auto& [op, type, to, lo, hi, sources] = row;
    const auto is_half = [](double v) {
        return (std::bit_cast<std::uint32_t>(static_cast<float>(v)) & 0xffffu) == 0;
    };
    constexpr const char* kSimple[] = {"maximum", "minimum", "abs", "neg", "relu", "relu6", "where"};
    return holds(kSimple, op) || (op == "clip" && is_half(lo) && is_half(hi));
}

// Makes the links of rows [first, last]; only the last one's result is read behind them.
class Linking {
  public:
    Linking(const std::vector<Row>& rows, const std::vector<std::string>& types, std::size_t first,
            std::size_t last)
        : rows_(rows), types_(types), first_(first), last_(last), found_(types.size() + rows.size()) {}

    // Nothing if the last result is not that of the last link.
    Chain made() {
        for (std::size_t i = first_; i <= last_; ++i) add(i);
        const Result& end = found_[types_.size() + last_];
        if (chain_.links.empty() || !end.link || *end.link + 1 != chain_.links.size()) return {};
        keep();
        chain_.to = type_of(std::get<2>(rows_[last_]));
        return std::move(chain_);
    }

  private:
    // A value: the result of a link, or one from outside.
    struct Result {
        std::optional<std::size_t> link;
        std::size_t value = 0;
        bool half = false;  // its numbers are bfloat16 numbers
    };

    void add(std::size_t i) {
        const auto& [op, type, to, lo, hi, sources] = rows_[i];
        Result& result = found_[types_.size() + i];
        bool halves = true;
        for (std::size_t source : sources) halves = halves && of(source).half;
        if (op == "cast" && (type == kHalf || halves)) {
            result = of(sources.front());
            return;
        }
        Link link{};
        const int function = place_of(kFunctionNames, op);
        link.is_function = place_of(kOperationNames, op) < 0;
        if (link.is_function)
            link.function = static_cast<Function>(function);
        else
            link.operation = static_cast<Operation>(place_of(kOperationNames, op));
        link.lo = static_cast<float>(lo);
        link.hi = static_cast<float>(hi);
        link.shelf = -1;
        link.count = sources.size();
        for (std::size_t k = 0; k < sources.size(); ++k) link.operands[k] = operand(of(sources[k]));
        result = {chain_.links.size(), 0, op == "cast" || to == kTruth || (halves && keeps_halves(rows_[i]))};
        chain_.links.push_back(link);
    }

    Result of(std::size_t value) const {
        const bool inside = value >= types_.size() + first_;
        return inside ? found_[value] : Result{{}, value, type(value) == kHalf || type(value) == kTruth};
    }

    const std::string& type(std::size_t value) const {
        return value < types_.size() ? types_[value] : std::get<2>(rows_[value - types_.size()]);
    }

    // The result of a link lies in a shelf that has the link's number, until `keep`.
    Operand operand(const Result& from) const {
        if (from.link) return {Place::kShelf, *from.link};
        const std::string& name = type(from.value);
        return {name == kFloat ? Place::kFloat : name == kHalf ? Place::kHalf : Place::kTruth, from.value};
    }

    // Results that only the next link reads stay in the register; others get a shelf.
    void keep() {
        std::vector<std::size_t> last(chain_.links.size());  // the link that reads it last
        for (std::size_t i = 0; i < chain_.links.size(); ++i)
            for (const Operand& one : operands_of(i))
                if (one.place == Place::kShelf) last[one.at] = i;
        std::vector<int> shelf(chain_.links.size(), -1);
        int shelves = 0;
        for (std::size_t i = 0; i < chain_.links.size(); ++i) {
            for (Operand& one : operands_of(i))
                if (one.place == Place::kShelf)
                    one = shelf[one.at] < 0 ? Operand{Place::kRegister, 0}
                                            : Operand{Place::kShelf, static_cast<std::size_t>(shelf[one.at])};
            if (last[i] > i + 1) chain_.links[i].shelf = shelf[i] = shelves++;
        }
    }

    std::span<Operand> operands_of(std::size_t link) {
        return {chain_.links[link].operands.data(), chain_.links[link].count};
    }

    const std::vector<Row>& rows_;
    const std::vector<std::string>& types_;
    std::size_t first_, last_;
    std::vector<Result> found_;
    Chain chain_{};
};

// The last row up to which rows from `first` on can be links, the results of all but the last of which are
// not read behind it.
std::size_t last_of(const std::vector<Row>& rows, std::size_t inputs, std::size_t first) {
    std::size_t end = first;
    while (end + 1 < rows.size() && end + 1 - first < kMostShelves && can_link(rows[end + 1])) ++end;
    const auto closed = [&](std::size_t last) {
        if (std::get<2>(rows[last]) == kTruth) return false;
        for (std::size_t i = last + 1; i < rows.size(); ++i)
            for (std::size_t source : std::get<5>(rows[i]))
                if (source >= inputs + first && source < inputs + last) return false;
        return true;
    };
    while (end > first && !closed(end)) --end;
    return end;
}

}  // namespace

Type type_of(const std::string& name) {
    const int found = place_of(kTypeNames, name);
    if (found < 0) throw nanobind::value_error(("elementwise_step: no type " + name).c_str());
    return static_cast<Type>(found);
}

std::vector<JoinedRows> joined(const std::vector<Row>& rows, const std::vector<std::string>& types) {
    std::vector<JoinedRows> found;
    for (std::size_t first = 0, last = 0; first < rows.size(); first = last + 1) {
        last = can_link(rows[first]) ? last_of(rows, types.size(), first) : first;
        if (last == first) continue;
        Chain chain = Linking(rows, types, first, last).made();
        if (!chain.links.empty()) found.push_back({first, last, std::move(chain)});
    }
    return found;
}

}  // namespace mge
