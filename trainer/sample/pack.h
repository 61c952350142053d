/* Packing of samples into micro-batches: first fit in input order, under a cap of rows. A sample longer than the cap
 * gets its own micro-batch. Never truncates. A pure function of (lengths, cap, options); the result is recorded with
 * the step, so a repeated step packs the same way (docs/ledger.md). */
#ifndef CLIME_TRAINER_SAMPLE_PACK_H
#define CLIME_TRAINER_SAMPLE_PACK_H

#include <stdbool.h>
#include <stdint.h>

struct clime_packing {
    int n_micro;
    int32_t *first;  /* [n_micro + 1] index into sample[] */
    int32_t *sample; /* [number of samples] indices of the step's samples, by micro-batch */
};

struct clime_pack_options {
    int max_tokens; /* rows of a micro-batch (--max-tokens-per-gpu) */
    bool dynamic;   /* --use-dynamic-batch-size; else micro_batch_size samples each, in order */
    int micro_batch_size;
    bool balance; /* --balance-data: between ranks; inert on one */
};

void clime_pack_make(const int32_t *lengths, int n, const struct clime_pack_options *o, struct clime_packing *out);
void clime_pack_free(struct clime_packing *p);

#endif
