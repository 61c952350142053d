/* What devices do in a second, and how much of that each kind of work gets: the figures that a plan is made of. Data;
 * any thread.
 *
 * Figures of a device are measured where docs/lab/cuda.md has them; the shares are of the same runs. A network
 * between hosts has not been measured: its figure is a data sheet's. */
#ifndef CLIME_TRAINER_PLAN_RATES_H
#define CLIME_TRAINER_PLAN_RATES_H

struct clime_device_rates {
    const char *name;
    double code_gib, head_gib;        /* of that for kernels' code and scratch; a chunk of logits */
    double memory_gib;                /* free on an empty device */
    double copy_gbs;                  /* read and written by a copy in its own memory */
    double gemm_tflops;               /* bf16, 8192 x 8192 x 8192 */
    double peers_gbs, network_gbs;    /* each way at once, to devices of its host; of one device, to another host */
    double host_gib, host_adam_per_s; /* memory of a host; parameters that its cores update in a second */
};
extern const struct clime_device_rates clime_device_rates[];
#define CLIME_DEVICE_KINDS "h200" /* their names, as choices of an option */

/* Shares of copy_gbs and of gemm_tflops. */
enum clime_work_kind { CLIME_WORK_DENSE, CLIME_WORK_EXPERTS, CLIME_WORK_LATENT, CLIME_WORK_KINDS };
struct clime_work_shares {
    double decode_bytes; /* reading weights and KV */
    double decode_gemm;  /* products of up to 256 rows */
    double layer_us;     /* of a decode step beside them: router, choice, sorting, sum; small kernels of attention */
    double prefill, train;
};
extern const struct clime_work_shares clime_work_shares[CLIME_WORK_KINDS];

#define CLIME_SELECTIVE_COST 1.1 /* time of a step that recomputes selectively, of one that keeps everything */
#define CLIME_GATHER_US 3.0      /* of a decode step's gather over devices of a host */
#define CLIME_RANKS_SHARE 0.95   /* of what N devices do alone, where the exchange hides */

#endif
