/* clime-train data, the part with a tokenizer and a chat template: samples exactly as rl or sft would build them, by
 * their own loaders. Main thread. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/config/config.h"
#include "trainer/cmd/data_int.h"
#include "trainer/cmd/data_labels.h"
#include "trainer/data/render.h"

#define MOST_LABELS 500
#define MOST_IDS 48 /* of a rendered sample that are shown */

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Prints a summary of len; sorts it. */
static void print_lengths(const char *what, int32_t *len, int n, struct clime_buf *out) {
    qsort(len, (size_t)n, sizeof *len, by_value);
    clime_buf_printf(out, "  %s: %d; tokens: min %d, median %d, 95 %% %d, max %d\n", what, n, len[0], len[n / 2],
                     len[(int)((n - 1) * 0.95)], len[n - 1]);
}

static void print_text(struct clime_str text, struct clime_buf *out) {
    for (size_t at = 0; at < text.len;) {
        size_t n = 0;
        while (at + n < text.len && text.ptr[at + n] != '\n') n++;
        clime_buf_printf(out, "    | %.*s\n", (int)n, text.ptr + at);
        at += n + 1;
    }
}

static void print_ids(const int32_t *ids, int n, const uint8_t *mask, int n_prompt, struct clime_buf *out) {
    clime_buf_printf(out, "    %d tokens%s:", n, mask ? ", trained ones in brackets" : "");
    for (int i = 0; i < n && i < MOST_IDS; i++)
        clime_buf_printf(out, mask && i >= n_prompt && mask[i - n_prompt] ? " [%d]" : " %d", ids[i]);
    clime_buf_adds(out, n > MOST_IDS ? " ...\n" : "\n");
}

/* ---- prompts of rl ---- */

static enum clime_err print_labels(const struct clime_data_command *c, const struct clime_dataset *d, bool *fits,
                                   struct clime_buf *out, struct clime_error *e) {
    double highest;
    clime_buf_printf(out, "\nlabels given as the response, to --rm-type %s\n",
                     c->reward.type ? c->reward.type : "(by metadata, command, URL or library)");
    enum clime_err rc = clime_data_labels(d, &c->reward, MOST_LABELS, out, &highest, e);
    *fits = highest > 0;
    if (!rc && !*fits)
        clime_buf_adds(out, "  NO LABEL GETS A REWARD in any of these forms: the reward does not fit the labels, and "
                            "nothing would be learned.\n");
    return rc;
}

static bool is_too_long(const struct clime_data_command *c, const struct clime_prompt *p) {
    return c->max_prompt_len && p->n_ids > c->max_prompt_len;
}

static void count_cuts(const struct clime_data_command *c, const struct clime_dataset *d, int max_pos,
                       struct clime_buf *out) {
    int too_long = 0, short_of_room = 0;
    for (int i = 0; i < d->n; i++) {
        if (is_too_long(c, &d->prompts[i]))
            too_long++;
        else if (d->prompts[i].n_ids + c->max_response_len > max_pos)
            short_of_room++;
    }
    if (c->max_prompt_len)
        clime_buf_printf(out, "  left out: %d longer than --rollout-max-prompt-len %" PRId64 "\n", too_long,
                         c->max_prompt_len);
    clime_buf_printf(out, "  the model takes %d tokens: %d prompts have no room for %" PRId64 " more%s\n", max_pos,
                     short_of_room, c->max_response_len ? c->max_response_len : 1,
                     !short_of_room        ? ""
                     : c->max_response_len ? ", their answers are cut short"
                                           : ": rl cannot use them, --rollout-max-prompt-len leaves them out");
}

static void print_lost(const struct clime_lost_rows *lost, struct clime_buf *out) {
    char *text = clime_lost_rows_text(lost);
    if (text) clime_buf_printf(out, "  rows with something that the chat template does not show: %s\n", text);
    free(text);
}

static enum clime_err look_at_prompts(const struct clime_data_command *c, const struct clime_tokenizer *tok,
                                      int max_pos, bool *fits, struct clime_buf *out, struct clime_error *e) {
    struct clime_dataset d;
    enum clime_err rc = clime_dataset_load(&c->set.data, tok, &d, e);
    if (rc) return rc;
    int32_t *len = xcalloc((size_t)d.n, sizeof *len);
    for (int i = 0; i < d.n; i++) len[i] = d.prompts[i].n_ids;
    clime_buf_printf(out, "\nwhat rl would see (%s)\n",
                     c->set.data.apply_chat_template ? "after the chat template" : "without a chat template");
    print_lengths("prompts", len, d.n, out);
    count_cuts(c, &d, max_pos, out);
    print_lost(&d.lost, out);
    for (int k = 0; k < d.n_parts && d.n_parts > 1; k++) {
        clime_buf_printf(out, "  source %s: %d prompts", d.names[k], d.parts[k].n);
        if (d.parts[k].weight > 0) clime_buf_printf(out, ", weight %g", d.parts[k].weight);
        clime_buf_adds(out, "\n");
    }
    for (int i = 0; i < d.n && i < c->print; i++) {
        const struct clime_prompt *p = &d.prompts[(int64_t)i * d.n / (c->print < d.n ? c->print : d.n)];
        clime_buf_printf(out, "\nprompt of line %" PRId64 "%s%s%s\n", p->line, p->label ? ", label " : "",
                         p->label ? p->label : "", is_too_long(c, p) ? ", left out" : "");
        print_text(clime_str_of(p->text), out);
        print_ids(p->ids, p->n_ids, NULL, 0, out);
    }
    bool graded = c->reward.type || c->reward.command || c->reward.url || c->reward.library;
    if (c->set.data.label_key && graded) rc = print_labels(c, &d, fits, out, e);
    free(len);
    clime_dataset_free(&d);
    return rc;
}

/* ---- samples of sft ---- */

static enum clime_err look_at_samples(const struct clime_data_command *c, const struct clime_tokenizer *tok,
                                      int max_pos, struct clime_buf *out, struct clime_error *e) {
    struct clime_sft_set set = {0};
    struct clime_buf text;
    int64_t trained = 0, all = 0;
    enum clime_err rc = clime_sft_set_load(&c->set, c->hf_checkpoint, max_pos, &set, e);
    clime_buf_init(&text, (size_t)1 << 26);
    if (rc) goto done;
    int32_t *len = xcalloc((size_t)set.n, sizeof *len);
    for (int i = 0; i < set.n; i++) {
        const struct clime_sample *s = set.samples[i];
        all += len[i] = s->n_prompt + s->n_response;
        for (int k = 0; k < s->n_response; k++) trained += s->mask[k] != 0;
    }
    clime_buf_adds(out, "\nwhat sft would see\n");
    print_lengths("samples", len, set.n, out);
    free(len);
    clime_buf_printf(out, "  trained: %" PRId64 " of %" PRId64 " tokens\n", trained, all);
    clime_buf_printf(out, "  left out: %d longer than the model's %d tokens, %d without a trained token\n",
                     set.n_too_long, max_pos, set.n_untrained);
    print_lost(&set.lost, out);
    for (int i = 0; i < set.n && i < c->print; i++) {
        int at = (int)((int64_t)i * set.n / (c->print < set.n ? c->print : set.n));
        const struct clime_sample *s = set.samples[at];
        clime_buf_clear(&text);
        clime_tokenizer_decode(tok, s->ids, (size_t)(s->n_prompt + s->n_response), false, &text);
        clime_buf_printf(out, "\nsample %d\n", at + 1);
        print_text(clime_buf_str(&text), out);
        print_ids(s->ids, s->n_prompt + s->n_response, s->mask, s->n_prompt, out);
    }
done:
    clime_buf_free(&text);
    clime_sft_set_free(&set);
    return rc;
}

enum clime_err clime_data_prompts(const struct clime_data_command *c, struct clime_buf *out, bool *fits,
                                  struct clime_error *e) {
    struct clime_tokenizer *tok = NULL;
    struct clime_config cfg;
    enum clime_err rc = clime_config_load(c->hf_checkpoint, &cfg, e);
    if (!rc) rc = clime_data_tokenizer(c->hf_checkpoint, &tok, e);
    if (!rc && (c->sft || c->set.messages_key || c->set.ids_key))
        rc = look_at_samples(c, tok, cfg.max_pos, out, e);
    else if (!rc)
        rc = look_at_prompts(c, tok, cfg.max_pos, fits, out, e);
    clime_tokenizer_free(tok);
    return rc;
}
