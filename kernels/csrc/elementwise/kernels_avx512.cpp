#define MGE_BLOCK_FUNCTION block_function_avx512
#define MGE_CHAIN_FUNCTION chain_function_avx512
#define MGE_SPREAD_FUNCTION spread_function_avx512
#include "elementwise/chains.inc"
#include "elementwise/kernels.inc"
#include "elementwise/spreads.inc"
