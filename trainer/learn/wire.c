/* Serialization of messages between trainer ranks (see wire.h). */
#include "trainer/learn/wire.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/page/assets.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/plugin/hooks.h"

/* Structs are sent raw, and each pointer in them is sent separately and replaced. A new field must be checked here and
 * the size updated. Another build may have other structs of the same size, so the options start with a hash of the
 * defining sources. */
#if __SIZEOF_POINTER__ == 8
_Static_assert(sizeof(struct clime_learner_options) == 736, "put_options, clime_wire_options");
_Static_assert(sizeof(struct clime_sample) == 280, "put_sample, sample");
_Static_assert(sizeof(struct clime_estimate) == 40, "put_estimate, estimate");
#endif

#define DEFINITIONS(row)                                                                                               \
    row(sample, "trainer/sample/sample.h") row(learning, "trainer/learn/learning.h")                                   \
        row(objective, "trainer/algorithm/objective.h") row(options, "common/options/options.h")                       \
            row(place, "common/group/place.h") row(model, "model/model.h") row(backward, "model/backward.h")           \
                row(kernels, "kernels/kernels.h")
#define EMBED(name, file) CLIME_EMBED(clime_definition_##name, file);
DEFINITIONS(EMBED)

static int64_t definitions(void) {
    struct clime_checksum c;
    clime_checksum_init(&c);
#define ADD(name, file)                                                                                                \
    clime_checksum_add(&c, clime_definition_##name, (size_t)(clime_definition_##name##_end - clime_definition_##name));
    DEFINITIONS(ADD)
    return (int64_t)clime_checksum_done(&c);
}

/* ---- numbers, texts, arrays ---- */

static void take(struct clime_wire *w, void *out, size_t n) {
    if ((size_t)(w->end - w->at) < n) w->bad = true;
    if (w->bad) {
        memset(out, 0, n);
        return;
    }
    memcpy(out, w->at, n);
    w->at += n;
}

int64_t clime_wire_int(struct clime_wire *w) {
    int64_t x;
    take(w, &x, sizeof x);
    return x;
}

void clime_wire_put_int(struct clime_buf *b, int64_t x) {
    clime_buf_add(b, &x, sizeof x);
}

/* Writes n elements, or that the array is NULL. */
static void put_array(struct clime_buf *b, const void *x, size_t n, size_t size) {
    clime_wire_put_int(b, x ? (int64_t)n : -1);
    if (x) clime_buf_add(b, x, n * size);
}

/* Reads an array of *n elements; NULL stays NULL. Owned. */
static void *array(struct clime_wire *w, size_t size, size_t *n) {
    int64_t len = clime_wire_int(w);
    if (len > 0 && (uint64_t)len > (uint64_t)(w->end - w->at) / size) w->bad = true;
    *n = w->bad || len < 0 ? 0 : (size_t)len;
    if (w->bad || len < 0) return NULL;
    void *out = xcalloc(*n + 1, size); /* texts end with a zero */
    take(w, out, *n * size);
    return out;
}

/* Reads an array of n elements, or NULL. */
static void *array_of(struct clime_wire *w, size_t size, size_t n) {
    size_t got;
    void *out = array(w, size, &got);
    if (out && got != n) w->bad = true;
    return out;
}

char *clime_wire_text(struct clime_wire *w) {
    size_t n;
    return array(w, 1, &n);
}

void clime_wire_put_text(struct clime_buf *b, const char *text) {
    put_array(b, text, text ? strlen(text) : 0, 1);
}

static enum clime_err check(const struct clime_wire *w, struct clime_error *e) {
    return w->bad ? clime_fail(e, CLIME_ERR_INTERNAL, "a message of rank 0 is cut off or makes no sense") : CLIME_OK;
}

/* ---- options ---- */

static void put_list(struct clime_buf *b, const struct clime_opt_list *l) {
    clime_wire_put_int(b, l->n);
    for (int i = 0; i < l->n; i++) clime_wire_put_text(b, l->items[i]);
}

static struct clime_opt_list list(struct clime_wire *w) {
    struct clime_opt_list l = {0};
    int64_t n = clime_wire_int(w);
    if (n < 0 || n > w->end - w->at) w->bad = true;
    if (w->bad) return l;
    l.items = xcalloc((size_t)n + 1, sizeof *l.items);
    for (l.n = 0; l.n < n; l.n++) l.items[l.n] = clime_wire_text(w);
    return l;
}

void clime_wire_put_options(struct clime_buf *b, const struct clime_learner_options *o) {
    clime_wire_put_int(b, definitions());
    clime_buf_add(b, o, sizeof *o); /* its pointers are replaced by the reader */
    const char *const texts[] = {o->hf_checkpoint, o->ref_load,    o->critic_load,
                                 o->model.device,  o->model.dtype, o->model.dev.isa};
    for (size_t i = 0; i < CLIME_COUNT(texts); i++) clime_wire_put_text(b, texts[i]);
    put_list(b, &o->only_train);
    put_list(b, &o->freeze);
    clime_wire_put_text(b, o->objective.estimator ? o->objective.estimator->name : NULL);
    clime_wire_put_text(b, o->objective.custom_loss ? o->objective.custom_loss->path : NULL);
}

enum clime_err clime_wire_options(struct clime_wire *w, struct clime_learner_options *o, struct clime_error *e) {
    if (clime_wire_int(w) != definitions() && !w->bad)
        return clime_fail(e, CLIME_ERR_INPUT, "rank 0 is another version of clime-train than this rank");
    take(w, o, sizeof *o);
    const char **const texts[] = {&o->hf_checkpoint, &o->ref_load,    &o->critic_load,
                                  &o->model.device,  &o->model.dtype, &o->model.dev.isa};
    for (size_t i = 0; i < CLIME_COUNT(texts); i++) *texts[i] = clime_wire_text(w);
    o->only_train = list(w);
    o->freeze = list(w);
    char *estimator = clime_wire_text(w), *loss = clime_wire_text(w);
    struct clime_hook *hook = NULL;
    enum clime_err rc = check(w, e);
    o->objective.custom_rewards = o->objective.custom_advantages = NULL;
    o->objective.estimator = NULL;
    o->rank_logs = NULL;
    o->model.beside = NULL;
    if (!rc && estimator) o->objective.estimator = clime_estimator_find(estimator, e);
    if (!rc && estimator && !o->objective.estimator) rc = e->code;
    if (!rc && loss) rc = clime_hook_open(loss, CLIME_HOOK_LOSS, &hook, e);
    o->objective.custom_loss = hook;
    free(estimator);
    free(loss);
    return rc;
}

/* ---- a batch ---- */

static void put_sample(struct clime_buf *b, const struct clime_sample *s) {
    size_t n = (size_t)s->n_response;
    clime_buf_add(b, s, sizeof *s); /* pointers as above */
    put_array(b, s->ids, (size_t)s->n_prompt + n, sizeof *s->ids);
    put_array(b, s->logp, n, sizeof *s->logp);
    put_array(b, s->teacher_logp, n, sizeof *s->teacher_logp);
    put_array(b, s->kept_n, n, sizeof *s->kept_n);
    put_array(b, s->kept, (size_t)s->n_kept, sizeof *s->kept);
    put_array(b, s->kept_logp, n, sizeof *s->kept_logp);
    put_array(b, s->routing, n, sizeof *s->routing);
    put_array(b, s->experts, clime_sample_experts_bytes(s), 1);
    put_array(b, s->mask, n, sizeof *s->mask);
    put_array(b, s->versions, (size_t)s->n_versions, sizeof *s->versions);
    const char *const texts[] = {s->response, s->label, s->metadata, s->own_metadata, s->reward_json};
    for (size_t i = 0; i < CLIME_COUNT(texts); i++) clime_wire_put_text(b, texts[i]);
}

static uint8_t *experts(struct clime_wire *w, const struct clime_sample *s) {
    size_t n;
    uint8_t *out = array(w, 1, &n);
    const int64_t positions = (int64_t)s->n_prompt + s->n_response - 1;
    if (out && (positions < 0 || s->expert_bytes < 0 || (int64_t)n != positions * s->expert_bytes)) w->bad = true;
    return out;
}

static struct clime_sample *sample(struct clime_wire *w) {
    struct clime_sample *s = clime_sample_new();
    take(w, s, sizeof *s);
    size_t n = s->n_response < 0 ? 0 : (size_t)s->n_response, prompt = s->n_prompt < 0 ? 0 : (size_t)s->n_prompt;
    s->next = NULL;
    s->finish = s->error = s->device = NULL;
    s->ids = array_of(w, sizeof *s->ids, prompt + n);
    s->logp = array_of(w, sizeof *s->logp, n);
    s->teacher_logp = array_of(w, sizeof *s->teacher_logp, n);
    s->kept_n = array_of(w, sizeof *s->kept_n, n);
    s->kept = array_of(w, sizeof *s->kept, s->n_kept < 0 ? 0 : (size_t)s->n_kept);
    s->kept_logp = array_of(w, sizeof *s->kept_logp, n);
    if (s->n_kept != clime_sample_count_kept(s)) w->bad = true;
    s->routing = array_of(w, sizeof *s->routing, n);
    s->experts = experts(w, s);
    s->mask = array_of(w, sizeof *s->mask, n);
    s->versions = array_of(w, sizeof *s->versions, s->n_versions < 0 ? 0 : (size_t)s->n_versions);
    char **const texts[] = {&s->response, &s->label, &s->metadata, &s->own_metadata, &s->reward_json};
    for (size_t i = 0; i < CLIME_COUNT(texts); i++) *texts[i] = clime_wire_text(w);
    return s;
}

static void put_estimate(struct clime_buf *b, const struct clime_estimate *x, size_t n) {
    const float *const arrays[] = {x->adv, x->old, x->value, x->ret};
    clime_buf_add(b, &x->advantage, sizeof x->advantage);
    for (size_t i = 0; i < CLIME_COUNT(arrays); i++) put_array(b, arrays[i], n, sizeof(float));
}

static void estimate(struct clime_wire *w, struct clime_estimate *x, size_t n) {
    float **const arrays[] = {&x->adv, &x->old, &x->value, &x->ret};
    take(w, &x->advantage, sizeof x->advantage);
    for (size_t i = 0; i < CLIME_COUNT(arrays); i++) *arrays[i] = array_of(w, sizeof(float), n);
}

void clime_wire_put_batch(struct clime_buf *b, const struct clime_sample *const *samples,
                          const struct clime_estimate *est, int n, const struct clime_packing *p) {
    clime_wire_put_int(b, n);
    clime_wire_put_int(b, est != NULL);
    for (int i = 0; i < n; i++) {
        put_sample(b, samples[i]);
        if (est) put_estimate(b, &est[i], (size_t)samples[i]->n_response);
    }
    clime_wire_put_int(b, p->n_micro);
    put_array(b, p->first, (size_t)p->n_micro + 1, sizeof *p->first);
    put_array(b, p->sample, (size_t)n, sizeof *p->sample);
}

enum clime_err clime_wire_batch(struct clime_wire *w, struct clime_wire_batch *out, struct clime_error *e) {
    int64_t n = clime_wire_int(w);
    bool estimated = clime_wire_int(w) != 0;
    *out = (struct clime_wire_batch){0};
    if (n < 0 || n > (w->end - w->at) / (int64_t)sizeof **out->samples) w->bad = true;
    if (w->bad) return check(w, e);
    out->samples = xcalloc((size_t)n + 1, sizeof(struct clime_sample *));
    if (estimated) out->estimate = xcalloc((size_t)n + 1, sizeof *out->estimate);
    for (out->n = 0; out->n < n && !w->bad; out->n++) {
        out->samples[out->n] = sample(w);
        if (estimated && !w->bad) estimate(w, &out->estimate[out->n], (size_t)out->samples[out->n]->n_response);
    }
    out->packing.n_micro = (int)clime_wire_int(w);
    out->packing.first = array_of(w, sizeof *out->packing.first, (size_t)out->packing.n_micro + 1);
    out->packing.sample = array_of(w, sizeof *out->packing.sample, (size_t)n);
    return check(w, e);
}

void clime_wire_batch_free(struct clime_wire_batch *b) {
    clime_estimates_free(b->estimate, b->n);
    for (int i = 0; i < b->n; i++) clime_sample_free(b->samples[i]);
    free(b->samples);
    clime_pack_free(&b->packing);
}
