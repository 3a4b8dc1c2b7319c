#define MGE_TRAINING_KERNELS training_kernels_avx2
#include "training/kernels.inc"
