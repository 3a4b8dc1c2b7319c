#define MGE_TRAINING_KERNELS training_kernels_avx512
#include "core/training_kernels.inc"
