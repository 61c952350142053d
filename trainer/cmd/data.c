/* clime-train data: inspects files with training's own loaders, so it shows what training would do. Trains nothing, and
 * starts only what --rm-command and --rm-url name. Main thread. */
#include "trainer/cmd/data.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/log.h"
#include "common/terminal.h"
#include "trainer/cmd/data_int.h"
#include "trainer/plugin/hooks.h"

#define MAX_OUTPUT ((size_t)1 << 26) /* bytes printed */

/* ---- options ---- */

static enum clime_err check(struct clime_data_command *c, struct clime_error *e) {
    while (c->n_files < CLIME_DATA_FILES && c->files[c->n_files]) c->n_files++;
    if (!c->n_files == !c->from_run) return clime_fail(e, CLIME_ERR_INPUT, "give files to look at, or --from-run RUN");
    if (c->from_run && !c->output)
        return clime_fail(e, CLIME_ERR_INPUT, "--from-run needs --output FILE, where the answers go");
    if (!c->from_run && (c->best || c->has_min_reward))
        return clime_fail(e, CLIME_ERR_INPUT, "--best and --min-reward are for --from-run");
    c->set.data.sources = c->files;
    c->set.data.n_sources = c->n_files;
    c->reward.timeout_us = (int64_t)(c->rm_timeout * 1e6);
    c->reward.max_pending = 1024;
    return CLIME_OK;
}

static enum clime_err parse(int argc, char **argv, struct clime_data_command *c, const char **library,
                            struct clime_error *e) {
    struct clime_data_options *d = &c->set.data;
    const struct clime_opt table[] = {
        {"What is in the files", CLIME_OPT_SECTION},
        {"input-key", CLIME_OPT_STRING, &d->input_key, "input", "KEY", "the prompt: a string or a list of messages", 0,
         0, NULL, &c->has_input_key},
        {"label-key", CLIME_OPT_STRING, &d->label_key, NULL, "KEY",
         "the label that the reward compares with; with --sft the response"},
        {"metadata-key", CLIME_OPT_STRING, &d->metadata_key, "metadata", "KEY", "an object for the reward"},
        {"tool-key", CLIME_OPT_STRING, &d->tool_key, "tools", "KEY", "tools for the chat template"},
        {"sft", CLIME_OPT_BOOL, &c->sft, NULL, NULL, "look at it as clime-train sft would, not rl"},
        {"messages-key", CLIME_OPT_STRING, &c->set.messages_key, NULL, "KEY",
         "member with a whole conversation, as of clime-train sft"},
        {"ids-key", CLIME_OPT_STRING, &c->set.ids_key, NULL, "KEY",
         "member with a sample's token ids, as of clime-train sft"},
        {"print", CLIME_OPT_INT, &c->print, "3", "N", "rendered samples to show, with their tokens", 0, 1000},
        {"Model", CLIME_OPT_SECTION},
        {"hf-checkpoint", CLIME_OPT_STRING, &c->hf_checkpoint, NULL, "DIR",
         "whose tokenizer and chat template are taken; without it only the fields are shown"},
        {"apply-chat-template", CLIME_OPT_BOOL, &d->apply_chat_template, NULL, NULL, "render prompts as messages"},
        {"apply-chat-template-kwargs", CLIME_OPT_STRING, &d->apply_chat_template_kwargs, NULL, "JSON",
         "more variables for the chat template"},
        {"rollout-max-prompt-len", CLIME_OPT_INT, &c->max_prompt_len, NULL, "N", "longer prompts are left out", 1,
         1 << 24},
        {"rollout-max-response-len", CLIME_OPT_INT, &c->max_response_len, NULL, "N",
         "count the prompts that leave no room for so many tokens", 1, 0},
        {"Reward", CLIME_OPT_SECTION},
        {"rm-type", CLIME_OPT_STRING, &c->reward.type, NULL, "TYPE", "reward to try the labels with"},
        {"reward-key", CLIME_OPT_STRING, &c->reward.reward_key, NULL, "KEY", "member of a reward that is an object"},
        {"rm-command", CLIME_OPT_STRING, &c->reward.command, NULL, "COMMAND", "for rm-type command"},
        {"rm-url", CLIME_OPT_STRING, &c->reward.url, NULL, "URL", "for rm-type remote_rm"},
        {"custom-rm-path", CLIME_OPT_STRING, library, NULL, "FILE", "a shared library with a `reward`"},
        {"rm-timeout", CLIME_OPT_DOUBLE, &c->rm_timeout, "30", "SECONDS", "deadline of one reward", 0.001, 86400},
        {"Conversion", CLIME_OPT_SECTION},
        {"against", CLIME_OPT_LIST, &c->against, NULL, "FILE",
         "evaluation sets: rows whose prompt is in one are counted and left out of --output"},
        {"ngram", CLIME_OPT_INT, &c->n_gram, "13", "N",
         "words in a row that make a prompt one of the set; 0: only the same words from first to last", 0, 64},
        {"output", CLIME_OPT_STRING, &c->output, NULL, "FILE", "write the rows as JSON lines"},
        {"from-run", CLIME_OPT_STRING, &c->from_run, NULL, "RUN",
         "instead of files: the answers of a run's ledger, token by token, as rows for clime-train sft --ids-key ids"},
        {"best", CLIME_OPT_BOOL, &c->best, NULL, NULL, "of each prompt only the answer with the highest reward"},
        {"min-reward", CLIME_OPT_DOUBLE, &c->min_reward, NULL, "X", "only answers with at least this reward", 0, 0,
         NULL, &c->has_min_reward},
    };
    static const char usage[] =
        "clime-train data FILE... [--hf-checkpoint DIR] [--rm-type TYPE] [--output FILE] [options]\n"
        "Says what files would be trained on: fields, lengths, what is left out, rendered prompts, whether labels fit "
        "the\nreward. Files are JSON lines, a JSON array, CSV or TSV.\n";
    enum clime_err rc =
        clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, c->files, CLIME_DATA_FILES, usage, e);
    return rc ? rc : check(c, e);
}

/* ---- fields ---- */

static void suggest_key(const struct clime_look *l, const char *option, const char *const *names, int n,
                        struct clime_buf *out) {
    for (int i = 0; i < n; i++)
        if (clime_look_find(l, names[i])) clime_buf_printf(out, " --%s %s?", option, names[i]);
}

/* True when no option needs prompts: a first look, whose answer is their possible fields. */
static bool only_looks(const struct clime_data_command *c) {
    return !c->has_input_key && !c->hf_checkpoint && !c->reward.type && !c->reward.library && !c->output &&
           !c->against.n;
}

/* Fails when the files lack the members that options name, and suggests others. */
static enum clime_err check_fields(const struct clime_data_command *c, const struct clime_look *l,
                                   struct clime_buf *out, struct clime_error *e) {
    static const char *const inputs[] = {"prompt", "question", "problem", "instruction", "query", "messages"};
    static const char *const labels[] = {"label", "answer", "solution", "target", "response", "output", "completion"};
    const struct clime_data_options *d = &c->set.data;
    const char *input = c->set.ids_key ? c->set.ids_key : c->set.messages_key ? c->set.messages_key : d->input_key;
    struct clime_buf guess;
    enum clime_err rc = CLIME_OK;
    clime_buf_init(&guess, 4096);
    if (!clime_look_find(l, input)) {
        suggest_key(l, "input-key", inputs, (int)CLIME_COUNT(inputs), &guess);
        suggest_key(l, "label-key", labels, (int)CLIME_COUNT(labels), &guess);
        const char *may_be = guess.len ? guess.data : " give --input-key";
        if (only_looks(c))
            clime_buf_printf(out, "\nwhich are prompt and label?%s\n", may_be);
        else
            rc = clime_fail(e, CLIME_ERR_INPUT, "no row has \"%s\", the prompt:%s", input, may_be);
    } else if (d->label_key && !clime_look_find(l, d->label_key)) {
        suggest_key(l, "label-key", labels, (int)CLIME_COUNT(labels), &guess);
        rc = clime_fail(e, CLIME_ERR_INPUT, "no row has \"%s\", the label:%s", d->label_key,
                        guess.len ? guess.data : " leave --label-key away");
    }
    clime_buf_free(&guess);
    return rc;
}

/* ---- writing rows ---- */

/* A pass over rows: counts those in an evaluation set, writes the rest. */
struct pass {
    const struct clime_data_command *c;
    struct clime_overlap *known; /* NULL = no evaluation sets */
    bool learns;                 /* reads the evaluation sets themselves */
    FILE *to;                    /* NULL = no output */
    int64_t n, n_known;
};

static enum clime_err pass_row(void *arg, int64_t number, struct clime_str json, struct clime_error *e) {
    struct pass *p = arg;
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_arena a;
    struct clime_str key, raw, text = {0};
    bool in_set = false;
    clime_arena_init(&a, 2 * json.len + 4096);
    clime_json_init(&j, json.ptr, json.len, &a, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        bool wanted = clime_str_is(key, p->c->set.data.input_key);
        if (wanted && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &text);
        else if (clime_json_skip(&j, &raw) && wanted)
            text = raw; /* messages: compared as raw JSON, format words included */
    }
    enum clime_err rc = CLIME_OK;
    if (!clime_json_end(&j)) rc = clime_fail(e, CLIME_ERR_INPUT, "row %" PRId64 ": %s", number, je.msg);
    if (!rc && p->learns) clime_overlap_add(p->known, text);
    if (!rc && !p->learns && p->known) in_set = text.len && clime_overlap_has(p->known, text);
    p->n++;
    p->n_known += in_set;
    while (json.len && strchr(" \t\r\n", json.ptr[json.len - 1])) json.len--;
    for (size_t i = 0; i < json.len && p->to && !in_set && !rc; i++) /* line ends can only be white space in JSON */
        fputc(json.ptr[i] == '\n' || json.ptr[i] == '\r' ? ' ' : json.ptr[i], p->to);
    if (p->to && !in_set && !rc) fputc('\n', p->to);
    clime_arena_free(&a);
    return rc;
}

static enum clime_err convert(const struct clime_data_command *c, struct clime_error *e) {
    struct pass p = {.c = c, .learns = true};
    enum clime_err rc = CLIME_OK;
    if (c->against.n) p.known = clime_overlap_new((int)c->n_gram);
    for (int i = 0; i < c->against.n && !rc; i++) rc = clime_source_rows(c->against.items[i], pass_row, &p, e);
    p.learns = false;
    p.n = 0;
    if (!rc && c->output && !(p.to = fopen(c->output, "w")))
        rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", c->output, strerror(errno));
    for (int i = 0; i < c->n_files && !rc; i++) rc = clime_source_rows(c->files[i], pass_row, &p, e);
    if (!rc && c->against.n)
        printf("\nin the evaluation sets: %" PRId64 " of %" PRId64 " rows%s\n", p.n_known, p.n,
               c->output ? ", left out" : "");
    if (p.to && fclose(p.to) && !rc) rc = clime_fail(e, CLIME_ERR_IO, "writing %s: %s", c->output, strerror(errno));
    if (!rc && c->output) printf("\n%s: %" PRId64 " rows\n", c->output, p.n - p.n_known);
    clime_overlap_free(p.known);
    return rc;
}

static enum clime_err check_output(const struct clime_data_command *c, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (int i = 0; c->output && i < c->n_files + c->against.n && !rc; i++)
        rc = clime_source_is_kept(i < c->n_files ? c->files[i] : c->against.items[i - c->n_files], "output", c->output,
                                  e);
    return rc;
}

static enum clime_err look(const struct clime_data_command *c, struct clime_error *e) {
    static struct clime_look l;
    struct clime_buf out;
    bool fits = true;
    if (!c->hf_checkpoint && (c->reward.type || c->reward.command || c->reward.url || c->reward.library))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "the reward (--rm-type) is tried on prompts as they are loaded: give --hf-checkpoint DIR");
    clime_buf_init(&out, MAX_OUTPUT);
    enum clime_err rc = check_output(c, e);
    for (int i = 0; i < c->n_files && !rc; i++) rc = clime_look_add(&l, c->files[i], e);
    if (!rc) {
        clime_buf_printf(&out, "%" PRId64 " rows\n  %-16s %8s  %-12s %s\n", l.n, "field", "rows", "kind", "first");
        clime_look_print(&l, &out);
        rc = check_fields(c, &l, &out, e);
    }
    if (!rc && c->hf_checkpoint) rc = clime_data_prompts(c, &out, &fits, e);
    if (!rc && !c->hf_checkpoint)
        clime_buf_adds(&out, "\nlengths and rendered prompts need a tokenizer: give --hf-checkpoint DIR\n");
    fputs(clime_buf_str(&out).ptr, stdout);
    if (!rc) rc = convert(c, e);
    if (!rc && !fits) rc = clime_fail(e, CLIME_ERR_INPUT, "no label gets a reward: see above");
    clime_buf_free(&out);
    clime_look_free(&l);
    return rc;
}

int clime_data_main(int argc, char **argv) {
    static struct clime_data_command c;
    struct clime_error e = {0};
    const char *library = NULL;
    struct clime_hook *hook = NULL;
    enum clime_err rc = parse(argc, argv, &c, &library, &e);
    if (!rc && library) rc = clime_hook_open(library, CLIME_HOOK_REWARD, &hook, &e);
    c.reward.library = hook;
    if (!rc) rc = c.from_run ? clime_data_from_run(&c, &e) : look(&c, &e);
    if (!rc) rc = clime_stdout_whole(&e);
    if (rc) LOG_ERROR("data: %s", e.msg);
    clime_hook_close(hook);
    return rc ? 1 : 0;
}
