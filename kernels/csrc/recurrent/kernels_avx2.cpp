#define MGE_RECURRENT_KERNELS recurrent_kernels_avx2
#include "recurrent/kernels.inc"
