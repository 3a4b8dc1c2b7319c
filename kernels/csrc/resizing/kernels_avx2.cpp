#define MGE_RESIZING_KERNELS resizing_kernels_avx2
#include "resizing/kernels.inc"
