/* Early checks of a run, before anything is loaded or started: rewards, filters, the environments' port. Called by
 * open.c, main thread; reads options and prompts, changes nothing.
 *
 * Otherwise a mistake shows only once the model is loaded and the first groups have failed.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/http/port.h"
#include "common/os/shell.h"
#include "trainer/reward/reward.h"
#include "trainer/reward/rewarder.h"
#include "trainer/rollout/gather.h"
#include "trainer/rollout/leftovers.h"
#include "trainer/run/run.h"
#include "trainer/sample/filter.h"

#define TRIED_PROMPTS 16 /* graded with an empty answer to check that the labels suit the type */

static enum clime_err check_reward_types(const struct clime_rl_options *o, struct clime_error *e) {
    if (o->rm_type && clime_reward_check(o->rm_type, e)) return e->code;
    for (int i = 0; i < o->eval_sets.n; i++) {
        const char *type = o->eval_sets.sets[i].rm_type;
        if (type && clime_reward_check(type, e)) return e->code;
    }
    if (o->group_rm && o->rm_type && strchr(o->rm_type, ':'))
        return clime_fail(e, CLIME_ERR_INPUT, "--group-rm goes with one type, not with the sum %s", o->rm_type);
    if (o->group_rm && o->n_samples_per_prompt > CLIME_GATHER_MOST)
        return clime_fail(e, CLIME_ERR_INPUT, "--group-rm takes groups of at most %d", CLIME_GATHER_MOST);
    return CLIME_OK;
}

static enum clime_err check_filters(const struct clime_rl_options *o, struct clime_error *e) {
    if (o->dynamic_sampling_filter && !clime_filter_is_library(o->dynamic_sampling_filter) &&
        !clime_filter_find(o->dynamic_sampling_filter, e))
        return e->code;
    return o->evaluate ? CLIME_OK : clime_leftovers_check(o->buffer_filter, e);
}

enum clime_err clime_rl_check_options(const struct clime_rl_options *o, struct clime_error *e) {
    enum clime_err rc = clime_model_check_dtype(o->dtype, e);
    if (!rc) rc = check_reward_types(o, e);
    if (!rc) rc = check_filters(o, e);
    double limits[CLIME_ALARMS];
    if (!rc) rc = clime_alarm_limits(&o->alarm.limits, o->async, limits, e);
    if (!rc && o->environment_command) rc = clime_shell_check("--environment-command", o->environment_command, e);
    if (!rc && o->environment && !o->custom_generate)
        rc = clime_http_port_check("environment-port", "environment-host", o->environment_host,
                                   (int)o->environment_port, e);
    if (!rc && !o->explain) rc = clime_http_port_check("page-port", "page-host", o->page_host, (int)o->page_port, e);
    return rc;
}

/* Whether the type is graded in this process; others are not tried. */
static bool is_built_in(const char *type) {
    struct clime_error unused;
    bool boxed;
    const struct clime_reward_type *t = clime_reward_find(type, &boxed, &unused);
    return t && t->grade;
}

static enum clime_err check_prompt(const struct clime_prompt *p, const char *type, const char *key, bool try,
                                   struct clime_error *e) {
    char name[CLIME_REWARD_NAME];
    struct clime_reward given;
    const struct clime_reward_request q = {.type = type,
                                           .response = clime_str_of(""),
                                           .label = clime_str_of(p->label),
                                           .label_is_json = true,
                                           .metadata = clime_str_of(p->metadata)};
    enum clime_err rc = clime_reward_type_of(&q, name, e);
    if (!rc) rc = clime_reward_check(name, e);
    if (rc || !try || !is_built_in(name)) return rc;
    if ((rc = clime_reward_grade(&q, key, &given)))
        *e = given.error;
    else if (isnan(given.value))
        rc = clime_fail(e, CLIME_ERR_INPUT, "the reward of %s is an object: --reward-key must name its member: %.200s",
                        name, given.object);
    clime_reward_free(&given);
    return rc;
}

/* type: default for prompts whose metadata name none. */
static enum clime_err check_set(const struct clime_dataset *d, const char *const *sources, const char *type,
                                const char *key, struct clime_error *e) {
    for (int i = 0; i < d->n; i++) {
        const struct clime_prompt *p = &d->prompts[i];
        bool try = i - d->parts[p->source].first < TRIED_PROMPTS;
        if (check_prompt(p, type, key, try, e))
            return clime_error_prefix(e, "%.*s:%" PRId64, (int)strcspn(sources[p->source], "@"), sources[p->source],
                                      p->line);
    }
    return CLIME_OK;
}

/* Checks one set's reward: --rm-type, or an evaluation set's own. */
static enum clime_err check_reward(const struct clime_rl *rl, const struct clime_dataset *d, const char *const *sources,
                                   const char *type, const char *key, struct clime_error *e) {
    const struct clime_rl_options *o = &rl->o;
    struct clime_rewarder_options r = {
        .type = type, .command = o->rm_command, .url = o->rm_url, .library = rl->hooks[CLIME_HOOK_REWARD]};
    if (clime_rewarder_check(&r, NULL, e)) return e->code;
    if (o->custom_rm || o->environment) return CLIME_OK; /* the library rewards all; environments may */
    return check_set(d, sources, type ? type : o->rm_command ? "command" : o->rm_url ? "url" : NULL, key, e);
}

enum clime_err clime_rl_check_rewards(const struct clime_rl *rl, struct clime_error *e) {
    const struct clime_rl_options *o = &rl->o;
    enum clime_err rc = CLIME_OK;
    if (!o->evaluate && !o->load_rollouts && !o->replay) /* these have rewards already */
        rc = check_reward(rl, &rl->data, o->prompt_data.items, o->rm_type, o->reward_key, e);
    for (int i = 0; i < rl->eval.n_sets && !rc && (o->evaluate || o->eval_interval); i++)
        rc = check_reward(rl, &rl->eval.sets[i].data, &rl->eval.sets[i].o->file, rl->eval.sets[i].o->rm_type,
                          rl->eval.sets[i].o->reward_key, e);
    return rc;
}
