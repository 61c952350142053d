/* Checkpoint tensors that the model does not use but exported folders keep: layers after the last, which predict
 * further tokens.
 *
 * Called by code that writes a folder, on its thread, and by code that reads one, so that tensors that could not be
 * written are refused before training; owns the mapped files in between. Invariant: bytes, types and names are written
 * exactly as read, whatever the type of the weights beside them. Those of an FP8 checkpoint are not written: exported
 * folders are not FP8.
 */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "model/weights/weights.h"
#include "model/weights/weights_map.h"

struct look {
    const struct clime_config *c;
    struct clime_carried *out;
    int room_files, room;
};

static void keep(struct look *l, const struct clime_st_tensor *t, const uint8_t *data) {
    struct clime_carried *x = l->out;
    if (x->n == l->room) {
        l->room = 2 * l->room + 16;
        x->tensors = xrealloc(x->tensors, (size_t)l->room * sizeof *x->tensors);
    }
    x->tensors[x->n++] = (struct clime_carried_tensor){t, data};
}

static enum clime_err look_into(void *arg, const char *path, struct clime_error *e) {
    struct look *l = arg;
    struct clime_carried *x = l->out;
    struct clime_st_file f;
    enum clime_err rc = clime_st_open(path, &f, e);
    if (rc) return rc;
    int before = x->n;
    for (int i = 0; i < f.header.n && !rc; i++) {
        const struct clime_st_tensor *t = &f.header.tensors[i];
        if (!clime_weights_beyond(l->c, t->name)) continue;
        if (strlen(t->name) > CLIME_CARRIED_NAME)
            rc = clime_fail(e, CLIME_ERR_LIMIT, "%s: a tensor's name has more than %d bytes", path, CLIME_CARRIED_NAME);
        else
            keep(l, t, f.data + t->begin);
    }
    if (x->n == before || rc) {
        x->n = before;
        clime_st_close(&f);
        return rc;
    }
    if (x->n_files == l->room_files) {
        l->room_files = 2 * l->room_files + 4;
        x->files = xrealloc(x->files, (size_t)l->room_files * sizeof *x->files);
    }
    x->files[x->n_files++] = f;
    return CLIME_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum clime_err refuse_twice(const struct clime_carried *x, struct clime_error *e) {
    const char **names = xcalloc((size_t)x->n + 1, sizeof *names);
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < x->n; i++) names[i] = x->tensors[i].t->name;
    qsort(names, (size_t)x->n, sizeof *names, by_name);
    for (int i = 1; i < x->n && !rc; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' is in two files", names[i]);
    free(names);
    return rc;
}

enum clime_err clime_carried_open(const char *dir, const struct clime_config *c, struct clime_carried *out,
                                  struct clime_error *e) {
    struct look l = {.c = c, .out = out};
    struct clime_error own;
    if (!e) e = &own;
    *out = (struct clime_carried){0};
    if (c->n_next == 0) return CLIME_OK;
    if (c->fp8) {
        LOG_WARN("%s: its layers that predict further tokens are FP8 and are left out of a folder in bf16", dir);
        return CLIME_OK;
    }
    enum clime_err rc = clime_weights_files(dir, look_into, &l, e);
    if (!rc && (rc = refuse_twice(out, e))) clime_error_prefix(e, "%s", dir);
    if (rc) clime_carried_close(out);
    return rc == CLIME_ERR_NOT_FOUND ? CLIME_OK : rc; /* a new model uses only a tokenizer from dir */
}

void clime_carried_close(struct clime_carried *x) {
    for (int i = 0; i < x->n_files; i++) clime_st_close(&x->files[i]);
    free(x->files);
    free(x->tensors);
    *x = (struct clime_carried){0};
}
