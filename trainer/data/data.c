/* Loading prompts. Called by rl and eval on the main thread, before anything is generated.
 *
 * Owns the dataset's memory. Invariant: the prompt of a group is a function of (file, options, group number) alone;
 * nothing about "how far we got" is kept here, the ledger's highest group number says it.
 *
 * Everything is rendered and tokenised up front, as slime does: a broken line is an error in the first second and not
 * in the ninth hour. Broken lines are refused and not skipped: a skipped line would shift every later group.
 */
#include "trainer/data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/rng.h"
#include "trainer/data/render.h"

#define MAX_LINE ((size_t)64 << 20)
#define MAX_PROMPT ((size_t)16 << 20)

/* ---- source ---- */

enum clime_err clime_data_source_parse(const char *source, char **path, char slice[64], struct clime_error *e) {
    size_t n = strlen(source);
    const char *at = strstr(source, "@[");
    slice[0] = 0;
    if (!at) {
        *path = xstrdup(source);
        return CLIME_OK;
    }
    size_t len = n - (size_t)(at + 2 - source);
    if (len < 2 || len > 63 || source[n - 1] != ']' || at[2 + strspn(at + 2, "-:0123456789")] != ']')
        return clime_fail(e, CLIME_ERR_INPUT, "\"%s\": the slice is written path@[first:last]", source);
    memcpy(slice, at + 2, len - 1);
    slice[len - 1] = 0;
    *path = xstrndup(source, (size_t)(at - source));
    return CLIME_OK;
}

/* One end of a Python slice: empty = fallback, negative counts from n; clamped to 0..n. */
static bool slice_end(const char *text, size_t len, int64_t n, int64_t fallback, int64_t *out) {
    if (len == 0) {
        *out = fallback;
        return true;
    }
    char word[24], *end;
    if (len >= sizeof word - 1) return false;
    memcpy(word, text, len);
    word[len] = 0;
    long long v = strtoll(word, &end, 10);
    if (*end) return false;
    if (v < 0) v += n;
    *out = v < 0 ? 0 : v > n ? n : v;
    return true;
}

enum clime_err clime_data_slice(const char *slice, int64_t n, int64_t *first, int64_t *last, struct clime_error *e) {
    *first = 0;
    *last = n;
    if (!slice[0]) return CLIME_OK;
    const char *colon = strchr(slice, ':');
    if (!colon || strchr(colon + 1, ':') || !slice_end(slice, (size_t)(colon - slice), n, 0, first) ||
        !slice_end(colon + 1, strlen(colon + 1), n, n, last))
        return clime_fail(e, CLIME_ERR_INPUT, "[%s] is no slice: [first:last] with whole numbers", slice);
    return CLIME_OK;
}

/* ---- one line ---- */

struct loader {
    const struct clime_data_options *o;
    const struct clime_tokenizer *tok;
    struct clime_tok_scratch *scratch;
    struct clime_renderer renderer; /* with --apply-chat-template */
    const char *path;
    struct clime_dataset *out;
};

/* A line's members that matter, as raw JSON; ptr NULL = absent. */
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
        if (clime_str_is(key, o->input_key)) f->input = raw;
        if (o->label_key && clime_str_is(key, o->label_key)) f->label = raw;
        if (o->metadata_key && clime_str_is(key, o->metadata_key)) f->metadata = raw;
        if (o->tool_key && clime_str_is(key, o->tool_key)) f->tools = raw;
    }
    if (!clime_json_end(&j)) return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: %s", l->path, (long long)line, je.msg);
    if (!f->input.ptr)
        return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: no \"%s\" (--input-key)", l->path, (long long)line,
                          o->input_key);
    if (o->label_key && !f->label.ptr)
        return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: no \"%s\" (--label-key)", l->path, (long long)line,
                          o->label_key);
    if (f->metadata.ptr && clime_str_is(f->metadata, "null")) f->metadata.ptr = NULL;
    if (f->tools.ptr && clime_str_is(f->tools, "null")) f->tools.ptr = NULL;
    if (f->metadata.ptr && f->metadata.ptr[0] != '{')
        return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: \"%s\" is not an object", l->path, (long long)line,
                          o->metadata_key);
    return CLIME_OK;
}

/* The text of a JSON string value; false when it is none. */
static bool string_value(struct clime_str raw, struct clime_arena *a, struct clime_str *out) {
    struct clime_json j;
    struct clime_error e = {0};
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    return clime_json_peek(&j) == CLIME_JSON_STRING && clime_json_string(&j, out) && clime_json_end(&j);
}

static bool is_empty_list(struct clime_str raw, struct clime_arena *a) {
    struct clime_json j;
    struct clime_error e = {0};
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    return clime_json_peek(&j) == CLIME_JSON_ARRAY && clime_json_array(&j) && !clime_json_item(&j);
}

/* A string is one user message. */
static void write_messages(struct clime_str input, struct clime_arena *a, struct clime_buf *out) {
    struct clime_jw w;
    struct clime_str text;
    clime_jw_init(&w, out);
    if (!string_value(input, a, &text)) {
        clime_jw_raw(&w, input);
        return;
    }
    clime_jw_array(&w);
    clime_jw_object(&w);
    clime_jw_key(&w, "role");
    clime_jw_strz(&w, "user");
    clime_jw_key(&w, "content");
    clime_jw_str(&w, text);
    clime_jw_close(&w);
    clime_jw_close(&w);
}

static enum clime_err render(const struct loader *l, const struct fields *f, struct clime_arena *a,
                             struct clime_buf *out, struct clime_error *e) {
    struct clime_str text, tools = f->tools;
    if (!l->o->apply_chat_template) {
        if (!string_value(f->input, a, &text))
            return clime_fail(e, CLIME_ERR_INPUT, "\"%s\" is no string: a list of messages needs --apply-chat-template",
                              l->o->input_key);
        clime_buf_add(out, text.ptr, text.len);
        return CLIME_OK;
    }
    if (is_empty_list(f->input, a)) return clime_fail(e, CLIME_ERR_INPUT, "\"%s\" has no message", l->o->input_key);
    struct clime_buf messages;
    clime_buf_init(&messages, MAX_LINE);
    write_messages(f->input, a, &messages);
    if (tools.ptr) string_value(f->tools, a, &tools); /* a list written as a string */
    enum clime_err rc = clime_renderer_run(&l->renderer, clime_buf_str(&messages), tools, true, out, NULL, e);
    clime_buf_free(&messages);
    return rc;
}

/* metadata with the tools beside its own members, where the line has tools (as slime keeps them). */
static char *make_metadata(const struct fields *f, struct clime_arena *a) {
    if (!f->tools.ptr) return f->metadata.ptr ? xstrndup(f->metadata.ptr, f->metadata.len) : NULL;
    struct clime_buf b;
    struct clime_jw w;
    struct clime_str tools;
    clime_buf_init(&b, MAX_LINE);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    if (f->metadata.ptr) {
        struct clime_json j;
        struct clime_error e = {0};
        struct clime_str key, raw;
        clime_json_init(&j, f->metadata.ptr, f->metadata.len, a, &e);
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            clime_json_skip(&j, &raw);
            clime_jw_key_str(&w, key);
            clime_jw_raw(&w, raw);
        }
    }
    clime_jw_key(&w, "tools");
    clime_jw_raw(&w, string_value(f->tools, a, &tools) ? tools : f->tools);
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

/* Adds the prompt of one line to the dataset. */
static enum clime_err add_prompt(void *arg, int64_t line, struct clime_str json, struct clime_error *e) {
    struct loader *l = arg;
    struct clime_dataset *d = l->out;
    struct fields f;
    struct clime_arena a;
    struct clime_buf text;
    struct clime_ids ids = {0};
    clime_arena_init(&a, MAX_LINE);
    clime_buf_init(&text, MAX_PROMPT);
    enum clime_err rc = read_fields(l, line, json, &a, &f, e);
    if (rc) goto done;
    if ((rc = render(l, &f, &a, &text, e)) ||
        (rc = clime_tokenizer_encode(l->tok, l->scratch, clime_buf_str(&text), 0, MAX_PROMPT, &ids, e))) {
        clime_error_prefix(e, "%s:%lld", l->path, (long long)line);
        goto done;
    }
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
                                               .n_ids = (int32_t)ids.len,
                                               .ids = ids.data,
                                               .text = clime_buf_take(&text),
                                               .input = xstrndup(f.input.ptr, f.input.len),
                                               .label = f.label.ptr ? xstrndup(f.label.ptr, f.label.len) : NULL,
                                               .metadata = make_metadata(&f, &a)};
    ids = (struct clime_ids){0};
done:
    clime_ids_free(&ids);
    clime_buf_free(&text);
    clime_arena_free(&a);
    return rc;
}

/* ---- the file ---- */

static enum clime_err count_lines(FILE *f, const char *path, int64_t *n, struct clime_error *e) {
    char *line = NULL;
    size_t size = 0;
    ssize_t len;
    *n = 0;
    while ((len = getline(&line, &size, f)) >= 0)
        if (len > 0 && line[strspn(line, " \t\r\n")]) ++*n;
    free(line);
    if (ferror(f)) return clime_fail(e, CLIME_ERR_IO, "cannot read %s", path);
    rewind(f);
    return CLIME_OK;
}

static enum clime_err read_file(FILE *f, const char *path, const char *slice, clime_data_line_fn *fn, void *arg,
                                struct clime_error *e) {
    int64_t n_lines, first, last, row = 0, number = 0;
    enum clime_err rc = count_lines(f, path, &n_lines, e);
    if (!rc) rc = clime_data_slice(slice, n_lines, &first, &last, e);
    if (rc) return rc;
    char *line = NULL;
    size_t size = 0;
    ssize_t len;
    while (!rc && row < last && (len = getline(&line, &size, f)) >= 0) {
        number++;
        if (!line[strspn(line, " \t\r\n")] || row++ < first) continue;
        if ((size_t)len > MAX_LINE)
            rc = clime_fail(e, CLIME_ERR_LIMIT, "%s:%lld: the line is over %zu MiB", path, (long long)number,
                            MAX_LINE >> 20);
        else
            rc = fn(arg, number, (struct clime_str){line, (size_t)len}, e);
    }
    free(line);
    return rc;
}

enum clime_err clime_data_lines(const char *source, clime_data_line_fn *fn, void *arg, struct clime_error *e) {
    char *path = NULL, slice[64];
    FILE *f = NULL;
    enum clime_err rc = clime_data_source_parse(source, &path, slice, e);
    if (rc) return rc;
    size_t n = strlen(path);
    if (n > 8 && !strcmp(path + n - 8, ".parquet"))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: Parquet is not read; convert it to JSON lines", path);
    else if (!(f = fopen(path, "r")))
        rc = clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot open the prompt data %s", path);
    else
        rc = read_file(f, path, slice, fn, arg, e);
    if (f) fclose(f);
    free(path);
    return rc;
}

enum clime_err clime_dataset_load(const struct clime_data_options *o, const struct clime_tokenizer *t,
                                  struct clime_dataset *out, struct clime_error *e) {
    struct clime_dataset d = {.shuffle = o->shuffle, .seed = o->seed, .epoch_of_order = -1};
    struct loader l = {.o = o, .tok = t, .out = &d};
    char *path = NULL, slice[64];
    *out = (struct clime_dataset){0};
    enum clime_err rc = clime_data_source_parse(o->prompt_data, &path, slice, e);
    if (rc) return rc;
    l.path = path;
    if (o->apply_chat_template && (rc = clime_renderer_open(t, o->apply_chat_template_kwargs, &l.renderer, e)))
        goto done;
    l.scratch = clime_tok_scratch_new(t);
    if ((rc = clime_data_lines(o->prompt_data, add_prompt, &l, e))) goto done;
    if (d.n == 0)
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s holds no prompt%s", o->prompt_data,
                        d.n_too_long ? " that is short enough" : "");
    d.order = xcalloc((size_t)(d.n ? d.n : 1), sizeof *d.order);
done:
    clime_renderer_close(&l.renderer);
    clime_tok_scratch_free(l.scratch);
    free(path);
    if (rc)
        clime_dataset_free(&d);
    else
        *out = d;
    return rc;
}

void clime_dataset_free(struct clime_dataset *d) {
    for (int i = 0; i < d->n; i++) prompt_free(&d->prompts[i]);
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
    return clime_checksum_done(&c);
}

/* Fisher-Yates over the file's order; the generator is keyed by (seed, epoch). */
static void make_order(struct clime_dataset *d, int64_t epoch) {
    struct clime_rng rng;
    uint64_t words[2] = {d->seed, (uint64_t)epoch};
    for (int i = 0; i < d->n; i++) d->order[i] = i;
    if (d->shuffle) {
        clime_rng_init(&rng, clime_hash64(words, 2));
        for (int i = d->n - 1; i > 0; i--) {
            int k = (int)clime_rng_below(&rng, (uint64_t)i + 1);
            int32_t swap = d->order[i];
            d->order[i] = d->order[k];
            d->order[k] = swap;
        }
    }
    d->epoch_of_order = epoch;
}

const struct clime_prompt *clime_dataset_at(struct clime_dataset *d, int64_t group, int64_t *epoch) {
    CHECK(d->n > 0 && group >= 0);
    int64_t ep = group / d->n;
    if (ep != d->epoch_of_order) make_order(d, ep);
    if (epoch) *epoch = ep;
    return &d->prompts[d->order[group % d->n]];
}
