#define MGE_RESIZING_KERNELS resizing_kernels_avx512
#include "resizing/kernels.inc"
