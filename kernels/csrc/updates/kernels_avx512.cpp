#define MGE_UPDATE update_avx512
#include "updates/kernels.inc"
