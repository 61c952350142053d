/* Named API keys with limits (see keys.h). Called by the server at start and by worker threads. Owns the keys.
 *
 * Invariant: a token bucket counts credit in microseconds of a minute, by the monotonic clock, on the caller's thread.
 */
#include "common/http/keys.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/secret.h"
#include "common/str.h"

#define MAX_FILE ((size_t)1 << 20)
#define MAX_KEYS 1024
#define MAX_NAME 64
#define MINUTE_US 60000000ll

struct clime_http_key {
    char *name, *key;
    int64_t concurrent, per_minute; /* 0 = no limit */
    pthread_mutex_t lock;           /* guards the rest */
    int64_t held, n_begun, n_refused;
    int64_t credit_us, counted_us; /* credit, and the time it was last updated */
};

struct clime_http_keys {
    struct clime_http_key items[MAX_KEYS];
    int n;
};

/* ---- the file ---- */

static struct clime_str next_word(struct clime_str *line) {
    while (line->len && (line->ptr[0] == ' ' || line->ptr[0] == '\t' || line->ptr[0] == '\r')) line->ptr++, line->len--;
    struct clime_str word = {line->ptr, 0};
    while (word.len < line->len && !strchr(" \t\r", word.ptr[word.len])) word.len++;
    line->ptr += word.len;
    line->len -= word.len;
    return word;
}

/* "concurrent=8" */
static bool read_limit(struct clime_str word, const char *name, int64_t *out) {
    size_t n = strlen(name);
    if (word.len <= n + 1 || memcmp(word.ptr, name, n) != 0 || word.ptr[n] != '=' || word.len > n + 7) return false;
    *out = 0;
    for (size_t i = n + 1; i < word.len; i++) {
        if (word.ptr[i] < '0' || word.ptr[i] > '9') return false;
        *out = *out * 10 + (word.ptr[i] - '0');
    }
    return *out > 0;
}

static bool is_name(struct clime_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.", s.ptr[i])) return false;
    return s.len > 0 && s.len <= MAX_NAME;
}

static bool is_key(struct clime_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] <= ' ' || s.ptr[i] > '~') return false;
    return s.len > 0;
}

static enum clime_err add(struct clime_http_keys *keys, struct clime_str line, struct clime_error *e) {
    struct clime_str name = next_word(&line), key = next_word(&line), word;
    struct clime_http_key new = {0};
    if (name.len == 0 || name.ptr[0] == '#') return CLIME_OK;
    if (keys->n == MAX_KEYS) return clime_fail(e, CLIME_ERR_LIMIT, "more than %d keys", MAX_KEYS);
    if (!is_name(name) || !is_key(key))
        return clime_fail(e, CLIME_ERR_INPUT, "not NAME KEY [concurrent=N] [per-minute=N]");
    while ((word = next_word(&line)).len && word.ptr[0] != '#')
        if (!read_limit(word, "concurrent", &new.concurrent) && !read_limit(word, "per-minute", &new.per_minute))
            return clime_fail(e, CLIME_ERR_INPUT, "'%.*s' is neither concurrent=N nor per-minute=N",
                              (int)(word.len < 60 ? word.len : 60), word.ptr);
    for (int i = 0; i < keys->n; i++)
        if (clime_str_is(name, keys->items[i].name) || clime_str_is(key, keys->items[i].key))
            return clime_fail(e, CLIME_ERR_INPUT, "the name or the key of %.*s is there already", (int)name.len,
                              name.ptr);
    new.name = xstrndup(name.ptr, name.len);
    new.key = xstrndup(key.ptr, key.len);
    new.credit_us = MINUTE_US;
    pthread_mutex_init(&new.lock, NULL);
    keys->items[keys->n++] = new;
    return CLIME_OK;
}

enum clime_err clime_http_keys_read(const char *path, struct clime_http_keys **out, struct clime_error *e) {
    struct clime_http_keys *keys = xcalloc(1, sizeof *keys);
    struct clime_buf text;
    clime_buf_init(&text, MAX_FILE);
    enum clime_err rc = clime_buf_read_file(&text, path, e);
    struct clime_str rest = clime_buf_str(&text), line;
    for (int n = 1; !rc && clime_str_line(&rest, &line); n++)
        if ((rc = add(keys, line, e))) clime_error_prefix(e, "%s:%d", path, n);
    if (!rc && keys->n == 0) rc = clime_fail(e, CLIME_ERR_INPUT, "%s has no key", path);
    clime_buf_free(&text);
    if (rc)
        clime_http_keys_free(keys);
    else
        *out = keys;
    return rc;
}

void clime_http_keys_free(struct clime_http_keys *keys) {
    if (!keys) return;
    for (int i = 0; i < keys->n; i++) {
        free(keys->items[i].name);
        free(keys->items[i].key);
        pthread_mutex_destroy(&keys->items[i].lock);
    }
    free(keys);
}

/* ---- a request ---- */

struct clime_http_key *clime_http_keys_find(const struct clime_http_keys *keys, const char *given) {
    const struct clime_http_key *found = NULL;
    for (int i = 0; i < keys->n; i++)
        if (clime_secret_equal(given, keys->items[i].key)) found = &keys->items[i];
    return (struct clime_http_key *)found;
}

/* A request costs its share of a minute. */
static bool has_credit(struct clime_http_key *k, int64_t now_us) {
    if (!k->per_minute) return true;
    k->credit_us += k->counted_us ? now_us - k->counted_us : 0;
    k->counted_us = now_us;
    if (k->credit_us > MINUTE_US) k->credit_us = MINUTE_US;
    if (k->credit_us < MINUTE_US / k->per_minute) return false;
    k->credit_us -= MINUTE_US / k->per_minute;
    return true;
}

bool clime_http_key_take(struct clime_http_key *k, int64_t now_us, struct clime_error *why, int *retry_after_s) {
    bool taken = false;
    *retry_after_s = 1;
    pthread_mutex_lock(&k->lock);
    if (k->concurrent && k->held >= k->concurrent) {
        clime_fail(why, CLIME_ERR_BUSY,
                   "%" PRId64 " requests of the key %s are in work, as many as it may have at a time", k->concurrent,
                   k->name);
    } else if (!has_credit(k, now_us)) {
        *retry_after_s += (int)((MINUTE_US / k->per_minute - k->credit_us) / 1000000);
        clime_fail(why, CLIME_ERR_BUSY, "the key %s may begin %" PRId64 " requests a minute", k->name, k->per_minute);
    } else {
        taken = true;
    }
    k->held += taken;
    k->n_begun += taken;
    k->n_refused += !taken;
    pthread_mutex_unlock(&k->lock);
    return taken;
}

void clime_http_key_give(struct clime_http_key *k) {
    pthread_mutex_lock(&k->lock);
    k->held--;
    pthread_mutex_unlock(&k->lock);
}

void clime_http_keys_metrics(const struct clime_http_keys *keys, struct clime_buf *out) {
    static const struct {
        const char *name, *kind, *help;
    } all[] = {
        {"clime_http_key_held", "gauge", "requests of a key in work"},
        {"clime_http_key_begun_total", "counter", "requests that a key has begun"},
        {"clime_http_key_refused_total", "counter", "requests past a key's own limits"},
    };
    for (size_t m = 0; m < CLIME_COUNT(all); m++) {
        clime_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", all[m].name, all[m].help, all[m].name, all[m].kind);
        for (int i = 0; i < keys->n; i++) {
            struct clime_http_key *k = (struct clime_http_key *)&keys->items[i];
            pthread_mutex_lock(&k->lock);
            const int64_t values[] = {k->held, k->n_begun, k->n_refused};
            pthread_mutex_unlock(&k->lock);
            clime_buf_printf(out, "%s{key=\"%s\"} %" PRId64 "\n", all[m].name, k->name, values[m]);
        }
    }
}
