#define MGE_UPDATE update_avx2
#include "updates/kernels.inc"
