// Operations of elementwise programs on blocks of numbers; one table per instruction set, all with the same
// results.
#pragma once
#include <array>
#include <cstdint>

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

// In the order of kOperationNames: ops, by their names.
enum class Operation {
    kAdd,
    kSub,
    kMul,
    kDiv,
    kMaximum,
    kMinimum,
    kEqual,
    kNotEqual,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kLogicalAnd,
    kLogicalOr,
    kLogicalXor,
    kLogicalNot,
    kWhere,
    kCast,
    kClip,
    kNeg,
    kAbs,
    kSquare,
    kSign,
    kFloor,
    kCeil,
    kRound,
    kRelu,
    kRelu6,
    kPow,
    kRoundEven,
    kBitwiseAnd,
    kBitwiseOr,
    kBitwiseXor
};
inline constexpr std::array kOperationNames{
    "add",         "sub",         "mul",         "div",        "maximum",       "minimum",     "equal",
    "not_equal",   "less",        "less_equal",  "greater",    "greater_equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "where",       "cast",       "clip",          "neg",         "abs",
    "square",      "sign",        "floor",       "ceil",       "round",         "relu",        "relu6",
    "pow",         "round_even",  "bitwise_and", "bitwise_or", "bitwise_xor"};

// operands: as many as the operation has; lo and hi: the bounds of a clip.
using BlockFunction = void (*)(const void* const* operands, void* dst, std::int64_t size, double lo,
                               double hi);

// The function for operands of a type (of `where`: the last two), null if there is none; `to` is the type of
// the result of a cast.
BlockFunction block_function_base(Operation operation, Type type, Type to);
BlockFunction block_function_avx2(Operation operation, Type type, Type to);
BlockFunction block_function_avx512(Operation operation, Type type, Type to);

}  // namespace mge
