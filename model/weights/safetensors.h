/* The safetensors container (github.com/huggingface/safetensors, "Format"): 8 bytes of header length, little-endian; a
 * JSON object {name: {dtype, shape, data_offsets}, "__metadata__"?: {text: text}}; the tensors' bytes.
 *
 * Nouns: a `header` is the checked directory; a `file` is a header with its data mapped read-only. Both are owned by
 * the caller, immutable, any thread.
 *
 * Refused, with a message that names the tensor: a header over CLIME_ST_MAX_HEADER, broken JSON, a duplicate name, an
 * unknown type, more than 8 dimensions, a size that is not shape times type, ranges that overlap, leave a hole, or do
 * not end exactly at the end of the file.
 */
#ifndef CLIME_MODEL_WEIGHTS_SAFETENSORS_H
#define CLIME_MODEL_WEIGHTS_SAFETENSORS_H

#include <stdint.h>

#include "common/arena.h"
#include "common/err.h"
#include "common/os/mapped.h"

#define CLIME_ST_MAX_HEADER (32 << 20) /* bytes; enough for 10^5 tensors. The reference reader allows 100 MB */
#define CLIME_ST_MAX_DIMS 8

enum clime_st_dtype {
    CLIME_ST_F32,
    CLIME_ST_F16,
    CLIME_ST_BF16,
    CLIME_ST_FP8,  /* e4m3 without infinities; readable only with its scales (fp8.h) */
    CLIME_ST_OTHER /* known size, not readable here */
};

struct clime_st_tensor {
    const char *name;  /* NUL-terminated, in the header's arena */
    const char *dtype; /* as in the file, "BF16" */
    enum clime_st_dtype type;
    int n_dim;
    int64_t dim[CLIME_ST_MAX_DIMS];
    uint64_t begin, end; /* byte range from the start of the data */
};

struct clime_st_header {
    struct clime_st_tensor *tensors; /* by ascending begin */
    int n;
    uint64_t data_bytes; /* end of the last tensor */
    struct clime_arena arena;
};

/* Parses a header's JSON. On error nothing needs to be freed. */
enum clime_err clime_st_header_parse(const char *json, size_t len, struct clime_st_header *out, struct clime_error *e);
void clime_st_header_free(struct clime_st_header *h);

/* Checks the length field against the limit. */
enum clime_err clime_st_header_length(const uint8_t first8[8], uint64_t *len, struct clime_error *e);

struct clime_st_file {
    struct clime_st_header header;
    const uint8_t *data; /* [header.data_bytes], mapped */
    struct clime_mapped map;
};

/* Errors include the path. If another program truncates the mapped file, reads give zeros (common/os/mapped.h). */
enum clime_err clime_st_open(const char *path, struct clime_st_file *out, struct clime_error *e);
/* After reading the tensors: CLIME_ERR_IO, without the path, when the file was truncated or rewritten meanwhile. */
enum clime_err clime_st_check(const struct clime_st_file *f, struct clime_error *e);
void clime_st_close(struct clime_st_file *f);

#endif
