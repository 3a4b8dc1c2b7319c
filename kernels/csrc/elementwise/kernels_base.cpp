#define MGE_BLOCK_FUNCTION block_function_base
#define MGE_CHAIN_FUNCTION chain_function_base
#define MGE_SPREAD_FUNCTION spread_function_base
#include "elementwise/chains.inc"
#include "elementwise/kernels.inc"
#include "elementwise/spreads.inc"
