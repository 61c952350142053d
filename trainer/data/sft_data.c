/* Loader of sft samples. Main thread, before training; owns the samples.
 *
 * A row's prompt is rendered and tokenised as in rl (trainer/data/data.h); its response is tokenised separately, with
 * its special tokens, and the template's text after an answer follows, so the ids at the border match sampling. A
 * conversation's samples and masks are made by trainer/data/conversation.h; token ids are used unchanged. */
#include "trainer/data/sft_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "model/config/config.h"
#include "trainer/data/conversation.h"

#define MAX_RESPONSE_BYTES ((size_t)1 << 24)

/* Takes ownership of the sample; drops it when too long. */
static void set_add(struct clime_sft_set *set, struct clime_sample *s, int source, int max_len, int *size) {
    int len = s->n_prompt + s->n_response;
    if (len > max_len) {
        clime_sample_free(s);
        set->n_too_long++;
        return;
    }
    if (set->n == *size) {
        *size = *size ? 2 * *size : 256;
        set->samples = xrealloc(set->samples, (size_t)*size * sizeof(struct clime_sample *));
    }
    if (len > set->longest) set->longest = len;
    s->group = set->n;
    set->samples[set->n++] = s;
    set->parts[source].n++;
}

/* ---- prompt and response ---- */

/* Builds one sample from a row of the source; NULL with *e set when the response is not text. end: the end-of-turn
 * tokens. */
static struct clime_sample *make_sample(const struct clime_prompt *p, const char *source,
                                        const struct clime_tokenizer *tok, struct clime_tok_scratch *scratch,
                                        const struct clime_ids *end, struct clime_error *e) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str text;
    struct clime_ids ids = {0};
    struct clime_sample *s = NULL;
    clime_arena_init(&arena, MAX_RESPONSE_BYTES);
    clime_json_init(&j, p->label ? p->label : "null", p->label ? strlen(p->label) : 4, &arena, e);
    if (!clime_json_string(&j, &text)) {
        clime_error_prefix(e, "%s, line %lld: the response must be a string", source, (long long)p->line);
        goto done;
    }
    clime_ids_append(&ids, p->ids, (size_t)p->n_ids);
    if (clime_tokenizer_encode(tok, scratch, text, 0, MAX_RESPONSE_BYTES, &ids, e)) {
        clime_error_prefix(e, "%s, line %lld", source, (long long)p->line);
        goto done;
    }
    const bool ended = ids.len > (size_t)p->n_ids && clime_tokenizer_ends_turn(tok, ids.data[ids.len - 1]);
    if (!ended) clime_ids_append(&ids, end->data, end->len);

    s = clime_sample_new();
    s->n_prompt = p->n_ids;
    s->n_response = (int32_t)ids.len - p->n_ids;
    s->ids = ids.data;
    ids = (struct clime_ids){0};
    s->mask = xmalloc((size_t)s->n_response + 1);
    memset(s->mask, 1, (size_t)s->n_response);
done:
    clime_ids_free(&ids);
    clime_arena_free(&arena);
    return s;
}

static enum clime_err load_pairs(const struct clime_sft_data_options *o, const struct clime_tokenizer *tok, int max_len,
                                 struct clime_sft_set *set, struct clime_error *e) {
    struct clime_dataset data = {0};
    struct clime_data_options in_order = o->data;
    in_order.shuffle = false;
    struct clime_chat_template template = {.tok = tok};
    struct clime_ids end = {0};
    int size = 0;
    enum clime_err err = clime_dataset_load(&in_order, tok, &data, e);
    set->lost = data.lost;
    if (!err && o->data.apply_chat_template)
        err = clime_data_template(tok, o->data.apply_chat_template_kwargs, &template, e);
    struct clime_tok_scratch *scratch = clime_tok_scratch_new(tok);
    if (!err) clime_chat_turn_end(&template, scratch, &end);
    for (int i = 0; i < data.n && !err; i++) {
        struct clime_sample *s =
            make_sample(&data.prompts[i], o->data.sources[data.prompts[i].source], tok, scratch, &end, e);
        if (s)
            set_add(set, s, data.prompts[i].source, max_len, &size);
        else
            err = e->code;
    }
    clime_ids_free(&end);
    clime_tok_scratch_free(scratch);
    clime_chat_template_close(&template);
    clime_dataset_free(&data);
    return err;
}

/* ---- rows of token ids, and conversations ---- */

struct row_loader {
    const struct clime_sft_data_options *o;
    struct clime_chat_template template;
    unsigned lost; /* of the current row */
    struct clime_tok_scratch *scratch;
    struct clime_sft_set *set;
    int source, max_len, size;
    int vocabulary; /* of the model: the limit of a row's ids */
};

static void read_numbers(struct clime_json *j, int64_t most, struct clime_ids *out) {
    for (clime_json_array(j); clime_json_item(j);) {
        int64_t x = 0;
        clime_json_int(j, 0, most, &x);
        clime_ids_push(out, (int32_t)x);
    }
}

/* Reads the row's ids and the mask of trained ones; the response begins with the first trained id. */
static enum clime_err read_ids(const struct row_loader *l, struct clime_str json,
                               struct clime_conversation_samples *out, struct clime_error *e) {
    struct clime_ids ids = {0}, mask = {0};
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str key;
    struct clime_arena arena;
    enum clime_err rc = CLIME_OK;
    clime_arena_init(&arena, json.len + 4096);
    clime_json_init(&j, json.ptr, json.len, &arena, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        const bool are_ids = clime_str_is(key, l->o->ids_key);
        if (!are_ids && !clime_str_is(key, "mask")) {
            clime_json_skip(&j, NULL);
            continue;
        }
        struct clime_ids *to = are_ids ? &ids : &mask;
        if (to->len) clime_json_bad(&j, "the row has \"%s\" twice", are_ids ? l->o->ids_key : "mask");
        read_numbers(&j, are_ids ? l->vocabulary - 1 : 1, to);
    }
    int32_t first = 0;
    if (!clime_json_end(&j))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s", je.msg);
    else if (!ids.len || ids.len != mask.len)
        rc = clime_fail(e, CLIME_ERR_INPUT, "%zu ids under \"%s\" (--ids-key) and %zu numbers under \"mask\"", ids.len,
                        l->o->ids_key, mask.len);
    else if (mask.data[0])
        rc = clime_fail(e, CLIME_ERR_INPUT, "the first token cannot be trained: nothing is before it");
    if (rc) goto done;
    while (first < (int32_t)mask.len && !mask.data[first]) first++;
    if (first == (int32_t)mask.len) goto done; /* no trained token: no sample */
    struct clime_sample *s = clime_sample_new();
    s->n_prompt = first;
    s->n_response = (int32_t)ids.len - first;
    s->ids = ids.data;
    ids = (struct clime_ids){0};
    s->mask = xmalloc((size_t)s->n_response);
    for (int32_t i = 0; i < s->n_response; i++) s->mask[i] = mask.data[first + i] != 0;
    out->data = xrealloc(out->data, (size_t)(out->n + 1) * sizeof(struct clime_sample *));
    out->data[out->n++] = s;
done:
    clime_ids_free(&ids);
    clime_ids_free(&mask);
    clime_arena_free(&arena);
    return rc;
}

static enum clime_err read_messages(const struct row_loader *l, struct clime_str json,
                                    struct clime_conversation_samples *out, struct clime_error *e) {
    struct clime_str key, raw, messages = {0}, tools = {0};
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_arena arena;
    clime_arena_init(&arena, 2 * json.len + 4096);
    clime_json_init(&j, json.ptr, json.len, &arena, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        clime_json_skip(&j, &raw);
        if (clime_str_is(key, l->o->messages_key)) clime_row_take(&j, l->o->messages_key, raw, &messages);
        if (clime_str_is(key, l->o->data.tool_key) && !clime_str_is(raw, "null"))
            clime_row_take(&j, l->o->data.tool_key, raw, &tools);
    }
    enum clime_err rc = CLIME_OK;
    if (!clime_json_end(&j))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s", je.msg);
    else if (!messages.ptr)
        rc = clime_row_lacks(json, l->o->messages_key, "messages-key", e);
    else if (!tools.ptr || !(rc = clime_row_tools(&tools, l->o->data.tool_key, &arena, e)))
        rc = clime_conversation_read(&l->template, l->scratch, messages, tools, 0, out, e);
    clime_arena_free(&arena);
    return rc;
}

static enum clime_err read_row(void *arg, int64_t number, struct clime_str json, struct clime_error *e) {
    struct row_loader *l = arg;
    struct clime_conversation_samples made = {0};
    enum clime_err rc = l->o->ids_key ? read_ids(l, json, &made, e) : read_messages(l, json, &made, e);
    if (rc) clime_error_prefix(e, "%s, line %lld", l->o->data.sources[l->source], (long long)number);
    if (!rc && !made.n) l->set->n_untrained++;
    clime_lost_rows_count(&l->set->lost, &l->lost);
    for (int i = 0; i < made.n; i++) {
        if (rc)
            clime_sample_free(made.data[i]);
        else
            set_add(l->set, made.data[i], l->source, l->max_len, &l->size);
    }
    free(made.data);
    return rc;
}

static enum clime_err load_rows(const struct clime_sft_data_options *o, const char *dir,
                                const struct clime_tokenizer *tok, int max_len, struct clime_sft_set *set,
                                struct clime_error *e) {
    struct row_loader l = {.o = o, .set = set, .max_len = max_len};
    struct clime_config model;
    enum clime_err err = clime_config_load(dir, &model, e);
    if (err) return err;
    l.vocabulary = model.V;
    if (!o->ids_key) err = clime_data_template(tok, o->data.apply_chat_template_kwargs, &l.template, e);
    l.template.lost = &l.lost;
    l.scratch = clime_tok_scratch_new(tok);
    for (; l.source < o->data.n_sources && !err; l.source++)
        err = clime_source_rows(o->data.sources[l.source], read_row, &l, e);
    clime_tok_scratch_free(l.scratch);
    clime_chat_template_close(&l.template);
    return err;
}

enum clime_err clime_sft_set_open(struct clime_sft_set *set, const struct clime_data_options *o,
                                  struct clime_error *e) {
    set->n_parts = o->n_sources;
    set->parts = xcalloc((size_t)o->n_sources, sizeof *set->parts);
    for (int k = 0; k < o->n_sources; k++) {
        struct clime_source s;
        if (clime_source_parse(o->sources[k], &s, e)) return e->code;
        set->parts[k].weight = s.weight;
        clime_source_free(&s);
    }
    return CLIME_OK;
}

static enum clime_err nothing_left(const struct clime_sft_set *set, const char *source, struct clime_error *e) {
    char left_out[128] = "";
    if (set->n_too_long || set->n_untrained)
        snprintf(left_out, sizeof left_out, "; left out%s: %d longer than the limit, %d without a token to train on",
                 set->n_parts > 1 ? " of all sources" : "", set->n_too_long, set->n_untrained);
    return clime_fail(e, CLIME_ERR_INPUT, "%s leaves no sample to train on%s", source, left_out);
}

enum clime_err clime_sft_set_check(struct clime_sft_set *set, const struct clime_data_options *o,
                                   struct clime_error *e) {
    for (int k = 0; k < set->n_parts; k++)
        if (!set->parts[k].n) return nothing_left(set, o->sources[k], e);
    for (int k = 1; k < set->n_parts; k++) set->parts[k].first = set->parts[k - 1].first + set->parts[k - 1].n;
    return clime_mix_check(set->parts, set->n_parts, e);
}

enum clime_err clime_sft_set_load(const struct clime_sft_data_options *o, const char *dir, int max_len,
                                  struct clime_sft_set *set, struct clime_error *e) {
    struct clime_tokenizer *tok = NULL;
    if (o->messages_key && o->ids_key)
        return clime_fail(e, CLIME_ERR_INPUT, "--messages-key and --ids-key: a sample is made of one of the two");
    enum clime_err err = clime_sft_set_open(set, &o->data, e);
    if (!err) err = clime_data_tokenizer(dir, &tok, e);
    if (!err && (o->messages_key || o->ids_key))
        err = load_rows(o, dir, tok, max_len, set, e);
    else if (!err)
        err = load_pairs(o, tok, max_len, set, e);
    if (!err) err = clime_sft_set_check(set, &o->data, e);
    clime_tokenizer_free(tok);
    return err;
}

void clime_sft_set_free(struct clime_sft_set *set) {
    for (int i = 0; i < set->n; i++) clime_sample_free(set->samples[i]);
    free(set->parts);
    free(set->samples);
}
