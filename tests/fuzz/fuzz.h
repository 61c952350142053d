/* A deterministic fuzzing loop, shared by the programs of this folder.
 *
 * A program names seed texts, a dictionary, and a target that takes bytes and CHECKs its own invariants; run under the
 * address and undefined-behaviour sanitizers (make fuzz). Case i depends on (seed, i) alone, so a failure, which prints
 * both, is run again by "--seed S --only I". Options: --seed S, --iterations N or --cpu-minutes N, --only I.
 */
#ifndef CLIME_TESTS_FUZZ_FUZZ_H
#define CLIME_TESTS_FUZZ_FUZZ_H

#include "common/str.h"

struct fuzz {
    const struct clime_str *seeds; /* at least one */
    int n_seeds;
    const char *const *words;                     /* tokens of the format, put in now and then; ends with NULL */
    size_t max_bytes;                             /* of a case */
    int iterations;                               /* by default */
    void (*target)(const char *data, size_t len); /* data is an allocation of exactly len bytes */
};

int fuzz_main(int argc, char **argv, const struct fuzz *f);

/* Makes a folder for a target's files, in $TMPDIR or /tmp: on a disk most of a case is waiting for it. */
void fuzz_folder(char out[64]);

#endif
