/* The flat weight buffer (model/weights/layout.h): import, upload, export, checksum, random initial values. */
#ifndef CLIME_MODEL_WEIGHTS_WEIGHTS_H
#define CLIME_MODEL_WEIGHTS_WEIGHTS_H

#include <stdint.h>

#include "model/weights/layout.h"
#include "model/weights/safetensors.h"

/* Where weights are read from: host memory, or a device's in pieces (model.h), so the host need not hold all of
 * them. */
struct clime_weights_source {
    int64_t most; /* bytes of one read, at most */
    /* *out: bytes <= most from offset on, in the source's memory, valid until the next read. */
    enum clime_err (*read)(const struct clime_weights_source *s, int64_t offset, int64_t bytes, const void **out,
                           struct clime_error *e);
    const void *arg;
};
struct clime_weights_source clime_weights_in_host(const void *flat); /* a read cannot fail */

/* The error for a tensor with NaN or infinities. */
enum clime_err clime_weights_not_finite(const char *name, struct clime_error *e);

/* Import. flat: host memory of l->bytes. */

/* Fills flat from DIR's safetensors (one file or an index), converting bf16, fp16, fp32. Every tensor of the layout
 * must be present with its shape (the error names it). Extra tensors are refused, except a tied lm_head equal to the
 * embedding, and rotary tables. */
enum clime_err clime_weights_import(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                    void *flat, struct clime_error *e);

/* The same from one safetensors stream (PUT /weights), fed in chunks; done checks completeness. */
struct clime_weights_reader;
struct clime_weights_reader *clime_weights_reader_new(const struct clime_config *c, const struct clime_layout *l,
                                                      void *flat);
enum clime_err clime_weights_reader_feed(struct clime_weights_reader *r, const void *data, size_t len,
                                         struct clime_error *e);
enum clime_err clime_weights_reader_done(struct clime_weights_reader *r, struct clime_error *e);
void clime_weights_reader_free(struct clime_weights_reader *r);

/* Checkpoint tensors that clime does not use but an exported folder must contain unchanged: layers that predict further
 * tokens. The files stay mapped until close. */
#define CLIME_CARRIED_NAME 200 /* bytes of a name, at most */
struct clime_carried {
    struct clime_carried_tensor {
        const struct clime_st_tensor *t;
        const uint8_t *data;
    } * tensors;
    int n;
    struct clime_st_file *files;
    int n_files;
};
/* Empty when the configuration has no such layers, or dir no weights. */
enum clime_err clime_carried_open(const char *dir, const struct clime_config *c, struct clime_carried *out,
                                  struct clime_error *e);
void clime_carried_close(struct clime_carried *x);

/* Writes model.safetensors (sharded over max_shard_bytes, with its index; 0 = one file) and config.json into DIR,
 * through temporary names, synced, then renamed. Carried tensors (NULL: none) are written into the last file. Tokenizer
 * files are the caller's. */
enum clime_err clime_weights_export(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                    const struct clime_weights_source *from, const struct clime_carried *carried,
                                    int64_t max_shard_bytes, struct clime_error *e);

/* The safetensors form as a byte stream, for uploading without a file: total length, and bytes [at, at+size). flat is
 * host memory, so bodies for several servers can be made at once, each by its own thread. */
struct clime_weights_writer;
struct clime_weights_writer *clime_weights_writer_new(const struct clime_layout *l, const void *flat);
int64_t clime_weights_writer_length(const struct clime_weights_writer *w);
int64_t clime_weights_writer_read(struct clime_weights_writer *w, void *out, size_t size); /* 0 at the end */
void clime_weights_writer_free(struct clime_weights_writer *w);

/* "SHA-256 of the weights": for each tensor in name order: name NUL, type name NUL, each dimension as u64, and the
 * SHA-256 of each 2 MiB of its bytes. Uses n_threads (0 = all cores); fails when a read of the source does. A source in
 * pieces has pieces of 2 MiB or more, which may span tensors. */
enum clime_err clime_weights_sha256(const struct clime_layout *l, const struct clime_weights_source *from,
                                    int n_threads, char hex[65], struct clime_error *e);

/* Random initial weights: normal(0, std) for matrices, ones for norms, zeros for biases; by seed, tensor by tensor. */
void clime_weights_init(const struct clime_layout *l, void *flat, float std, uint64_t seed);

#endif
