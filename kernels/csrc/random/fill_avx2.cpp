#define MGE_RANDOM random_avx2
#include "random/fill.inc"
