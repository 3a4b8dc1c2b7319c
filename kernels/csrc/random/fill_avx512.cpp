#define MGE_RANDOM random_avx512
#include "random/fill.inc"
