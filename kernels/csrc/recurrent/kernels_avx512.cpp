#define MGE_RECURRENT_KERNELS recurrent_kernels_avx512
#include "recurrent/kernels.inc"
