#define MGE_PRODUCT_KERNELS product_kernels_avx2
#include "products/kernels.inc"
