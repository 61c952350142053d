/* Parser of `clime-train rl` and eval: the table of options, and the words for servers and router.
 *
 * Called once by clime_rl_main and the eval command; pure but for --help. Rows: rl_options_samples.c,
 * rl_options_learning.c and rl_inert.c. Rules, checks and derived values: rl_rules.c, rl_check.c and rl_derive.c.
 * Effect on the weights: rl_decides.c. The table is built at run time because it fills fields of one struct. */
#include "trainer/options/alarms.h"
#include "trainer/options/rl_options_int.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ROWS (CLIME_MAX_INERT + 192)

static const char eval_usage[] =
    "clime-train eval --run DIR --hf-checkpoint DIR --eval-prompt-data NAME FILE --eval-max-response-len N [options]\n"
    "Evaluates a policy; its samples and scores go to the run folder. Takes the options of clime-train rl.\n";

static const char rl_usage[] =
    "clime-train rl --run DIR --hf-checkpoint DIR --prompt-data FILE --rollout-batch-size N ... [options]\n"
    "Trains a policy by reinforcement learning (docs/algorithms.md). The same command on the same run folder resumes.\n"
    "Options named --server-X (or --sglang-X, --vllm-X) go to the servers, --router-X to the router, that it starts.\n"
    "Other options of slime's recipes (docs/from-slime.md): --help slime.\n";

/* Builds the whole table; the first n_core rows are the honoured ones. */
static int all_rows(struct clime_rl_options *o, struct clime_opt *t, struct clime_rl_given *g, int *n_core) {
    int n = clime_rl_sample_rows(o, t, g);
    n += clime_rl_learning_rows(o, t + n, g);
    t[n++] = (struct clime_opt){.name = "Alarms", .type = CLIME_OPT_SECTION};
    n += clime_alarm_rows(&o->alarm, t + n);
    t[n++] = (struct clime_opt){.name = "Ranks", .type = CLIME_OPT_SECTION};
    n += clime_rank_rows(&o->ranks, t + n);
    t[n++] =
        (struct clime_opt){.name = "Rules between options", .type = CLIME_OPT_SECTION, .help = clime_rl_rules_text()};
    *n_core = n;
    t[n++] = (struct clime_opt){
        .name = "Options of slime's recipes: inert or refused", .type = CLIME_OPT_SECTION, .hidden = true};
    n += clime_rl_inert_rows(o, t + n);
    CHECK(n <= MAX_ROWS);
    return n;
}

/* ---- words for the servers and the router ---- */

static void list_add(struct clime_opt_list *l, const char *word) {
    l->items = xrealloc(l->items, (size_t)(l->n + 1) * sizeof *l->items);
    l->items[l->n++] = word;
}

static bool in_table(const struct clime_opt *t, int n, const char *name) {
    size_t len = strcspn(name, "=");
    for (int i = 0; i < n; i++) {
        if (t[i].type == CLIME_OPT_SECTION) continue;
        if (strlen(t[i].name) == len && !memcmp(t[i].name, name, len)) return true;
        if (t[i].alias && strlen(t[i].alias) == len && !memcmp(t[i].alias, name, len)) return true;
    }
    return false;
}

/* Moves --server-X and --router-X words out of argv; returns the new argc. */
static int split_words(const struct clime_opt *t, int n, int argc, char **argv, struct clime_rl_options *o) {
    static const struct {
        const char *prefix;
        bool router;
    } prefixes[] = {{"--server-", false}, {"--sglang-", false}, {"--vllm-", false}, {"--router-", true}};
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        struct clime_opt_list *to = NULL;
        size_t skip = 0;
        for (size_t p = 0; p < CLIME_COUNT(prefixes) && !to; p++) {
            skip = strlen(prefixes[p].prefix);
            if (!strncmp(argv[i], prefixes[p].prefix, skip) && argv[i][skip] && !in_table(t, n, argv[i] + 2))
                to = prefixes[p].router ? &o->router_args : &o->server_args;
        }
        if (!to) {
            argv[kept++] = argv[i];
            continue;
        }
        list_add(to, xasprintf("--%s", argv[i] + skip));
        while (i + 1 < argc && strncmp(argv[i + 1], "--", 2)) list_add(to, xstrdup(argv[++i]));
    }
    argv[kept] = NULL;
    return kept;
}

enum clime_err clime_rl_options_parse(int argc, char **argv, struct clime_rl_options *o, struct clime_error *e) {
    struct clime_opt *table = xcalloc(MAX_ROWS, sizeof *table);
    struct clime_rl_given g = {0};
    enum clime_err rc;
    *o = (struct clime_rl_options){.evaluate = o->evaluate, .learner.place = o->learner.place};
    int n_core, n = g.n = all_rows(o, table, &g, &n_core);
    g.table = table;
    argc = split_words(table, n, argc, argv, o);
    if ((rc = clime_options_parse(table, n, argc, argv, NULL, 0, o->evaluate ? eval_usage : rl_usage, e)) ||
        (rc = clime_rl_inert_check(o, e)) || (rc = clime_rank_derive(&o->ranks, &o->learner, e)) ||
        (rc = clime_rl_derive(o, &g, e)))
        goto done;
    o->idle = clime_rl_rules_idle(&g);
    o->options_json = clime_rl_deciding_options(o, table, n_core);
    /* after the record, so a changed --lr is named, not its dependants */
    if (!g.critic_lr) o->learner.critic_lr = o->learner.lr;
done:
    free(table);
    return rc;
}

char *clime_rl_default_options(void) {
    static struct clime_rl_options o;
    static struct clime_opt table[MAX_ROWS];
    struct clime_rl_given g;
    struct clime_error e = {0};
    char *argv[] = {NULL, NULL};
    int n_core, n = all_rows(&o, table, &g, &n_core);
    CHECK(!clime_options_parse(table, n, 1, argv, NULL, 0, rl_usage, &e));
    return clime_rl_deciding_options(&o, table, n_core);
}

static void list_free(struct clime_opt_list *l, bool words) {
    for (int i = 0; words && i < l->n; i++) free((void *)(uintptr_t)l->items[i]);
    free(l->items);
}

void clime_rl_options_free(struct clime_rl_options *o) {
    list_free(&o->server_args, true);
    list_free(&o->router_args, true);
    list_free(&o->learner.only_train, false);
    list_free(&o->learner.freeze, false);
    list_free(&o->sampling.stop, false);
    list_free(&o->sampling.stop_token_ids, false);
    list_free(&o->prompt_data, false);
    list_free(&o->eval_prompt_data, false);
    list_free(&o->alarm.limits, false);
    clime_eval_sets_free(&o->eval_sets);
    free(o->idle);
    free(o->options_json);
}
