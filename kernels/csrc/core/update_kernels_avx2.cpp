#define MGE_UPDATE update_avx2
#include "core/update_kernels.inc"
