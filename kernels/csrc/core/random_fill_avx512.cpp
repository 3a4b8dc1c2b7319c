#define MGE_RANDOM random_avx512
#include "core/random_fill.inc"
