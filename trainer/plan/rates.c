/* Device rates (rates.h), from docs/lab/cuda.md (entries of 2026-11-22 to 24, one H200 and two). */
#include "trainer/plan/rates.h"

const struct clime_device_rates clime_device_rates[] = {
    {.name = "h200",
     .memory_gib = 139.25,
     .code_gib = 0.9,
     .head_gib = 2374.0 / 1024,
     .copy_gbs = 4270,
     .gemm_tflops = 790,
     .peers_gbs = 345,
     .network_gbs = 45, /* a 400 Gbit/s adapter per device, not measured */
     .host_gib = 2048,  /* eight devices per host; typical of servers on sale, not measured */
     .host_adam_per_s = 5.3e9},
};

const struct clime_work_shares clime_work_shares[CLIME_WORK_KINDS] = {
    [CLIME_WORK_DENSE] = {.decode_bytes = 0.75, .decode_gemm = 0.62, .layer_us = 0, .prefill = 0.78, .train = 0.70},
    [CLIME_WORK_EXPERTS] = {.decode_bytes = 0.75, .decode_gemm = 0.62, .layer_us = 13, .prefill = 0.64, .train = 0.545},
    [CLIME_WORK_LATENT] = {.decode_bytes = 0.75, .decode_gemm = 0.62, .layer_us = 15, .prefill = 0.64, .train = 0.49},
};
