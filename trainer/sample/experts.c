/* Routed experts of samples (experts.h). Called by readers of replies, rollout and learner. Pure but for the sample.
 *
 * Invariant: a sample's experts were checked when read, and its checksum covers them; the batch is checked again
 * (model/train.c), so no file can make a kernel read beyond its experts. */
#include "trainer/sample/experts.h"

#include <stdlib.h>
#include <string.h>

#include "common/base64.h"

static int id_bytes(const struct clime_config *c) {
    return c->router.E > 256 ? 2 : 1;
}

int clime_experts_bytes(const struct clime_config *c) {
    int layers = 0;
    for (int l = 0; l < c->L; l++) layers += clime_config_has_experts(c, l);
    return layers * c->router.k * id_bytes(c);
}

/* Reads one layer's experts of one position. */
static enum clime_err read_choice(const struct clime_config *c, const int32_t *said, int position, int layer,
                                  uint8_t **out, struct clime_error *e) {
    for (int j = 0; j < c->router.k; j++) {
        if (said[j] < 0 || said[j] >= c->router.E)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "routed_experts: %d, in layer %d of position %d, is none of %d experts", said[j], layer,
                              position, c->router.E);
        if (j && said[j] <= said[j - 1])
            return clime_fail(
                e, CLIME_ERR_INPUT,
                "routed_experts: %d after %d in layer %d of position %d: a choice is distinct and ascending", said[j],
                said[j - 1], layer, position);
        *(*out)++ = (uint8_t)said[j];
        if (id_bytes(c) == 2) *(*out)++ = (uint8_t)(said[j] >> 8);
    }
    return CLIME_OK;
}

enum clime_err clime_experts_read(const struct clime_config *c, struct clime_str text, int n, uint8_t *out,
                                  struct clime_error *e) {
    const size_t each = (size_t)c->L * (size_t)c->router.k * sizeof(int32_t), want = (size_t)n * each;
    size_t got = 0;
    if (text.len != (want + 2) / 3 * 4)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "routed_experts: %zu bytes of base64 instead of %zu, for %d positions, %d layers and %d experts", text.len,
            (want + 2) / 3 * 4, n, c->L, c->router.k);
    int32_t *said = xmalloc(want + 3);
    enum clime_err rc = clime_base64_decode(text, (uint8_t *)said, &got, e);
    if (!rc && got != want) rc = clime_fail(e, CLIME_ERR_INPUT, "%zu bytes instead of %zu", got, want);
    if (rc) clime_error_prefix(e, "routed_experts");
    const int32_t *at = said;
    for (int i = 0; i < n && !rc; i++)
        for (int l = 0; l < c->L && !rc; l++, at += c->router.k)
            if (clime_config_has_experts(c, l)) rc = read_choice(c, at, i, l, &out, e);
    free(said);
    return rc;
}

void clime_experts_give(const struct clime_config *c, const struct clime_sample *s, int T, int first, int16_t *given) {
    const int len = s->n_prompt + s->n_response, n = s->experts ? len - 1 : 0, wide = id_bytes(c);
    const size_t k = (size_t)c->router.k;
    const uint8_t *layer = s->experts;
    for (int l = 0; l < c->L; l++, given += (size_t)T * k) {
        int16_t *to = given + (size_t)first * k;
        if (!clime_config_has_experts(c, l)) continue;
        for (int i = 0; i < n; i++) {
            const uint8_t *x = layer + (size_t)i * (size_t)s->expert_bytes;
            for (size_t j = 0; j < k; j++, x += wide) *to++ = (int16_t)(wide == 2 ? x[0] | x[1] << 8 : x[0]);
        }
        for (size_t j = 0; j < (size_t)(len - n) * k; j++) *to++ = -1;
        if (n) layer += k * (size_t)wide;
    }
}

void clime_experts_settle(struct clime_sample *s) {
    const bool finished = s->status == CLIME_SAMPLE_COMPLETED || s->status == CLIME_SAMPLE_TRUNCATED;
    struct clime_error e;
    if (s->status == CLIME_SAMPLE_ABORTED) return;
    if (!finished || !s->mixed_kv) {
        free(s->experts);
        s->experts = NULL;
        return;
    }
    if (s->experts) return;
    clime_fail(&e, CLIME_ERR_UNAVAILABLE, "the experts that its servers chose are not known of all positions");
    clime_sample_fail(s, &e);
}
