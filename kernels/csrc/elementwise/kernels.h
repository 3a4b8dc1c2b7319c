// Operations of elementwise programs on blocks of numbers; one table per instruction set, all with the same
// results.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/names.h"
#include "float/kernels.h"

namespace mge {

// In the order of kTypeNames, which are NumPy's. The two of 16 bits are only converted.
enum class Type {
    kBool,
    kInt8,
    kUint8,
    kInt16,
    kUint16,
    kInt32,
    kInt64,
    kFloat32,
    kFloat64,
    kFloat16,
    kBfloat16
};
inline constexpr std::array kTypeNames{"bool",  "int8",    "uint8",   "int16",   "uint16",  "int32",
                                       "int64", "float32", "float64", "float16", "bfloat16"};
inline constexpr std::array<std::int64_t, 11> kTypeSizes{1, 1, 1, 2, 2, 4, 8, 4, 8, 2, 2};

// Ops of elementwise programs, by their names.
#define MGE_OPERATIONS(X)             \
    X(kAdd, "add")                    \
    X(kSub, "sub")                    \
    X(kMul, "mul")                    \
    X(kDiv, "div")                    \
    X(kMaximum, "maximum")            \
    X(kMinimum, "minimum")            \
    X(kEqual, "equal")                \
    X(kNotEqual, "not_equal")         \
    X(kLess, "less")                  \
    X(kLessEqual, "less_equal")       \
    X(kGreater, "greater")            \
    X(kGreaterEqual, "greater_equal") \
    X(kLogicalAnd, "logical_and")     \
    X(kLogicalOr, "logical_or")       \
    X(kLogicalXor, "logical_xor")     \
    X(kLogicalNot, "logical_not")     \
    X(kWhere, "where")                \
    X(kCast, "cast")                  \
    X(kClip, "clip")                  \
    X(kNeg, "neg")                    \
    X(kAbs, "abs")                    \
    X(kSquare, "square")              \
    X(kSign, "sign")                  \
    X(kFloor, "floor")                \
    X(kCeil, "ceil")                  \
    X(kRound, "round")                \
    X(kRelu, "relu")                  \
    X(kRelu6, "relu6")                \
    X(kPow, "pow")                    \
    X(kRoundEven, "round_even")       \
    X(kBitwiseAnd, "bitwise_and")     \
    X(kBitwiseOr, "bitwise_or")       \
    X(kBitwiseXor, "bitwise_xor")     \
    X(kLeftShift, "left_shift")       \
    X(kRightShift, "right_shift")     \
    X(kMod, "mod")                    \
    X(kFloorDiv, "floor_div")         \
    X(kTruncDiv, "trunc_div")         \
    X(kAtan2, "atan2")

enum class Operation { MGE_OPERATIONS(MGE_MEMBER) };
inline constexpr std::array kOperationNames{MGE_OPERATIONS(MGE_NAME)};

// operands: as many as the operation has; lo and hi: the bounds of a clip.
using BlockFunction = void (*)(const void* const* operands, void* dst, std::int64_t size, double lo,
                               double hi);

// The function for operands of a type (of `where`: the last two), null if there is none; `to` is the type of
// the result of a cast.
BlockFunction block_function_base(Operation operation, Type type, Type to);
BlockFunction block_function_avx2(Operation operation, Type type, Type to);
BlockFunction block_function_avx512(Operation operation, Type type, Type to);

// Where a link finds an operand: in the register of the link before, in one of an earlier link (a shelf), or
// in a value of numbers, bfloat16 numbers or truths.
enum class Place { kRegister, kShelf, kFloat, kHalf, kTruth };
struct Operand {
    Place place;
    std::size_t at;  // the shelf, or the value
};

// An operation, or a function, on numbers that stay in registers; a cast rounds to bfloat16.
struct Link {
    Operation operation;
    bool is_function;
    Function function;
    float lo, hi;
    std::array<Operand, 3> operands;
    std::size_t count;
    int shelf;  // that keeps the result for later links; -1: only the next link reads it
};

// Links one behind the other; the last one's numbers are stored as float32 or bfloat16.
struct Chain {
    Type to;
    std::vector<Link> links;
};
using ChainFunction = void (*)(const Chain& chain, const void* const* values, void* dst, std::int64_t size);

inline constexpr std::size_t kMostShelves = 32;  // of a chain

ChainFunction chain_function_base();
ChainFunction chain_function_avx2();
ChainFunction chain_function_avx512();
ChainFunction chain_function_bf16();

// Rows of numbers of so many bytes, one behind the other, of a matrix with these steps in bytes; 0 repeats.
using SpreadFunction = void (*)(std::int64_t item, const std::byte* from, std::byte* to, std::int64_t rows,
                                std::int64_t cols, std::int64_t row_step, std::int64_t col_step);

SpreadFunction spread_function_base();
SpreadFunction spread_function_avx2();
SpreadFunction spread_function_avx512();

}  // namespace mge
