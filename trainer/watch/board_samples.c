/* Samples for TensorBoard: writes their event file (board_samples.h). Called by the loop, main thread.
 *
 * Owns the file. Invariant: its events are of rollouts 0, 1, ... in order, once each, except rollouts without a sample
 * in the ledger. */
#include "trainer/watch/board_samples.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "trainer/ledger/summary.h"
#include "trainer/watch/tfevents.h"

#define MAX_EVENT ((size_t)4 << 20)
#define MOST_TEXT 20000 /* bytes shown of a prompt or an answer */
#define BUCKETS 30

struct clime_board_samples {
    FILE *f;
    char *path;
    int64_t next; /* the first rollout without an event */
};

/* ---- what an event holds ---- */

struct values {
    double *v;
    int n, size;
};

static void add_value(struct values *x, double v) {
    if (!isfinite(v)) return;
    if (x->n == x->size) {
        x->size = x->size ? 2 * x->size : 256;
        x->v = xrealloc(x->v, (size_t)x->size * sizeof *x->v);
    }
    x->v[x->n++] = v;
}

/* Summary.Value {tag = 1, histo = 5}, HistogramProto {min, max, num, sum, sum_squares, bucket_limit, bucket}. */
static void add_histogram(struct clime_buf *summary, const char *tag, const struct values *x) {
    struct clime_buf value, histo, limits, counts;
    double low = INFINITY, high = -INFINITY, sum = 0, squares = 0;
    int64_t n[BUCKETS] = {0};
    if (!x->n) return;
    for (int i = 0; i < x->n; i++) {
        low = fmin(low, x->v[i]);
        high = fmax(high, x->v[i]);
        sum += x->v[i];
        squares += x->v[i] * x->v[i];
    }
    double width = high > low ? (high - low) / BUCKETS : fmax(fabs(low), 1) * 1e-6;
    for (int i = 0; i < x->n; i++) {
        int k = (int)((x->v[i] - low) / width);
        n[k < BUCKETS ? k : BUCKETS - 1]++;
    }
    clime_buf_init(&value, MAX_EVENT);
    clime_buf_init(&histo, MAX_EVENT);
    clime_buf_init(&limits, MAX_EVENT);
    clime_buf_init(&counts, MAX_EVENT);
    for (int k = 0; k < BUCKETS; k++) {
        double limit = low + (k + 1) * width, count = (double)n[k];
        clime_buf_add(&limits, &limit, sizeof limit); /* packed, little-endian */
        clime_buf_add(&counts, &count, sizeof count);
    }
    clime_tfevents_double(&histo, 1, low);
    clime_tfevents_double(&histo, 2, high);
    clime_tfevents_double(&histo, 3, x->n);
    clime_tfevents_double(&histo, 4, sum);
    clime_tfevents_double(&histo, 5, squares);
    clime_tfevents_bytes(&histo, 6, limits.data, limits.len);
    clime_tfevents_bytes(&histo, 7, counts.data, counts.len);
    clime_tfevents_text(&value, 1, tag);
    clime_tfevents_bytes(&value, 5, histo.data, histo.len);
    clime_tfevents_bytes(summary, 1, value.data, value.len);
    clime_buf_free(&value);
    clime_buf_free(&histo);
    clime_buf_free(&limits);
    clime_buf_free(&counts);
}

/* Writes a Markdown code block, which is shown verbatim. */
static void put_block(struct clime_buf *out, const char *text) {
    size_t n = strlen(text), shown = n < MOST_TEXT ? n : MOST_TEXT;
    while (shown && shown < n && ((unsigned char)text[shown] & 0xc0) == 0x80) shown--; /* not inside a character */
    clime_buf_adds(out, "\n\n    ");
    for (size_t i = 0; i < shown; i++) {
        clime_buf_addc(out, text[i]);
        if (text[i] == '\n') clime_buf_adds(out, "    ");
    }
    if (shown < n) clime_buf_printf(out, "\n    ... (%zu bytes more)", n - shown);
}

/* Summary.Value {tag = 1, tensor = 8, metadata = 9} of the plugin "text": a DT_STRING tensor of one element. */
static void add_text(struct clime_buf *summary, const char *tag, const char *text) {
    struct clime_buf value, tensor, part, plugin;
    clime_buf_init(&value, MAX_EVENT);
    clime_buf_init(&tensor, MAX_EVENT);
    clime_buf_init(&part, MAX_EVENT);
    clime_buf_init(&plugin, MAX_EVENT);
    clime_tfevents_int(&tensor, 1, 7);                         /* dtype: DT_STRING */
    clime_tfevents_int(&part, 1, 1);                           /* Dim {size} */
    clime_tfevents_bytes(&plugin, 2, part.data, part.len);     /* TensorShapeProto {dim} */
    clime_tfevents_bytes(&tensor, 2, plugin.data, plugin.len); /* tensor_shape */
    clime_tfevents_text(&tensor, 8, text);                     /* string_val */
    clime_buf_clear(&part);
    clime_buf_clear(&plugin);
    clime_tfevents_text(&part, 1, "text");                 /* PluginData {plugin_name} */
    clime_tfevents_bytes(&plugin, 1, part.data, part.len); /* SummaryMetadata {plugin_data} */
    clime_tfevents_text(&value, 1, tag);
    clime_tfevents_bytes(&value, 8, tensor.data, tensor.len);
    clime_tfevents_bytes(&value, 9, plugin.data, plugin.len);
    clime_tfevents_bytes(summary, 1, value.data, value.len);
    clime_buf_free(&value);
    clime_buf_free(&tensor);
    clime_buf_free(&part);
    clime_buf_free(&plugin);
}

struct rollout {
    struct values rewards, lengths, advantages;
    int64_t best, worst; /* rows of samples; -1 = none has a reward */
    double high, low;
};

static void note_sample(void *arg, const struct clime_trained_sample *s) {
    struct rollout *r = arg;
    add_value(&r->rewards, s->reward);
    add_value(&r->lengths, (double)s->n_response);
    add_value(&r->advantages, s->advantage);
    if (!isfinite(s->reward)) return;
    if (r->best < 0 || s->reward > r->high) {
        r->best = s->id;
        r->high = s->reward;
    }
    if (r->worst < 0 || s->reward < r->low) {
        r->worst = s->id;
        r->low = s->reward;
    }
}

static enum clime_err add_sample(struct clime_buf *summary, const char *tag, struct clime_db *db, int64_t id,
                                 double reward, struct clime_error *e) {
    char *prompt = NULL, *response = NULL;
    struct clime_buf text;
    enum clime_err rc = id < 0 ? CLIME_OK : clime_summary_text(db, id, &prompt, &response, e);
    clime_buf_init(&text, MAX_EVENT);
    if (prompt && response) {
        clime_buf_printf(&text, "reward %g", reward);
        put_block(&text, prompt);
        clime_buf_adds(&text, "\n\nanswers");
        put_block(&text, response);
        add_text(summary, tag, text.data);
    }
    clime_buf_free(&text);
    free(prompt);
    free(response);
    return rc;
}

/* ---- the file ---- */

static enum clime_err add_rollout(struct clime_board_samples *b, struct clime_db *db, int64_t rollout, int64_t steps,
                                  struct clime_error *e) {
    struct rollout r = {.best = -1, .worst = -1};
    struct clime_buf summary, event, record;
    clime_buf_init(&summary, MAX_EVENT);
    clime_buf_init(&event, 2 * MAX_EVENT);
    clime_buf_init(&record, 2 * MAX_EVENT);
    enum clime_err rc = clime_summary_trained(db, rollout * steps + 1, (rollout + 1) * steps, note_sample, &r, e);
    add_histogram(&summary, "samples/reward", &r.rewards);
    add_histogram(&summary, "samples/response_len", &r.lengths);
    add_histogram(&summary, "samples/advantage", &r.advantages);
    if (!rc) rc = add_sample(&summary, "samples/best", db, r.best, r.high, e);
    if (!rc) rc = add_sample(&summary, "samples/worst", db, r.worst, r.low, e);
    if (!rc && summary.len) {
        clime_tfevents_event(&event, (double)clime_wall_us() / 1e6, rollout, &summary);
        clime_tfevents_record(&record, &event);
        if (fwrite(record.data, 1, record.len, b->f) != record.len || fflush(b->f))
            LOG_WARN("%s: an event was not written: %s", b->path, strerror(errno));
    }
    free(r.rewards.v);
    free(r.lengths.v);
    free(r.advantages.v);
    clime_buf_free(&summary);
    clime_buf_free(&event);
    clime_buf_free(&record);
    return rc;
}

enum clime_err clime_board_samples_add(struct clime_board_samples *b, struct clime_db *db, int64_t rollout,
                                       int64_t steps, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (; b && b->next <= rollout && !rc; b->next++) rc = add_rollout(b, db, b->next, steps, e);
    return rc;
}

/* The step of an event (its second field), or -1: the version has none. */
static int64_t step_of(const char *event, size_t len) {
    uint64_t v = 0;
    size_t at = CLIME_TFEVENTS_TIME;
    if (at >= len || event[at++] != 2 << 3) return -1;
    for (int shift = 0; at < len && shift < 64; shift += 7) {
        v |= (uint64_t)(event[at] & 127) << shift;
        if (!(event[at++] & 128)) return (int64_t)v;
    }
    return -1;
}

/* Reads the next complete record's event; false at the end, or where the file was cut. */
static bool read_record(FILE *f, struct clime_buf *event) {
    unsigned char head[CLIME_TFEVENTS_HEAD], tail[4];
    uint64_t len = 0;
    if (fread(head, 1, sizeof head, f) != sizeof head) return false;
    for (int i = 7; i >= 0; i--) len = len << 8 | head[i];
    clime_buf_clear(event);
    char *room = len <= 2 * MAX_EVENT ? clime_buf_reserve(event, (size_t)len) : NULL;
    if (!room || fread(room, 1, (size_t)len, f) != len || fread(tail, 1, sizeof tail, f) != sizeof tail) return false;
    clime_buf_grew(event, (size_t)len);
    uint32_t crc = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 | (uint32_t)tail[3] << 24;
    return crc == clime_tfevents_crc(event->data, event->len);
}

/* Scans the existing file and cuts a partial record, or begins a new file. */
static enum clime_err take_over(struct clime_board_samples *b, struct clime_error *e) {
    struct clime_buf event, record;
    long good = 0;
    clime_buf_init(&event, 2 * MAX_EVENT);
    clime_buf_init(&record, MAX_EVENT);
    while (read_record(b->f, &event)) {
        int64_t step = step_of(event.data, event.len);
        if (step >= b->next) b->next = step + 1;
        good = ftell(b->f);
    }
    bool bad = ftruncate(fileno(b->f), good) || fseek(b->f, good, SEEK_SET);
    if (!bad && good == 0) {
        clime_tfevents_version(&event, (double)clime_wall_us() / 1e6);
        clime_tfevents_record(&record, &event);
        bad = fwrite(record.data, 1, record.len, b->f) != record.len || fflush(b->f);
    }
    clime_buf_free(&event);
    clime_buf_free(&record);
    return bad ? clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", b->path, strerror(errno)) : CLIME_OK;
}

enum clime_err clime_board_samples_open(const char *dir, struct clime_board_samples **out, struct clime_error *e) {
    *out = NULL;
    if (!dir) return CLIME_OK;
    struct clime_board_samples *b = xcalloc(1, sizeof *b);
    char *folder = xasprintf("%s/samples", dir);
    b->path = xasprintf("%s/events.out.tfevents.clime", folder);
    enum clime_err rc = clime_make_dirs(folder, e);
    if (!rc && !(b->f = fopen(b->path, "r+e")) && !(b->f = fopen(b->path, "w+e")))
        rc = clime_fail(e, CLIME_ERR_IO, "cannot open %s: %s", b->path, strerror(errno));
    if (!rc) rc = take_over(b, e);
    free(folder);
    if (rc)
        clime_board_samples_close(b);
    else
        *out = b;
    return rc;
}

void clime_board_samples_close(struct clime_board_samples *b) {
    if (!b) return;
    if (b->f) fclose(b->f);
    free(b->path);
    free(b);
}
