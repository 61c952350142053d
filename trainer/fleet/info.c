/* Checks a server's /server_info and accepts or refuses the server. Called by the fleet's loop on an answer, under the
 * lock. Owns nothing. Invariant: an accepted server samples as the trainer computes, as far as both report it, except
 * differences that the user allowed by key. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/log.h"
#include "common/os/host.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

struct server_info {
    char device_name[64], device_unit[64], host_id[64], dtype[64], instance[64], weight_version[CLIME_VERSION_LABEL];
    int together;    /* 0: not reported */
    int gpus;        /* 1 if not reported */
    int64_t context; /* longest sequence, tokens; 0: not reported */
    bool says_experts;
    struct clime_facts identity; /* owned */
};

static enum clime_err read_info(const struct clime_fleet_server *s, struct server_info *out, struct clime_error *e) {
    const struct {
        const char *name;
        char *at;
    } fields[] = {{"device_name", out->device_name}, {"device_unit", out->device_unit},
                  {"host_id", out->host_id},         {"dtype", out->dtype},
                  {"instance", out->instance},       {"weight_version", out->weight_version}};
    struct clime_arena a;
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str key, v;
    enum clime_err rc = CLIME_OK;
    *out = (struct server_info){.gpus = 1};
    clime_arena_init(&a, CLIME_FLEET_MAX_REPLY);
    clime_json_init(&j, s->result.reply.data, s->result.reply.len, &a, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        char *at = NULL;
        double n;
        if (clime_str_is(key, "max_running_requests") && clime_json_peek(&j) == CLIME_JSON_NUMBER) {
            if (clime_json_double(&j, &n) && n >= 1) out->together = n < CLIME_FLEET_ROOM ? (int)n : CLIME_FLEET_ROOM;
            continue;
        }
        if (clime_str_is(key, "tp_size") && clime_json_peek(&j) == CLIME_JSON_NUMBER) {
            if (clime_json_double(&j, &n) && n >= 1) out->gpus = n < CLIME_FLEET_GPUS ? (int)n : CLIME_FLEET_GPUS;
            continue;
        }
        if (clime_str_is(key, "enable_return_routed_experts") && clime_json_peek(&j) == CLIME_JSON_BOOL) {
            clime_json_bool(&j, &out->says_experts);
            continue;
        }
        if (clime_str_is(key, "context_length") && clime_json_peek(&j) == CLIME_JSON_NUMBER) {
            clime_json_int(&j, 0, INT32_MAX, &out->context);
            continue;
        }
        if (clime_str_is(key, "identity") && clime_json_peek(&j) == CLIME_JSON_OBJECT) {
            if (clime_json_skip(&j, &v)) clime_facts_read(v, &out->identity, &je);
            continue;
        }
        for (size_t i = 0; i < CLIME_COUNT(fields); i++)
            if (clime_str_is(key, fields[i].name)) at = fields[i].at;
        if (!at || clime_json_peek(&j) != CLIME_JSON_STRING)
            clime_json_skip(&j, NULL);
        else if (clime_json_string(&j, &v) && at == out->weight_version)
            clime_label_copy(at, v);
        else if (!j.failed)
            snprintf(at, 64, CLIME_STR_FMT, CLIME_STR_ARG(v));
    }
    if (!clime_json_end(&j))
        rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s: %s", clime_url_shown(s->call_url).text, je.msg);
    clime_arena_free(&a);
    return rc;
}

/* Chooses how the server gets weights. */
static void choose_way(struct clime_fleet *f, struct clime_fleet_server *s, const struct server_info *info) {
    static const enum clime_way asked[] = {[CLIME_TRANSPORT_AUTO] = CLIME_BY_HTTP,
                                           [CLIME_TRANSPORT_HTTP] = CLIME_BY_HTTP,
                                           [CLIME_TRANSPORT_IPC] = CLIME_BY_IPC,
                                           [CLIME_TRANSPORT_NCCL] = CLIME_BY_NCCL,
                                           [CLIME_TRANSPORT_PULL] = CLIME_BY_PULL};
    const struct clime_model *m = f->push.model;
    char host[64];
    if (s->way_known || f->o.serve_folder) return;
    if (!f->o.owners) s->way = asked[f->o.transport];
    if (!f->o.owners && f->o.transport == CLIME_TRANSPORT_AUTO && m->ops->own_memory) {
        const bool other = strcmp(info->device_unit, clime_dev_info(m->dev)->unit) != 0;
        clime_host_id(host, sizeof host);
        if (!strncmp(info->device_unit, "GPU-", 4) && host[0] && !strcmp(host, info->host_id))
            s->way = other && !m->ring ? CLIME_BY_NCCL : CLIME_BY_IPC; /* sharded: from all ranks' devices */
    }
    s->way_known = true;
    LOG_INFO("weights go to %s %s", clime_fleet_name(s), clime_way_names[s->way]);
}

/* Refuses an unsuitable server: an error at the beginning, later it stays out. */
static void refuse(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (!f->was_published || s->child)
        f->fatal = s->last;
    else
        clime_fleet_quarantine(f, s);
}

/* Leaves out a server with another model, if there are others. */
static void leave_out(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (s->child || (!f->was_published && !clime_fleet_leave_out(f, s)))
        f->fatal = s->last;
    else if (f->was_published)
        clime_fleet_quarantine(f, s);
}

/* Records allowed differences as an event. */
static void tell_allowed(const struct clime_fleet *f, const char *name, const struct clime_facts *mine,
                         const struct clime_facts *theirs) {
    for (int i = 0; i < mine->n; i++) {
        const struct clime_fact *x = &mine->items[i];
        const char *other = clime_facts_get(theirs, x->key);
        if (!other || strcmp(other, x->value))
            clime_event(f->o.ledger, f->o.incarnation, "difference", "%s has %s %s, the trainer has %s", name, x->key,
                        other ? other : "nothing", x->value);
    }
}

/* Whether it samples as the trainer computes, by what it loaded from its folder, and accepts the longest sample. */
static bool is_alike(const struct clime_fleet *f, struct clime_fleet_server *s, struct server_info *info) {
    static const char no_word[] = "identity"; /* key for a server that reports nothing */
    const struct clime_opt_list *allowed = f->o.allowed;
    struct clime_facts mine = {0};
    struct clime_facts_difference d;
    const char *const name = clime_fleet_name(s);
    enum clime_err rc = CLIME_OK;
    bool silent = !info->identity.n, may = false;
    for (int i = 0; allowed && i < allowed->n; i++) may |= !strcmp(allowed->items[i], no_word);
    clime_facts_add(&mine, "", f->o.truth);
    if (f->push.model && !silent) {
        clime_facts_put(&mine, "dtype", clime_dev_info(f->push.model->dev)->dt == CLIME_F32 ? "float32" : "bfloat16");
        clime_facts_put(&info->identity, "dtype", info->dtype);
    }
    const char *weights = f->o.served ? clime_facts_get(f->o.served, info->dtype) : NULL;
    if (weights)
        clime_facts_put(&mine, "weights", weights);
    else
        clime_facts_drop(&info->identity, "weights"); /* replaced by ours */
    if (silent && !may)
        rc = clime_fail(&s->last, CLIME_ERR_INPUT,
                        "%s does not say what it serves (\"identity\" in its /server_info): whether it samples as the "
                        "trainer computes cannot be compared (--allow-difference %s takes it all the same)",
                        name, no_word);
    else if (!silent &&
             clime_facts_differ(&info->identity, &mine, allowed ? allowed->items : NULL, allowed ? allowed->n : 0, &d))
        rc = clime_fail(&s->last, CLIME_ERR_INPUT,
                        "%s has %s %.100s, the trainer has %.100s: it would not sample what is trained "
                        "(--allow-difference %s takes it all the same)",
                        name, d.key, d.a, d.b, d.key);
    if (!rc && info->context && info->context < f->o.longest)
        rc =
            clime_fail(&s->last, CLIME_ERR_INPUT,
                       "%s has room for sequences of %" PRId64 " tokens (context_length), samples may have %d: give it "
                       "more KV memory or a larger --context-length, or this run a --rollout-max-context-len",
                       name, info->context, f->o.longest);
    if (!rc && !silent && allowed && allowed->n) tell_allowed(f, name, &mine, &info->identity);
    clime_facts_free(&mine);
    return !rc;
}

/* Accepts a server. Equal bits are guaranteed only within one kind of device. */
static void take(struct clime_fleet *f, struct clime_fleet_server *s, struct server_info *info) {
    if (!f->device[0]) {
        const char *own = f->push.model ? clime_dev_info(f->push.model->dev)->name : info->device_name;
        snprintf(f->device, sizeof f->device, "%s", own);
    }
    if (info->device_name[0] && strcmp(info->device_name, f->device) && !f->o.mixed_devices) {
        clime_fail(&s->last, CLIME_ERR_INPUT,
                   "%s computes on %s, the trainer on %s: numbers are the same bits within one kind of device only "
                   "(--allow-mixed-devices takes it all the same)",
                   clime_fleet_name(s), info->device_name, f->device);
        refuse(f, s);
        return;
    }
    if (f->o.says_experts && f->push.model && f->push.model->cfg.router.E && !info->says_experts) {
        clime_fail(
            &s->last, CLIME_ERR_INPUT,
            "%s does not say which experts its routers choose, which --use-rollout-routing-replay needs: start it "
            "with --enable-return-routed-experts",
            clime_fleet_name(s));
        refuse(f, s);
        return;
    }
    snprintf(s->device, sizeof s->device, "%s", info->device_name[0] ? info->device_name : f->device);
    s->together = info->together;
    s->gpus = info->gpus;
    snprintf(s->instance, sizeof s->instance, "%.*s", CLIME_PUSH_INSTANCE - 1, info->instance);
    choose_way(f, s, info);
    clime_fleet_see_label(f, s, info->weight_version);
}

void clime_fleet_take_info(struct clime_fleet *f, struct clime_fleet_server *s) {
    struct server_info info;
    if (read_info(s, &info, &s->last))
        clime_fleet_failed(f, s);
    else if (f->o.truth && !is_alike(f, s, &info))
        leave_out(f, s);
    else
        take(f, s, &info);
    clime_facts_free(&info.identity);
}
