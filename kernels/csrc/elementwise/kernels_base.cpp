#define MGE_BLOCK_FUNCTION block_function_base
#include "elementwise/kernels.inc"
