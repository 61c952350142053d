/* Compares a run's inputs with those it began with. Called at every start, main thread; owns nothing. Compares content,
 * not paths: a run and its files may be moved, and a file changed in place is detected. The initial weights are version
 * 0 in the ledger. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/hash.h"
#include "common/json/tree.h"
#include "common/log.h"
#include "trainer/learn/manifest.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/inputs.h"
#include "trainer/rollout/teacher.h"
#include "trainer/run/run.h"

/* ---- options ---- */

static bool same_value(const struct cJSON *x, const struct cJSON *y) {
    if (!x || !y || clime_tree_kind(x) != clime_tree_kind(y) || clime_tree_size(x) != clime_tree_size(y)) return false;
    if (clime_tree_kind(x) == CLIME_JSON_ARRAY) {
        const struct cJSON *b = clime_tree_first(y);
        for (const struct cJSON *a = clime_tree_first(x); a; a = clime_tree_next(a), b = clime_tree_next(b))
            if (!same_value(a, b)) return false;
        return true;
    }
    return !strcmp(clime_tree_str(x, ""), clime_tree_str(y, "")) && clime_tree_num(x, 0) == clime_tree_num(y, 0) &&
           clime_tree_bool(x, false) == clime_tree_bool(y, false);
}

/* The error, with both values. */
static enum clime_err other_option(const char *name, const char *recorded, const char *now, const char *defaults,
                                   struct clime_error *e) {
    struct clime_facts f[3] = {{0}};
    const char *const texts[] = {recorded, defaults, now};
    struct clime_error unread;
    for (int i = 0; i < 3; i++) clime_facts_read(clime_str_of(texts[i]), &f[i], &unread);
    const char *was = clime_facts_get(&f[0], name), *is = clime_facts_get(&f[2], name);
    if (!was) was = clime_facts_get(&f[1], name);
    clime_fail(e, CLIME_ERR_INPUT,
               "--%s differs from what this run was begun with (%.100s, it was %.100s); it decides what comes out, so "
               "another value needs another run folder",
               name, is ? is : "nothing", was ? was : "nothing");
    for (int i = 0; i < 3; i++) clime_facts_free(&f[i]);
    return e->code;
}

/* Names the first option whose value differs from the record. An option missing in the record is newer than the run,
 * which then uses its default. */
enum clime_err clime_rl_compare_options(const struct clime_rl *rl, const char *defaults_json, struct clime_error *e) {
    const char *recorded = rl->run.options, *now = rl->o.options_json;
    struct cJSON *a = NULL, *b = NULL, *defaults = NULL;
    if (!strcmp(recorded, now)) return CLIME_OK;
    enum clime_err rc = clime_tree_parse(recorded, strlen(recorded), &a, e);
    if (!rc) rc = clime_tree_parse(now, strlen(now), &b, e);
    if (!rc) rc = clime_tree_parse(defaults_json, strlen(defaults_json), &defaults, e);
    for (const struct cJSON *x = rc ? NULL : clime_tree_first(b); x && !rc; x = clime_tree_next(x)) {
        const struct cJSON *was = clime_tree_get(a, clime_tree_key(x));
        if (!was) was = clime_tree_get(defaults, clime_tree_key(x));
        if (was && !same_value(x, was)) /* except the hash of a library, whose path is compared */
            rc = other_option(clime_tree_key(x), recorded, now, defaults_json, e);
    }
    clime_tree_free(a);
    clime_tree_free(b);
    clime_tree_free(defaults);
    return rc;
}

/* ---- files and models ---- */

/* Records an input that may change only if the user allows its key: the record then keeps the old value and an event
 * has the new one. what: its name for the user. */
static enum clime_err put_input(struct clime_rl *rl, const char *name, const char *key, const char *value,
                                const char *what, struct clime_error *e) {
    const struct clime_opt_list *allowed = &rl->o.allow_difference;
    char *was = NULL;
    if (!clime_facts_allowed(key, allowed->items, allowed->n)) return clime_input_put(rl->ledger, name, value, what, e);
    enum clime_err rc = clime_input_get(clime_ledger_reader(rl->ledger), name, &was, e);
    if (!rc && was && strcmp(was, value))
        clime_event(rl->ledger, rl->run.incarnation, "difference",
                    "%s is %.200s, this run was begun with %.200s: --allow-difference %s", what, value, was, key);
    if (!rc && !was) rc = clime_input_put(rl->ledger, name, value, what, e);
    free(was);
    return rc;
}

static enum clime_err put_sum(struct clime_rl *rl, const char *name, uint64_t sum, const char *option, const char *path,
                              struct clime_error *e) {
    char hex[17], *what = xasprintf("%s %s", option, path);
    snprintf(hex, sizeof hex, "%016" PRIx64, sum);
    enum clime_err rc = put_input(rl, name, name, hex, what, e);
    free(what);
    return rc;
}

/* The folder of tokenizer and model config. */
static enum clime_err put_folder(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = clime_rl_make_truth(rl, e);
    for (int i = 0; i < rl->truth.n && !rc; i++) {
        const struct clime_fact *x = &rl->truth.items[i];
        char *name = xasprintf("model-folder.%s", x->key);
        char *what = xasprintf("the %s of --hf-checkpoint %s", x->key, rl->o.hf_checkpoint);
        rc = put_input(rl, name, x->key, x->value, what, e);
        free(name);
        free(what);
    }
    return rc;
}

#define MOST_SCRIPT (1 << 20) /* bytes; larger files are system programs */

static bool is_script(const char *path) {
    static const char *const ends[] = {".py", ".sh", ".pl", ".rb", ".js", ".lua"};
    const char *dot = strrchr(path, '.');
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size > MOST_SCRIPT) return false;
    bool is = st.st_mode & S_IXUSR;
    for (size_t i = 0; i < CLIME_COUNT(ends); i++) is |= dot && !strcmp(dot, ends[i]);
    return is; /* a command's other files, e.g. logs, may change while it runs */
}

/* Records a command by its text, and the scripts it names by their content. */
static enum clime_err put_command(struct clime_rl *rl, const char *option, const char *command, struct clime_error *e) {
    static const char between[] = " \t\n'\"=;&|<>()";
    char *what = xasprintf("--%s", option), *words = command ? xstrdup(command) : NULL, *rest = NULL;
    enum clime_err rc = command ? put_input(rl, option, option, command, what, e) : CLIME_OK;
    for (char *word = command ? strtok_r(words, between, &rest) : NULL; word && !rc;
         word = strtok_r(NULL, between, &rest)) {
        uint64_t sum;
        char hex[17];
        if (!is_script(word)) continue;
        char *name = xasprintf("%s %s", option, word), *file = xasprintf("--%s's file %s", option, word);
        if (!(rc = clime_file_checksum(word, &sum, e))) {
            snprintf(hex, sizeof hex, "%016" PRIx64, sum);
            rc = put_input(rl, name, option, hex, file, e);
        }
        free(name);
        free(file);
    }
    free(words);
    free(what);
    return rc;
}

/* A service may move: a changed address is only reported. It may hold a secret: its checksum is recorded. */
static enum clime_err note_address(struct clime_rl *rl, const char *option, const char *url, struct clime_error *e) {
    char hex[17], *was = NULL;
    if (!url) return CLIME_OK;
    snprintf(hex, sizeof hex, "%016" PRIx64, clime_text_checksum(clime_str_of(url)));
    enum clime_err rc = clime_input_get(clime_ledger_reader(rl->ledger), option, &was, e);
    if (!rc && was && strcmp(was, hex))
        clime_event(rl->ledger, rl->run.incarnation, "difference",
                    "--%s is another address than this run was begun with", option);
    if (!rc && !was) rc = clime_input_put(rl->ledger, option, hex, option, e);
    free(was);
    return rc;
}

static enum clime_err put_rewards(struct clime_rl *rl, struct clime_error *e) {
    if (rl->o.replay || rl->o.load_rollouts) return CLIME_OK; /* the record has them */
    enum clime_err rc = put_command(rl, "rm-command", rl->o.rm_command, e);
    if (!rc) rc = put_command(rl, "environment-command", rl->o.environment_command, e);
    if (!rc) rc = note_address(rl, "rm-url", rl->o.rm_url, e);
    return rc ? rc : note_address(rl, "opd-teacher-url", rl->o.opd_teacher_url, e);
}

enum clime_err clime_rl_record_data(struct clime_rl *rl, const uint64_t *prompts, struct clime_error *e) {
    enum clime_err rc = put_folder(rl, e);
    if (!rc) rc = put_rewards(rl, e);
    if (!rc && rl->o.evaluate)
        rc = put_sum(rl, "evaluation", clime_evaluation_checksum(&rl->eval),
                     "the evaluation, by its options and by what its files say,", "--eval-...", e);
    if (rc || !prompts) return rc;
    return put_sum(rl, "prompts", *prompts, "what --prompt-data says in",
                   rl->o.prompt_data.n > 1 ? "its sources" : rl->o.prompt_data.items[0], e);
}

enum clime_err clime_rl_record_teacher(struct clime_rl *rl, struct clime_error *e) {
    struct clime_facts said = {0};
    struct clime_error why = {0};
    enum clime_err rc = CLIME_OK;
    const char *url = rl->o.learner.objective.use_opd ? rl->o.opd_teacher_url : NULL;
    if (!url) return CLIME_OK;
    if (clime_teacher_ask(url, &said, &why)) LOG_WARN("the teacher does not say what it is: %s", why.msg);
    for (int i = 0; i < said.n && !rc; i++) {
        const struct clime_fact *x = &said.items[i];
        char *name = xasprintf("teacher.%s", x->key), *what = xasprintf("the teacher's %s", x->key);
        rc = put_input(rl, name, name, x->value, what, e);
        free(name);
        free(what);
    }
    clime_facts_free(&said);
    return rc;
}

enum clime_err clime_rl_record_models(struct clime_rl *rl, struct clime_error *e) {
    struct clime_given_sha256 sha;
    enum clime_err rc = clime_learner_given_sha256(rl->learner, &sha, e);
    const struct {
        const char *name, *sha256, *what;
    } given[] = {{"reference", sha.reference, "the reference model"},
                 {"critic", sha.critic, "the critic's initial model"},
                 {"critic-frozen", sha.critic_frozen, "what is frozen of the critic's model"}};
    for (size_t i = 0; i < CLIME_COUNT(given) && !rc; i++)
        if (given[i].sha256[0]) rc = put_input(rl, given[i].name, given[i].name, given[i].sha256, given[i].what, e);
    return rc;
}
