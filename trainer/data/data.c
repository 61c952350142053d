/* Prompt loader. Called by rl and eval on the main thread, before any generation.
 *
 * Owns the dataset's memory. Invariant: a group's prompt is a function of (file, options, group number) alone; progress
 * is not stored here but follows from the ledger's highest group number.
 *
 * All rows are rendered and tokenised at the start, as in slime: a broken row is an error in the first second, not in
 * the ninth hour. Broken rows are refused, not skipped: skipping would shift all later groups. */
#include "trainer/data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/json/write.h"

#define MAX_PROMPT ((size_t)16 << 20)

/* ---- one line ---- */

struct loader {
    const struct clime_data_options *o;
    const struct clime_tokenizer *tok;
    struct clime_tok_scratch *scratch;
    struct clime_chat_template template; /* with --apply-chat-template */
    unsigned lost;                       /* of the current row */
    const char *path;                    /* of the current source */
    int source;
    struct clime_dataset *out;
};

/* A row's relevant members as raw JSON; ptr NULL = absent. */
struct fields {
    struct clime_str input, label, metadata, tools;
};

static enum clime_err read_fields(const struct loader *l, int64_t line, struct clime_str text, struct clime_arena *a,
                                  struct fields *f, struct clime_error *e) {
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str key;
    const struct clime_data_options *o = l->o;
    *f = (struct fields){{0}, {0}, {0}, {0}};
    clime_json_init(&j, text.ptr, text.len, a, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        struct clime_str raw = {0};
        clime_json_skip(&j, &raw);
        struct {
            const char *name;
            struct clime_str *value;
        } const wanted[] = {{o->input_key, &f->input},
                            {o->label_key, &f->label},
                            {o->metadata_key, &f->metadata},
                            {o->tool_key, &f->tools}};
        for (size_t i = 0; i < CLIME_COUNT(wanted); i++) {
            if (wanted[i].name && clime_str_is(key, wanted[i].name))
                clime_row_take(&j, wanted[i].name, raw, wanted[i].value);
        }
    }
    if (!clime_json_end(&j)) return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: %s", l->path, (long long)line, je.msg);
    if (!f->input.ptr || (o->label_key && !f->label.ptr)) {
        clime_row_lacks(text, f->input.ptr ? o->label_key : o->input_key, f->input.ptr ? "label-key" : "input-key", e);
        return clime_error_prefix(e, "%s:%lld", l->path, (long long)line);
    }
    if (f->metadata.ptr && clime_str_is(f->metadata, "null")) f->metadata = (struct clime_str){NULL, 0};
    if (f->tools.ptr && clime_str_is(f->tools, "null")) f->tools = (struct clime_str){NULL, 0};
    if (f->metadata.ptr && f->metadata.ptr[0] != '{')
        return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: \"%s\" is not an object", l->path, (long long)line,
                          o->metadata_key);
    if (f->metadata.ptr) {
        clime_json_init(&j, f->metadata.ptr, f->metadata.len, a, &je);
        clime_row_skip_once(&j);
        if (j.failed)
            return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: \"%s\": %s", l->path, (long long)line, o->metadata_key,
                              je.msg);
    }
    if (clime_str_is(f->input, "null"))
        return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: \"%s\" is null: a prompt is text or a list of messages",
                          l->path, (long long)line, o->input_key);
    return CLIME_OK;
}

/* Writes messages; a string becomes one user message. */
static void write_messages(struct clime_str input, struct clime_arena *a, struct clime_buf *out) {
    struct clime_jw w;
    struct clime_str text;
    clime_jw_init(&w, out);
    if (!clime_row_text(input, a, &text)) {
        clime_jw_raw(&w, input);
        return;
    }
    clime_jw_array(&w);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "role", "user");
    clime_jw_put_str(&w, "content", text);
    clime_jw_close(&w);
    clime_jw_close(&w);
}

static enum clime_err render(const struct loader *l, const struct fields *f, struct clime_arena *a,
                             struct clime_buf *out, struct clime_error *e) {
    struct clime_str text;
    if (!l->o->apply_chat_template) {
        if (!clime_row_text(f->input, a, &text))
            return clime_fail(e, CLIME_ERR_INPUT, "\"%s\" is no string: a list of messages needs --apply-chat-template",
                              l->o->input_key);
        clime_buf_add(out, text.ptr, text.len);
        return CLIME_OK;
    }
    if (f->input.ptr[0] != '"' && f->input.ptr[0] != '[')
        return clime_fail(e, CLIME_ERR_INPUT, "\"%s\" is neither text nor a list of messages", l->o->input_key);
    struct clime_buf messages;
    clime_buf_init(&messages, CLIME_ROW_MAX);
    write_messages(f->input, a, &messages);
    struct clime_chat_prompt p = {.messages = clime_buf_str(&messages), .tools = f->tools};
    enum clime_err rc = clime_chat_render(&l->template, &p, out, NULL, e);
    if (rc) clime_error_prefix(e, "\"%s\"", l->o->input_key);
    clime_buf_free(&messages);
    return rc;
}

/* True when the object (may be NULL) has the member. */
static bool has_member(const char *object, struct clime_str name, struct clime_arena *a) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key;
    bool has = false;
    if (!object) return false;
    clime_json_init(&j, object, strlen(object), a, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key); clime_json_skip(&j, NULL)) has |= clime_str_eq(key, name);
    return has;
}

/* Writes the members of an object that `not` lacks; no_tools: skip its tools, as the row has some. */
static void copy_members(struct clime_jw *w, struct clime_str object, const char * not, bool no_tools,
                         struct clime_arena *a) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key, raw;
    if (!object.ptr) return;
    clime_json_init(&j, object.ptr, object.len, a, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        bool replaced = no_tools && clime_str_is(key, "tools");
        if (!clime_json_skip(&j, &raw) || replaced || has_member(not, key, a)) continue;
        clime_jw_key_str(w, key);
        clime_jw_raw(w, raw);
    }
}

/* The metadata with the overrides merged in, and the row's tools as a member (as in slime). */
static char *make_metadata(const struct loader *l, const struct fields *f, struct clime_arena *a) {
    const char *over = l->o->metadata_overrides;
    if (!f->tools.ptr && !over) return f->metadata.ptr ? xstrndup(f->metadata.ptr, f->metadata.len) : NULL;
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, CLIME_ROW_MAX);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    copy_members(&w, f->metadata, over, f->tools.ptr, a);
    if (over) copy_members(&w, clime_str_of(over), NULL, f->tools.ptr, a);
    if (f->tools.ptr) clime_jw_put_raw(&w, "tools", f->tools);
    clime_jw_close(&w);
    return clime_buf_take(&b);
}

static void prompt_free(struct clime_prompt *p) {
    free(p->text);
    free(p->input);
    free(p->ids);
    free(p->label);
    free(p->metadata);
}

/* Adds one row's prompt to the dataset. */
static enum clime_err add_prompt(void *arg, int64_t line, struct clime_str json, struct clime_error *e) {
    struct loader *l = arg;
    struct clime_dataset *d = l->out;
    struct fields f;
    struct clime_arena a;
    struct clime_buf text;
    struct clime_ids ids = {0};
    clime_arena_init(&a, CLIME_ROW_MAX);
    clime_buf_init(&text, MAX_PROMPT);
    enum clime_err rc = read_fields(l, line, json, &a, &f, e);
    if (rc) goto done;
    if ((f.tools.ptr && (rc = clime_row_tools(&f.tools, l->o->tool_key, &a, e))) ||
        (rc = render(l, &f, &a, &text, e)) ||
        (rc = clime_tokenizer_encode(l->tok, l->scratch, clime_buf_str(&text), 0, MAX_PROMPT, &ids, e))) {
        clime_error_prefix(e, "%s:%lld", l->path, (long long)line);
        goto done;
    }
    clime_lost_rows_count(&d->lost, &l->lost);
    if (ids.len == 0) {
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: the prompt is empty", l->path, (long long)line);
        goto done;
    }
    if (l->o->max_prompt_len && ids.len > (size_t)l->o->max_prompt_len) {
        d->n_too_long++;
        goto done;
    }
    if (d->n == d->size) {
        if (d->n == INT32_MAX / 2) {
            rc = clime_fail(e, CLIME_ERR_LIMIT, "%s has more than 2^30 prompts", l->path);
            goto done;
        }
        d->size = d->size ? 2 * d->size : 256;
        d->prompts = xrealloc(d->prompts, (size_t)d->size * sizeof *d->prompts);
    }
    d->prompts[d->n++] = (struct clime_prompt){.line = line,
                                               .source = l->source,
                                               .n_ids = (int32_t)ids.len,
                                               .ids = ids.data,
                                               .text = clime_buf_take(&text),
                                               .input = xstrndup(f.input.ptr, f.input.len),
                                               .label = f.label.ptr ? xstrndup(f.label.ptr, f.label.len) : NULL,
                                               .metadata = make_metadata(l, &f, &a)};
    ids = (struct clime_ids){0};
done:
    clime_ids_free(&ids);
    clime_buf_free(&text);
    clime_arena_free(&a);
    return rc;
}

/* ---- the files ---- */

/* Loads the rows of source k as a part. */
static enum clime_err load_source(struct loader *l, int k, struct clime_error *e) {
    struct clime_dataset *d = l->out;
    struct clime_source s;
    enum clime_err rc = clime_source_parse(l->o->sources[k], &s, e);
    if (rc) return rc;
    l->path = s.path;
    l->source = k;
    d->parts[k] = (struct clime_mix_part){.first = d->n, .weight = s.weight};
    const int n_too_long = d->n_too_long;
    rc = clime_source_rows(l->o->sources[k], add_prompt, l, e);
    d->parts[k].n = d->n - d->parts[k].first;
    if (!rc && d->parts[k].n == 0 && d->n_too_long > n_too_long)
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s holds no prompt that is short enough: of %d tokens at most",
                        l->o->sources[k], l->o->max_prompt_len);
    else if (!rc && d->parts[k].n == 0)
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s holds no prompt", l->o->sources[k]);
    d->names[k] = clime_source_name(l->o->sources[k]);
    clime_source_free(&s);
    return rc;
}

enum clime_err clime_dataset_load(const struct clime_data_options *o, const struct clime_tokenizer *t,
                                  struct clime_dataset *out, struct clime_error *e) {
    struct clime_dataset d = {.n_parts = o->n_sources,
                              .parts = xcalloc((size_t)o->n_sources, sizeof *d.parts),
                              .names = xcalloc((size_t)o->n_sources, sizeof *d.names),
                              .shuffle = o->shuffle,
                              .seed = o->seed,
                              .epoch_of_order = -1};
    struct loader l = {.o = o, .tok = t, .out = &d};
    enum clime_err rc = CLIME_OK;
    *out = (struct clime_dataset){0};
    if (o->apply_chat_template && (rc = clime_data_template(t, o->apply_chat_template_kwargs, &l.template, e)))
        goto done;
    l.template.lost = &l.lost;
    l.scratch = clime_tok_scratch_new(t);
    for (int k = 0; k < o->n_sources && !rc; k++) rc = load_source(&l, k, e);
    if (!rc) rc = clime_mix_check(d.parts, d.n_parts, e);
    d.order = xcalloc((size_t)(d.n ? d.n : 1), sizeof *d.order);
done:
    clime_chat_template_close(&l.template);
    clime_tok_scratch_free(l.scratch);
    if (rc)
        clime_dataset_free(&d);
    else
        *out = d;
    return rc;
}

void clime_dataset_free(struct clime_dataset *d) {
    for (int i = 0; i < d->n; i++) prompt_free(&d->prompts[i]);
    for (int k = 0; k < d->n_parts; k++) free(d->names[k]);
    free(d->names);
    free(d->parts);
    free(d->prompts);
    free(d->order);
    *d = (struct clime_dataset){0};
}

uint64_t clime_dataset_checksum(const struct clime_dataset *d) {
    struct clime_checksum c;
    clime_checksum_init(&c);
    for (int i = 0; i < d->n; i++) {
        const struct clime_prompt *p = &d->prompts[i];
        const char *const texts[] = {p->text, p->input, p->label, p->metadata};
        clime_checksum_add(&c, &p->n_ids, sizeof p->n_ids);
        clime_checksum_add(&c, p->ids, (size_t)p->n_ids * sizeof *p->ids);
        for (size_t k = 0; k < CLIME_COUNT(texts); k++) {
            size_t bytes = texts[k] ? strlen(texts[k]) + 1 : 0;
            clime_checksum_add(&c, &bytes, sizeof bytes);
            clime_checksum_add(&c, texts[k], bytes);
        }
    }
    clime_mix_checksum(d->parts, d->n_parts, &c);
    return clime_checksum_done(&c);
}

const struct clime_prompt *clime_dataset_at(struct clime_dataset *d, int64_t group, int64_t *epoch) {
    CHECK(d->n > 0 && group >= 0);
    int64_t ep = group / d->n;
    if (ep != d->epoch_of_order) clime_mix_order(d->parts, d->n_parts, d->seed, ep, d->shuffle, d->order);
    d->epoch_of_order = ep;
    if (epoch) *epoch = ep;
    return &d->prompts[d->order[group % d->n]];
}
