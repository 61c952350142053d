/* Rules between options of rl, one row each: source of the parser's check, --explain's list of options without effect,
 * and docs/options/. Checks that need more than names and values are in rl_check.c. Called by the parser; pure. */
#include <stdlib.h>
#include <string.h>

#include "trainer/options/record.h"
#include "trainer/options/rl_options_int.h"

/* Words name options without dashes: "a": not at its default; "a V": has this value; "a|b": any of them. */
struct rule {
    const char *when;
    enum { NOT, NEEDS, IDLE } kind; /* refused with, refused without, no effect without */
    const char *with, *because;     /* because: NULL if IDLE suffices */
};

static const struct rule rules[] = {
    /* asynchronous */
    {"update-weights-interval", NEEDS, "async", "a synchronous rollout is sampled by the weights that it trains"},
    {"pause-generation-mode", NEEDS, "fully-async", "at other pushes nothing is in flight"},
    {"max-rollouts-ahead", NEEDS, "fully-async", "--async generates the next one, and weights are pushed between two"},
    {"async", NOT, "colocate",
     "the servers compute with the weights that the steps rewrite, so they cannot generate meanwhile"},
    {"offload-rollout", NOT, "async", "the servers generate while the steps run, so they need their KV memory"},
    {"mask-offpolicy-in-partial-rollout", NOT, "async", "every token is of older weights, so none would be left"},
    {"accept-order prompt", NOT, "partial-rollout",
     "timing decides where a sample is cut, so the seed alone does not give the run (its record does)"},
    /* half a run does not use the other half's options */
    {"replay-generate", NEEDS, "replay", "it generates what a record says"},
    {"replay-generate", NOT, "custom-generate-function-path|environment", "what it would say is not in the record"},
    {"debug-train-only", NEEDS, "load-debug-rollout-data", "it generates nothing"},
    {"load-debug-rollout-data", NOT, "debug-rollout-only|replay|async|partial-rollout|colocate",
     "it generates nothing"},
    {"load-debug-rollout-data", NOT, "eval-interval", "it starts no server"},
    {"load-debug-rollout-data", NOT, "mask-offpolicy-in-partial-rollout",
     "the tokens are of no known version, so none would be left"},
    {"load-debug-rollout-data", NOT, "use-rollout-routing-replay",
     "it takes no experts over, they are those of the other run's weights"},
    {"debug-rollout-only", NOT, "replay|async|colocate", "it trains nothing"},
    {"page-control", NOT, "page-port -1|replay|debug-rollout-only", "there is nothing that takes orders"},
    /* serving and weight transport */
    {"update-weight-transport", NOT, "colocate", "the servers compute with the trainer's own memory"},
    {"update-weight-transport", NOT, "debug-rollout-only", "the weights stay as they are"},
    {"update-weight-disk-dir", NEEDS, "update-weight-transport pull", "versions in a folder are pulled"},
    {"update-weight-host|update-delta-chain|update-weight-fanout", IDLE, "update-weight-transport pull",
     "weights are not pulled"},
    {"offload-rollout", NOT, "debug-rollout-only", "nothing is trained"},
    {"router-url", NOT, "debug-rollout-only",
     "the servers serve --hf-checkpoint as it is, and what others serve is not known"},
    {"num-servers|rollout-num-gpus-per-engine|colocate", NOT, "router-url",
     "it is of servers that the trainer starts, the router names others"},
    {"fleet-api-key", NEEDS, "router-url", "other servers need no key"},
    /* environments, evaluations, packing */
    {"custom-generate-function-path|environment", NEEDS, "rollout-max-context-len", "the longest session"},
    {"group-rm", NOT, "custom-generate-function-path|environment", "each session is rewarded by itself"},
    {"buffer-filter-path", IDLE, "partial-rollout", "no groups are left over without --partial-rollout"},
    {"eval-interval", NEEDS, "eval-prompt-data|eval-config", "it says what is evaluated"},
    {"eval-prompt-data|eval-config", IDLE, "eval-interval", "there is no --eval-interval, so nothing is evaluated"},
    {"keep-best", NEEDS, "eval-interval", "without it nothing is evaluated"},
    {"use-dynamic-batch-size", NEEDS, "max-tokens-per-gpu", "it packs samples up to that"},
    {"max-tokens-per-gpu", IDLE, "use-dynamic-batch-size", NULL},
    /* losses */
    {"kl-loss-coef", IDLE, "use-kl-loss", NULL},
    {"opd-kl-coef", IDLE, "use-opd", NULL},
    {"tis-mode|tis-level|tis-clip|tis-clip-low|custom-tis-function-path|tis-batch-normalize", IDLE, "use-tis", NULL},
    {"rs-level|rs-lower-bound|rs-upper-bound", IDLE, "use-rs", NULL},
    {"opsm-delta", IDLE, "use-opsm", NULL},
    {"mask-offpolicy-in-partial-rollout", IDLE, "partial-rollout", "groups of one rollout have one version"},
};

/* The next of "a|b"; false at the end. */
static bool next_word(const char **at, struct clime_str *word) {
    if (!**at) return false;
    *word = (struct clime_str){*at, strcspn(*at, "|")};
    *at += word->len + ((*at)[word->len] == '|');
    return true;
}

static const struct clime_opt *option_of(const struct clime_rl_given *g, struct clime_str word) {
    const char *space = word.len ? memchr(word.ptr, ' ', word.len) : NULL;
    if (space) word.len = (size_t)(space - word.ptr);
    for (const struct clime_opt *o = g->table; o < g->table + g->n; o++)
        if (o->type != CLIME_OPT_SECTION && clime_str_is(word, o->name)) return o;
    CHECK(!"a rule names an option that is not there");
    return NULL;
}

/* Compares an option with its default, or with the word's value. */
static bool is_so(const struct clime_rl_given *g, struct clime_str word) {
    const struct clime_opt *o = option_of(g, word);
    union {
        bool yes;
        int64_t n;
        double x;
        const char *s;
        int choice;
        struct clime_opt_list list;
    } v;
    struct clime_opt other = *o;
    struct clime_error e;
    size_t name = strlen(o->name);
    const bool valued = name < word.len;
    char *given = xasprintf("--" CLIME_STR_FMT, CLIME_STR_ARG(word)), *argv[] = {NULL, given, NULL};
    if (valued) given[2 + name] = '=';
    other.value = &v;
    other.given = NULL;
    CHECK(!clime_options_parse(&other, 1, 1 + valued, argv, NULL, 0, "", &e));
    char *is = clime_options_record(o, 1, NULL, NULL), *would = clime_options_record(&other, 1, NULL, NULL);
    const bool same = strcmp(is, would) == 0;
    free(is);
    free(would);
    free(given);
    return same == valued;
}

static bool any_is_so(const struct clime_rl_given *g, const char *words, struct clime_str *word) {
    while (next_word(&words, word))
        if (is_so(g, *word)) return true;
    return false;
}

/* Writes "--name" and its value. */
static void put_given(const struct clime_opt *o, struct clime_buf *out) {
    clime_buf_printf(out, "--%s", o->name);
    if (o->type == CLIME_OPT_INT) clime_buf_printf(out, " %lld", (long long)*(int64_t *)o->value);
    if (o->type == CLIME_OPT_STRING) clime_buf_printf(out, " %s", *(const char **)o->value);
    if (o->type != CLIME_OPT_CHOICE) return;
    const char *at = o->choices;
    for (int i = *(int *)o->value; i > 0; i--) at += strcspn(at, "|") + 1;
    clime_buf_printf(out, " %.*s", (int)strcspn(at, "|"), at);
}

enum clime_err clime_rl_rules_check(const struct clime_rl_given *g, struct clime_error *e) {
    for (const struct rule *r = rules; r < rules + CLIME_COUNT(rules); r++) {
        struct clime_str when, with;
        struct clime_buf given;
        if (r->kind == IDLE || !any_is_so(g, r->when, &when)) continue;
        if (any_is_so(g, r->with, &with) == (r->kind == NEEDS)) continue;
        if (r->kind == NEEDS) with = (struct clime_str){r->with, strcspn(r->with, "|")};
        clime_buf_init(&given, 1 << 16);
        put_given(option_of(g, when), &given);
        clime_fail(e, CLIME_ERR_INPUT, "%s %s --" CLIME_STR_FMT ": %s", clime_buf_str(&given).ptr,
                   r->kind == NEEDS ? "needs" : "cannot be honoured with", CLIME_STR_ARG(with), r->because);
        clime_buf_free(&given);
        return CLIME_ERR_INPUT;
    }
    return CLIME_OK;
}

char *clime_rl_rules_idle(const struct clime_rl_given *g) {
    struct clime_buf out;
    clime_buf_init(&out, 1 << 16);
    for (const struct rule *r = rules; r < rules + CLIME_COUNT(rules); r++) {
        struct clime_str when, with;
        if (r->kind != IDLE || any_is_so(g, r->with, &with)) continue;
        for (const char *at = r->when; next_word(&at, &when);)
            if (is_so(g, when))
                clime_buf_printf(&out, "  --" CLIME_STR_FMT ": %s%s%s\n", CLIME_STR_ARG(when), r->because ? "" : "--",
                                 r->because ? r->because : r->with, r->because ? "" : " is off");
    }
    return clime_buf_take(&out);
}

static void put_words(struct clime_buf *out, const char *words) {
    struct clime_str word;
    for (const char *at = words; next_word(&at, &word);)
        clime_buf_printf(out, "%s`--" CLIME_STR_FMT "`",
                         word.ptr == words ? ""
                         : *at             ? ", "
                                           : " or ",
                         CLIME_STR_ARG(word));
}

const char *clime_rl_rules_text(void) {
    static const char *const verbs[] = {" not with ", " needs ", " has no effect without "};
    static char *text;
    struct clime_buf out;
    if (text) return text;
    clime_buf_init(&out, 1 << 16);
    for (const struct rule *r = rules; r < rules + CLIME_COUNT(rules); r++) {
        clime_buf_adds(&out, "- ");
        put_words(&out, r->when);
        clime_buf_adds(&out, verbs[r->kind]);
        put_words(&out, r->with);
        clime_buf_printf(&out, "%s%s\n", r->because ? ": " : "", r->because ? r->because : "");
    }
    return text = clime_buf_take(&out);
}
