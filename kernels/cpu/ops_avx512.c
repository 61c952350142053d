/* Every operation of the CPU table, compiled for AVX-512 with bf16 products (flags in the Makefile). cpu.h has the
 * naming of builds; vec.h is where they differ. Holds nothing of its own.
 */
#define CLIME_CPU_AVX512

#include "kernels/cpu/act.c"
#include "kernels/cpu/attention.c"
#include "kernels/cpu/attention_bwd.c"
#include "kernels/cpu/cpu_isa.c"
#include "kernels/cpu/embed.c"
#include "kernels/cpu/experts.c"
#include "kernels/cpu/gemm.c"
#include "kernels/cpu/head.c"
#include "kernels/cpu/latent.c"
#include "kernels/cpu/norm.c"
#include "kernels/cpu/optim.c"
#include "kernels/cpu/rope.c"
#include "kernels/cpu/sample.c"
