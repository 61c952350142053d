/* The table of CPUs with AMX: the products of gemm_amx.c, all else from the AVX-512 build. Holds nothing of its own. */
#define CLIME_CPU_AVX512
#define CLIME_CPU_AMX

#include "kernels/cpu/cpu_isa.c"
