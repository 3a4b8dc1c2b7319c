#define MGE_TRAINING_KERNELS training_kernels_avx512
#include "training/kernels.inc"
