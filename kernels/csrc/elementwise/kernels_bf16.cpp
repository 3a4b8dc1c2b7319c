#define MGE_CHAIN_FUNCTION chain_function_bf16
#include "elementwise/chains.inc"
