#define MGE_WINOGRAD_KERNELS winograd_kernels_avx512
#include "winograd/kernels.inc"
