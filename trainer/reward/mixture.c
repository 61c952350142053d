/* Weighted sums of reward types (mixture.h). Called by reward.c for built-in types and by rewarder.c for all, any
 * thread; no state. */
#include "trainer/reward/mixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json/write.h"
#include "grade/text.h"
#include "trainer/reward/types.h"

static enum clime_err read_part(struct clime_str text, struct clime_mixture_part *out, struct clime_error *e) {
    int64_t colon = clime_rtext_rfind(text, ":");
    struct clime_str name = colon < 0 ? text : clime_rtext_strip(clime_rtext_slice(text, 0, (size_t)colon));
    struct clime_str weight = clime_rtext_slice(text, (size_t)(colon + 1), text.len);
    bool boxed;
    if (colon < 0 || !clime_rtext_float(weight, &out->weight) || !isfinite(out->weight))
        return clime_fail(e, CLIME_ERR_INPUT, "reward part \"%.*s\" has no weight: write type:weight,type:weight",
                          (int)(text.len < 80 ? text.len : 80), text.ptr);
    int64_t dot = clime_rtext_find(name, ".", 0);
    struct clime_str type = dot < 0 ? name : clime_rtext_slice(name, 0, (size_t)dot);
    struct clime_str key = dot < 0 ? clime_str_of("") : clime_rtext_slice(name, (size_t)dot + 1, name.len);
    if (name.len >= sizeof out->name || type.len >= sizeof out->type || key.len >= sizeof out->key)
        return clime_fail(e, CLIME_ERR_INPUT, "reward part \"%.80s\" has a long name", name.ptr);
    snprintf(out->name, sizeof out->name, CLIME_STR_FMT, CLIME_STR_ARG(name));
    snprintf(out->type, sizeof out->type, CLIME_STR_FMT, CLIME_STR_ARG(type));
    snprintf(out->key, sizeof out->key, CLIME_STR_FMT, CLIME_STR_ARG(key));
    return clime_reward_find(out->type, &boxed, e) ? CLIME_OK : e->code;
}

int clime_mixture_read(const char *name, struct clime_mixture_part out[CLIME_MIXTURE_PARTS], struct clime_error *e) {
    struct clime_str rest = clime_str_of(name ? name : "");
    int n = 0;
    if (!memchr(rest.ptr, ':', rest.len)) return 0;
    for (bool more = true; more; n++) {
        int64_t comma = clime_rtext_find(rest, ",", 0);
        more = comma >= 0;
        struct clime_str part = more ? clime_rtext_slice(rest, 0, (size_t)comma) : rest;
        if (n == CLIME_MIXTURE_PARTS) {
            clime_fail(e, CLIME_ERR_INPUT, "a reward has at most %d parts", CLIME_MIXTURE_PARTS);
            return -1;
        }
        if (read_part(clime_rtext_strip(part), &out[n], e)) return -1;
        for (int i = 0; i < n; i++)
            if (strcmp(out[i].name, out[n].name) == 0) {
                clime_fail(e, CLIME_ERR_INPUT, "reward part \"%s\" is there twice", out[n].name);
                return -1;
            }
        if (more) rest = clime_rtext_slice(rest, (size_t)comma + 1, rest.len);
    }
    return n;
}

enum clime_err clime_mixture_grade(const struct clime_mixture_part *parts, int n, const struct clime_reward_request *q,
                                   clime_grade_one *one, void *arg, struct clime_reward *out) {
    struct clime_buf object;
    struct clime_jw w;
    double sum = 0, value[CLIME_MIXTURE_PARTS];
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++) {
        struct clime_reward_request part = *q;
        struct clime_reward r = {0};
        part.type = parts[i].type;
        part.type_is_final = true;
        one(arg, &part, parts[i].key[0] ? parts[i].key : NULL, &r);
        out->error = r.error;
        value[i] = r.value;
        if (!r.error.code && !isfinite(r.value))
            clime_fail(&out->error, CLIME_ERR_INPUT,
                       r.object ? "it is an object: name its member, %s.member:weight" : "%s is not finite",
                       parts[i].name);
        clime_reward_free(&r);
        if (out->error.code) return clime_error_prefix(&out->error, "%s", parts[i].name);
        sum += parts[i].weight * value[i];
    }
    clime_buf_init(&object, 1 << 14);
    clime_jw_init(&w, &object);
    clime_jw_object(&w);
    clime_jw_put_double(&w, "reward", sum);
    clime_jw_key(&w, "parts");
    clime_jw_object(&w);
    for (int i = 0; i < n; i++) clime_jw_put_double(&w, parts[i].name, value[i]);
    clime_jw_close(&w);
    clime_jw_close(&w);
    out->value = sum;
    out->object = clime_buf_take(&object);
    out->is_sum = true;
    return CLIME_OK;
}
