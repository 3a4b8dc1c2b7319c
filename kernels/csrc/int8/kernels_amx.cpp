// Exact 8-bit kernels for the instruction set in the name of this file.
#define MGE_INT8_TABLE table_amx
#include "int8/table.inc"
