/* The flat buffer of weights (model/weights/layout.h) in and out: import, upload, export, checksum, random initial
 * values. */
#ifndef CLIME_MODEL_WEIGHTS_WEIGHTS_H
#define CLIME_MODEL_WEIGHTS_WEIGHTS_H

#include <stdint.h>

#include "model/weights/layout.h"
#include "model/weights/safetensors.h"

/* Where weights are read from: the host's memory, or a device's in pieces (model.h), so that nobody needs the host to
 * hold all of them. */
struct clime_weights_source {
    int64_t most; /* bytes of one read */
    /* *out: bytes <= most from offset on, in memory of the source that stands until the next read. */
    enum clime_err (*read)(const struct clime_weights_source *s, int64_t offset, int64_t bytes, const void **out,
                           struct clime_error *e);
    const void *arg;
};
struct clime_weights_source clime_weights_in_host(const void *flat); /* a read cannot fail */

/* The refusal of a tensor with NaN or infinities, which no policy can be computed with. */
enum clime_err clime_weights_not_finite(const char *name, struct clime_error *e);

/* Import. flat: host memory of l->bytes. */

/* Fills flat from DIR's safetensors (one file or an index), converting bf16, fp16, fp32. Every tensor of the layout
 * must be there with its shape (the error names it); extra tensors are refused unless they are a tied lm_head, which
 * must be the embedding, or rotary tables. */
enum clime_err clime_weights_import(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                    void *flat, struct clime_error *e);

/* The same from one safetensors stream (PUT /weights): bytes are fed as they come; done checks completeness. */
struct clime_weights_reader;
struct clime_weights_reader *clime_weights_reader_new(const struct clime_config *c, const struct clime_layout *l,
                                                      void *flat);
enum clime_err clime_weights_reader_feed(struct clime_weights_reader *r, const void *data, size_t len,
                                         struct clime_error *e);
enum clime_err clime_weights_reader_done(struct clime_weights_reader *r, struct clime_error *e);
void clime_weights_reader_free(struct clime_weights_reader *r);

/* What else a checkpoint holds and a folder made of it must hold too, as it is: layers that predict further tokens. The
 * files stay mapped until it is closed. */
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
/* Nothing where the configuration has no such layers, or dir no weights. */
enum clime_err clime_carried_open(const char *dir, const struct clime_config *c, struct clime_carried *out,
                                  struct clime_error *e);
void clime_carried_close(struct clime_carried *x);

/* Writes model.safetensors (sharded over max_shard_bytes, with its index; 0 = one file) into DIR, through temporary
 * names, synced, then renamed. What is carried (NULL: nothing) goes into the last. config.json is written too;
 * tokenizer files are the caller's. */
enum clime_err clime_weights_export(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                    const struct clime_weights_source *from, const struct clime_carried *carried,
                                    int64_t max_shard_bytes, struct clime_error *e);

/* The safetensors form as a byte stream, for uploading without a file: total length, and bytes [at, at+size). flat is
 * host memory: the bodies for several servers are made at once, each by a thread of its own. */
struct clime_weights_writer;
struct clime_weights_writer *clime_weights_writer_new(const struct clime_layout *l, const void *flat);
int64_t clime_weights_writer_length(const struct clime_weights_writer *w);
int64_t clime_weights_writer_read(struct clime_weights_writer *w, void *out, size_t size); /* 0 at the end */
void clime_weights_writer_free(struct clime_weights_writer *w);

/* "SHA-256 of the weights": for each tensor in name order: name NUL, type name NUL, each dimension as u64, and the
 * SHA-256 of each 2 MiB of its bytes. On n_threads (0 = all cores); fails as the source's reads do. A source in pieces
 * has pieces of 2 MiB or more, which may lie over several tensors. */
enum clime_err clime_weights_sha256(const struct clime_layout *l, const struct clime_weights_source *from,
                                    int n_threads, char hex[65], struct clime_error *e);

/* Random initial weights: normal(0, std) for matrices, ones for norms, zeros for biases; by seed, tensor by tensor. */
void clime_weights_init(const struct clime_layout *l, void *flat, float std, uint64_t seed);

#endif
