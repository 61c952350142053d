/* Device rates, and the share of them that each kind of work reaches: the figures behind a plan. Data; any thread.
 *
 * Device figures were measured as docs/lab/cuda.md says; shares are from the same runs. The network between hosts was
 * not measured: its figure is from a data sheet. */
#ifndef CLIME_TRAINER_PLAN_RATES_H
#define CLIME_TRAINER_PLAN_RATES_H

struct clime_device_rates {
    const char *name;
    double code_gib, head_gib;        /* of memory_gib: kernels' code and scratch; a chunk of logits */
    double memory_gib;                /* free on an empty device */
    double copy_gbs;                  /* read plus written by a copy in its own memory */
    double gemm_tflops;               /* bf16, 8192 x 8192 x 8192 */
    double peers_gbs, network_gbs;    /* each way at once: to devices of its host; per device, to another host */
    double host_gib, host_adam_per_s; /* memory of a host; parameters updated per second by its cores */
};
extern const struct clime_device_rates clime_device_rates[];
#define CLIME_DEVICE_KINDS "h200" /* names, as choices of an option */

/* Shares of copy_gbs and of gemm_tflops. */
enum clime_work_kind { CLIME_WORK_DENSE, CLIME_WORK_EXPERTS, CLIME_WORK_LATENT, CLIME_WORK_KINDS };
struct clime_work_shares {
    double decode_bytes; /* reading weights and KV */
    double decode_gemm;  /* products of up to 256 rows */
    double layer_us;     /* per layer of a decode step, added: router, choice, sorting, sum; small attention kernels */
    double prefill, train;
};
extern const struct clime_work_shares clime_work_shares[CLIME_WORK_KINDS];

#define CLIME_SELECTIVE_COST 1.1 /* time of a step with selective recomputation, relative to none */
#define CLIME_GATHER_US 3.0      /* per gather of a decode step over devices of a host */
#define CLIME_RANKS_SHARE 0.95   /* of N devices' separate throughput, where the exchange is hidden */

#endif
