#define MGE_BLOCK_FUNCTION block_function_avx2
#include "elementwise/kernels.inc"
