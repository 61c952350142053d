/* Weight export: the safetensors form as a byte stream for uploads, and as files that transformers loads.
 *
 * Called by the trainer's main thread (pushing a version, saving a folder) and clime-train init; a writer owns its
 * header text and borrows what the source reads. Invariant: tensors are in buffer order without gaps, so a reader that
 * fills a buffer of the same layout writes memory front to back.
 *
 * The header is padded with spaces to a multiple of 64 bytes, so that tensor data is aligned in the file as in the
 * buffer; transformers requires "format": "pt" in a checkpoint's metadata.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json/write.h"
#include "common/os/atomic_file.h"
#include "model/weights/convert.h"
#include "model/weights/weights.h"
#include "model/weights/weights_map.h"

#define HEADER_ALIGN 64
#define ENTRY_BYTES                                                                                                    \
    (6 * CLIME_CARRIED_NAME + 512) /* of a carried tensor in a header: a byte of its name may be \u0000 */

struct clime_weights_writer {
    const struct clime_layout *l;
    struct clime_weights_source from;
    int first, last; /* slices [first, last), then the carried tensors */
    const struct clime_carried_tensor *carried;
    int n_carried;
    char *header; /* length field, JSON, padding */
    int64_t header_len, length, at;
    int slice;        /* the one at `at`, once past the header */
    int64_t slice_at; /* first byte of that slice in the stream; past the slices, of a carried tensor */
};

/* Writes one tensor of a header; returns the start of the next one. */
static int64_t write_entry(struct clime_jw *w, const char *name, const char *type, int n_dim, const int64_t *dim,
                           int64_t begin, int64_t bytes) {
    clime_jw_key(w, name);
    clime_jw_object(w);
    clime_jw_put_strz(w, "dtype", type);
    clime_jw_key(w, "shape");
    clime_jw_array(w);
    for (int i = 0; i < n_dim; i++) clime_jw_int(w, dim[i]);
    clime_jw_close(w);
    clime_jw_key(w, "data_offsets");
    clime_jw_array(w);
    clime_jw_int(w, begin);
    clime_jw_int(w, begin + bytes);
    clime_jw_close(w);
    clime_jw_close(w);
    return begin + bytes;
}

static int64_t write_slice(struct clime_jw *w, const struct clime_slice *s, int64_t begin) {
    return write_entry(w, s->name, clime_st_name(s->type), s->n_dim, s->dim, begin, s->bytes);
}

static struct clime_weights_writer *new_range(const struct clime_layout *l, const struct clime_weights_source *from,
                                              int first, int last, const struct clime_carried *carried) {
    struct clime_weights_writer *w = xcalloc(1, sizeof *w);
    *w = (struct clime_weights_writer){.l = l, .from = *from, .first = first, .last = last, .slice = first};
    if (carried && last == l->n_slices) {
        w->carried = carried->tensors;
        w->n_carried = carried->n;
    }
    struct clime_buf text;
    struct clime_jw jw;
    clime_buf_init(&text, (size_t)l->n_slices * 512 + (size_t)w->n_carried * ENTRY_BYTES + 4096);
    clime_buf_add(&text, "\0\0\0\0\0\0\0\0", 8);
    clime_jw_init(&jw, &text);
    clime_jw_object(&jw);
    clime_jw_key(&jw, "__metadata__");
    clime_jw_object(&jw);
    clime_jw_put_strz(&jw, "format", "pt");
    clime_jw_close(&jw);
    int64_t at = 0;
    for (int i = first; i < last; i++) at = write_slice(&jw, &l->slices[i], at);
    for (int i = 0; i < w->n_carried; i++) {
        const struct clime_st_tensor *t = w->carried[i].t;
        at = write_entry(&jw, t->name, t->dtype, t->n_dim, t->dim, at, (int64_t)(t->end - t->begin));
    }
    clime_jw_close(&jw);
    while (text.len % HEADER_ALIGN) clime_buf_addc(&text, ' ');
    CHECK(!text.full);
    w->header_len = (int64_t)text.len;
    w->length = w->header_len + at;
    w->slice_at = w->header_len;
    w->header = clime_buf_take(&text);
    uint64_t json_len = (uint64_t)w->header_len - 8;
    for (int i = 0; i < 8; i++) w->header[i] = (char)(json_len >> (8 * i) & 255);
    return w;
}

struct clime_weights_writer *clime_weights_writer_new(const struct clime_layout *l, const void *flat) {
    struct clime_weights_source from = clime_weights_in_host(flat);
    return new_range(l, &from, 0, l->n_slices, NULL);
}

int64_t clime_weights_writer_length(const struct clime_weights_writer *w) {
    return w->length;
}

/* The next contiguous run of bytes and its length; 0 at the end. */
static enum clime_err next_run(struct clime_weights_writer *w, const char **at, int64_t *len, struct clime_error *e) {
    *len = 0;
    if (w->at < w->header_len) {
        *at = w->header + w->at;
        *len = w->header_len - w->at;
        return CLIME_OK;
    }
    while (w->slice < w->last) {
        const struct clime_slice *s = &w->l->slices[w->slice];
        int64_t in = w->at - w->slice_at;
        if (in < s->bytes) {
            *len = s->bytes - in < w->from.most ? s->bytes - in : w->from.most;
            return w->from.read(&w->from, s->offset + in, *len, (const void **)at, e);
        }
        w->slice_at += s->bytes;
        w->slice++;
    }
    for (int i; (i = w->slice - w->last) < w->n_carried; w->slice++) {
        const struct clime_carried_tensor *c = &w->carried[i];
        int64_t bytes = (int64_t)(c->t->end - c->t->begin), in = w->at - w->slice_at;
        if (in < bytes) {
            *at = (const char *)c->data + in;
            *len = bytes - in;
            return CLIME_OK;
        }
        w->slice_at += bytes;
    }
    return CLIME_OK;
}

int64_t clime_weights_writer_read(struct clime_weights_writer *w, void *out, size_t size) {
    int64_t done = 0, n;
    const char *at;
    while (done < (int64_t)size) {
        CHECK(!next_run(w, &at, &n, NULL)); /* from host memory */
        if (n == 0) break;
        if (n > (int64_t)size - done) n = (int64_t)size - done;
        memcpy((char *)out + done, at, (size_t)n);
        w->at += n;
        done += n;
    }
    return done;
}

void clime_weights_writer_free(struct clime_weights_writer *w) {
    if (!w) return;
    free(w->header);
    free(w);
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static enum clime_err write_file(const char *path, struct clime_weights_writer *w, struct clime_error *e) {
    struct clime_atomic_file f;
    enum clime_err rc = clime_atomic_open(&f, path, e);
    if (rc) return rc;
    const char *at;
    int64_t n = 1;
    for (; rc == CLIME_OK && n > 0; w->at += n) { /* straight from the source's memory */
        rc = next_run(w, &at, &n, e);
        if (rc == CLIME_OK && n > 0) rc = clime_atomic_write(&f, at, (size_t)n, e);
    }
    return clime_atomic_close(&f, rc, e);
}

/* The end of a shard that starts at slice first: as many as fit, one at least. */
static int shard_end(const struct clime_layout *l, int first, int64_t max_bytes) {
    int64_t bytes = l->slices[first].bytes;
    int i = first + 1;
    while (i < l->n_slices && (max_bytes <= 0 || bytes + l->slices[i].bytes <= max_bytes))
        bytes += l->slices[i++].bytes;
    return i;
}

static int count_shards(const struct clime_layout *l, int64_t max_bytes) {
    int n = 0;
    for (int i = 0; i < l->n_slices; n++) i = shard_end(l, i, max_bytes);
    return n;
}

static enum clime_err write_shards(const char *dir, const struct clime_layout *l,
                                   const struct clime_weights_source *from, const struct clime_carried *carried,
                                   int64_t max_bytes, int n, struct clime_error *e) {
    struct clime_buf text;
    struct clime_jw jw;
    int64_t total = 0;
    int n_carried = carried ? carried->n : 0;
    for (int i = 0; i < l->n_slices; i++) total += l->slices[i].bytes;
    for (int i = 0; i < n_carried; i++) total += (int64_t)(carried->tensors[i].t->end - carried->tensors[i].t->begin);
    clime_buf_init(&text, (size_t)l->n_slices * 512 + (size_t)n_carried * ENTRY_BYTES + 4096);
    clime_jw_init(&jw, &text);
    clime_jw_object(&jw);
    clime_jw_key(&jw, "metadata");
    clime_jw_object(&jw);
    clime_jw_put_int(&jw, "total_size", total);
    clime_jw_close(&jw);
    clime_jw_key(&jw, "weight_map");
    clime_jw_object(&jw);
    enum clime_err rc = CLIME_OK;
    for (int first = 0, k = 1; first < l->n_slices && rc == CLIME_OK; k++) {
        int last = shard_end(l, first, max_bytes);
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", k, n);
        for (int i = first; i < last; i++) clime_jw_put_strz(&jw, l->slices[i].name, name);
        for (int i = 0; last == l->n_slices && i < n_carried; i++)
            clime_jw_put_strz(&jw, carried->tensors[i].t->name, name);
        char *path = xasprintf("%s/%s", dir, name);
        struct clime_weights_writer *w = new_range(l, from, first, last, carried);
        rc = write_file(path, w, e);
        clime_weights_writer_free(w);
        free(path);
        first = last;
    }
    clime_jw_close(&jw);
    clime_jw_close(&jw);
    CHECK(!text.full);
    if (rc == CLIME_OK) { /* last: a folder without an index is not yet a model */
        char *path = xasprintf("%s/model.safetensors.index.json", dir);
        rc = clime_atomic_save(path, text.data, text.len, e);
        free(path);
    }
    clime_buf_free(&text);
    return rc;
}

static enum clime_err write_one(const char *dir, const struct clime_layout *l, const struct clime_weights_source *from,
                                const struct clime_carried *carried, struct clime_error *e) {
    char *path = xasprintf("%s/model.safetensors", dir);
    struct clime_weights_writer *w = new_range(l, from, 0, l->n_slices, carried);
    enum clime_err rc = write_file(path, w, e);
    clime_weights_writer_free(w);
    free(path);
    return rc;
}

enum clime_err clime_weights_export(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                    const struct clime_weights_source *from, const struct clime_carried *carried,
                                    int64_t max_shard_bytes, struct clime_error *e) {
    int n = count_shards(l, max_shard_bytes);
    enum clime_err rc =
        n > 1 ? write_shards(dir, l, from, carried, max_shard_bytes, n, e) : write_one(dir, l, from, carried, e);
    for (int i = 0; carried && i < carried->n_files && !rc; i++)
        if ((rc = clime_st_check(&carried->files[i], e)))
            clime_error_prefix(e, "a file that %s takes tensors from", dir);
    if (rc) return rc;
    /* An old export of the other kind in the same folder would be read first. */
    char *other = xasprintf("%s/%s", dir, n > 1 ? "model.safetensors" : "model.safetensors.index.json");
    unlink(other);
    free(other);
    return clime_config_save(dir, c, l->type, e);
}
