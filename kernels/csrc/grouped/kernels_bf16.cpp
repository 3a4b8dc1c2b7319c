#define MGE_GROUPED_KERNELS grouped_kernels_bf16
#include "grouped/kernels.inc"
