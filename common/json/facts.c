/* Facts and their comparison (see facts.h). Called on meeting another process or reading a record; pure. */
#include "common/json/facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/json/scan.h"

static struct clime_fact *find(const struct clime_facts *f, const char *key) {
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->items[i].key, key)) return &f->items[i];
    return NULL;
}

static void put(struct clime_facts *f, const char *key, char *value) {
    struct clime_fact *x = find(f, key);
    if (!x) {
        f->items = xrealloc(f->items, (size_t)(f->n + 1) * sizeof *f->items);
        x = &f->items[f->n++];
        *x = (struct clime_fact){.key = xstrdup(key)};
    }
    free(x->value);
    x->value = value;
}

void clime_facts_put(struct clime_facts *f, const char *key, const char *value) {
    put(f, key, xstrdup(value));
}

void clime_facts_put_int(struct clime_facts *f, const char *key, int64_t value) {
    put(f, key, xasprintf("%" PRId64, value));
}

void clime_facts_put_checksum(struct clime_facts *f, const char *key, uint64_t sum) {
    put(f, key, xasprintf("%016" PRIx64, sum));
}

void clime_facts_add(struct clime_facts *f, const char *prefix, const struct clime_facts *from) {
    for (int i = 0; i < from->n; i++) {
        char *key = xasprintf("%s%s", prefix, from->items[i].key);
        clime_facts_put(f, key, from->items[i].value);
        free(key);
    }
}

void clime_facts_drop(struct clime_facts *f, const char *key) {
    struct clime_fact *x = find(f, key);
    if (!x) return;
    free(x->key);
    free(x->value);
    memmove(x, x + 1, (size_t)(&f->items[f->n] - (x + 1)) * sizeof *x);
    f->n--;
}

void clime_facts_free(struct clime_facts *f) {
    for (int i = 0; i < f->n; i++) {
        free(f->items[i].key);
        free(f->items[i].value);
    }
    free(f->items);
    *f = (struct clime_facts){0};
}

const char *clime_facts_get(const struct clime_facts *f, const char *key) {
    const struct clime_fact *x = find(f, key);
    return x ? x->value : NULL;
}

uint64_t clime_facts_checksum(const struct clime_facts *f) {
    struct clime_checksum sum;
    clime_checksum_init(&sum);
    for (int i = 0; i < f->n; i++) {
        clime_checksum_add(&sum, f->items[i].key, strlen(f->items[i].key) + 1);
        clime_checksum_add(&sum, f->items[i].value, strlen(f->items[i].value) + 1);
    }
    return clime_checksum_done(&sum);
}

void clime_facts_write(const struct clime_facts *f, struct clime_jw *w) {
    clime_jw_object(w);
    for (int i = 0; i < f->n; i++) clime_jw_put_strz(w, f->items[i].key, f->items[i].value);
    clime_jw_close(w);
}

enum clime_err clime_facts_read(struct clime_str json, struct clime_facts *out, struct clime_error *e) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_str key, v;
    clime_arena_init(&a, 2 * CLIME_FACTS_BYTES);
    clime_json_init(&j, json.ptr, json.len, &a, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        const bool is_text = clime_json_peek(&j) == CLIME_JSON_STRING;
        if (!(is_text ? clime_json_string(&j, &v) : clime_json_skip(&j, &v))) break;
        char *name = xstrndup(key.ptr, key.len);
        put(out, name, xstrndup(v.ptr, v.len));
        free(name);
    }
    const bool ok = clime_json_end(&j);
    clime_arena_free(&a);
    if (!ok) clime_facts_free(out);
    return ok ? CLIME_OK : CLIME_ERR_INPUT;
}

/* ---- comparison ---- */

bool clime_facts_allowed(const char *key, const char *const *allowed, int n) {
    for (int i = 0; i < n; i++) {
        const size_t len = strlen(allowed[i]);
        if (!strncmp(key, allowed[i], len) && (!key[len] || key[len] == '.')) return true;
    }
    return false;
}

bool clime_facts_differ(const struct clime_facts *a, const struct clime_facts *b, const char *const *allowed, int n,
                        struct clime_facts_difference *out) {
    static const char none[] = "nothing";
    for (int i = 0; i < a->n; i++) {
        const char *key = a->items[i].key, *other = clime_facts_get(b, key);
        if ((other && !strcmp(a->items[i].value, other)) || clime_facts_allowed(key, allowed, n)) continue;
        *out = (struct clime_facts_difference){key, a->items[i].value, other ? other : none};
        return true;
    }
    for (int i = 0; i < b->n; i++) {
        const char *key = b->items[i].key;
        if (find(a, key) || clime_facts_allowed(key, allowed, n)) continue;
        *out = (struct clime_facts_difference){key, none, b->items[i].value};
        return true;
    }
    return false;
}

enum clime_err clime_facts_compare(const char *a_name, const struct clime_facts *a, const char *b_name,
                                   const struct clime_facts *b, const char *const *allowed, int n,
                                   struct clime_error *e) {
    struct clime_facts_difference d;
    if (!clime_facts_differ(a, b, allowed, n, &d)) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "%.200s has %.60s %.100s, %.200s has %.100s", a_name, d.key, d.a, b_name,
                      d.b);
}
