#define MGE_PRODUCT_KERNELS product_kernels_avx512
#include "products/kernels.inc"
