/* Checks a head in a checkpoint whose configuration ties the head to the embedding.
 *
 * Called by weights_import.c when it finds one; owns the mapped files during the comparison. Invariant: such a head
 * equals the embedding, number for number. Programs differ in which one they use if they differ, so such a folder is
 * refused.
 */
#include <string.h>

#include "model/weights/convert.h"
#include "model/weights/weights_map.h"

enum { BLOCK = 4096 }; /* elements compared at a time */

struct found {
    const char *name;
    struct clime_st_file file;
    const struct clime_st_tensor *t; /* NULL: not found yet */
};

static enum clime_err look_into(void *arg, const char *path, struct clime_error *e) {
    struct found *two = arg;
    for (int k = 0; k < 2; k++) {
        struct found *f = &two[k];
        if (f->t) continue;
        enum clime_err rc = clime_st_open(path, &f->file, e);
        if (rc) return rc;
        for (int i = 0; i < f->file.header.n && !f->t; i++)
            if (strcmp(f->file.header.tensors[i].name, f->name) == 0) f->t = &f->file.header.tensors[i];
        if (!f->t) clime_st_close(&f->file);
    }
    return CLIME_OK;
}

static bool same_shape(const struct clime_st_tensor *a, const struct clime_st_tensor *b) {
    return a->n_dim == b->n_dim && memcmp(a->dim, b->dim, (size_t)a->n_dim * sizeof a->dim[0]) == 0;
}

/* Compares the numbers of a and b, whatever their types. */
static bool same_numbers(const struct found *a, const struct found *b) {
    float x[BLOCK], y[BLOCK];
    uint64_t width_a = clime_st_width(a->t->type), width_b = clime_st_width(b->t->type);
    const uint8_t *at_a = a->file.data + a->t->begin, *at_b = b->file.data + b->t->begin;
    if (a->t->type == b->t->type) return memcmp(at_a, at_b, a->t->end - a->t->begin) == 0;
    for (uint64_t n, left = (a->t->end - a->t->begin) / width_a; left > 0; left -= n) {
        n = left < BLOCK ? left : BLOCK;
        clime_convert(a->t->type, CLIME_F32, n, at_a, x);
        clime_convert(b->t->type, CLIME_F32, n, at_b, y);
        if (memcmp(x, y, n * sizeof *x) != 0) return false;
        at_a += n * width_a;
        at_b += n * width_b;
    }
    return true;
}

enum clime_err clime_tied_head_check(const char *dir, struct clime_error *e) {
    struct found two[2] = {{.name = "lm_head.weight"}, {.name = "model.embed_tokens.weight"}};
    enum clime_err rc = clime_weights_files(dir, look_into, two, e);
    const struct clime_st_tensor *head = two[0].t, *embed = two[1].t;
    if (!rc && (!head || !embed || !same_shape(head, embed) || head->type >= CLIME_ST_FP8 ||
                embed->type >= CLIME_ST_FP8 || !same_numbers(&two[0], &two[1])))
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "%s: tie_word_embeddings is true, but tensor 'lm_head.weight' is not the embedding: say false "
                        "in config.json, or leave the tensor out",
                        dir);
    for (int k = 0; k < 2; k++) {
        struct clime_error changed;
        if (!two[k].t) continue;
        if (clime_st_check(&two[k].file, &changed)) {
            *e = changed;
            rc = clime_error_prefix(e, "%s", dir);
        }
        clime_st_close(&two[k].file);
    }
    return rc;
}
