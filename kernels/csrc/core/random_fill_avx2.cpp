#define MGE_RANDOM random_avx2
#include "core/random_fill.inc"
