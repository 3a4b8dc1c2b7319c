#define MGE_UPDATE update_avx512
#include "core/update_kernels.inc"
