#define MGE_BLOCK_FUNCTION block_function_avx512
#include "elementwise/kernels.inc"
