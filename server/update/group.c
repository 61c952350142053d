/* Broadcast groups for weight updates: NCCL between GPUs, sockets between CPUs (ops->comm_backend). Called by the
 * handlers of distributed.c and transfer.c, HTTP workers, under the update lock.
 *
 * A group's id is in the request (nccl_id, clime's own trainer) or in a torch store at the sender's address. A torch
 * sender sets it at its first broadcast, not at group creation, and then waits until all have joined; hence such a
 * group is joined at the first receive. Invariant: every wait has the request's timeout, and a failed group is closed.
 */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/update/torch_store.h"
#include "server/update/weight_update.h"

#define MAX_STORED ((size_t)64 << 10) /* bytes of a stored id, or of its pickle */
#define VLLM_KEY "broadcast_from/0/0" /* vLLM's StatelessProcessGroup: rank 0's first object for all */

struct clime_update_group *clime_update_group_find(struct clime_weight_update *u, struct clime_str name) {
    for (int i = 0; i < CLIME_MAX_GROUPS; i++)
        if (clime_str_is(name, u->groups[i].name)) return &u->groups[i];
    return NULL;
}

void clime_update_group_close(struct clime_weight_update *u, struct clime_update_group *g) {
    clime_torch_store_close(g->store);
    u->ops->comm_close(g->comm);
    *g = (struct clime_update_group){0};
}

void clime_update_groups_close(struct clime_weight_update *u) {
    clime_incoming_forget(u);
    for (int i = 0; i < CLIME_MAX_GROUPS; i++)
        if (u->groups[i].name[0]) clime_update_group_close(u, &u->groups[i]);
}

/* Closes the oldest group and reports it, so that senders that died cannot block new ones for ever. */
static struct clime_update_group *make_room(struct clime_weight_update *u, const char *for_whom) {
    LOG_WARN("the update group \"%s\", the oldest of %d, is closed to make room for \"%s\"; groups that are done "
             "with are to be destroyed (/destroy_weights_update_group)",
             u->groups[0].name, CLIME_MAX_GROUPS, for_whom);
    memcpy(u->evicted, u->groups[0].name, sizeof u->evicted);
    clime_update_group_close(u, &u->groups[0]);
    memmove(&u->groups[0], &u->groups[1], sizeof u->groups - sizeof u->groups[0]);
    struct clime_update_group *g = &u->groups[CLIME_MAX_GROUPS - 1];
    *g = (struct clime_update_group){0};
    return g;
}

enum clime_err clime_update_group_absent(const struct clime_weight_update *u, struct clime_str name,
                                         struct clime_error *e) {
    bool evicted = name.len > 0 && clime_str_is(name, u->evicted);
    return clime_fail(e, CLIME_ERR_INPUT, "there is no group \"" CLIME_STR_FMT "\"%s", CLIME_STR_ARG(name),
                      evicted ? ": it was the oldest and made room for another" : "");
}

/* A wait until that time, cancelled when the update's client leaves. */
static struct clime_comm_wait wait_until(struct clime_weight_update *u, int64_t until_us) {
    int64_t left_us = until_us - clime_now_us();
    return (struct clime_comm_wait){
        .limit_us = left_us > 0 ? left_us : 0, .cancelled = clime_update_client_left, .arg = u->client};
}

/* ---- ids in a torch store ---------------------------------------------------------------------------------- */

/* Reads the key that libtorch's ProcessGroupNCCL sets for its first communicator, after the prefixes of the group's
 * creator: its name (SGLang's, slime's and AReaL's init_custom_process_group), name and slash (torch), device and slash
 * (torch). */
static enum clime_err torch_id(struct clime_torch_store *store, const char *group, const struct clime_comm_wait *wait,
                               uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e) {
    char key[256];
    struct clime_buf value;
    snprintf(key, sizeof key, "%s/%s//cuda//0", group, group);
    clime_buf_init(&value, MAX_STORED);
    enum clime_err err = clime_torch_store_get(store, key, wait, &value, e);
    if (!err && value.len != CLIME_COMM_ID_BYTES)
        err = clime_fail(e, CLIME_ERR_UNAVAILABLE, "the torch store's key /%s has %zu bytes, an id has %d", key,
                         value.len, CLIME_COMM_ID_BYTES);
    if (!err) memcpy(id, value.data, CLIME_COMM_ID_BYTES);
    clime_buf_free(&value);
    return err;
}

/* vLLM stores the pickle of a ctypes structure in which only the id has its length: opcode 'C', a length byte, the
 * bytes. Nothing else of the pickle is read. */
static enum clime_err vllm_id(struct clime_torch_store *store, const struct clime_comm_wait *wait,
                              uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e) {
    static const char opcode[] = {'C', (char)CLIME_COMM_ID_BYTES};
    struct clime_buf value;
    clime_buf_init(&value, MAX_STORED);
    enum clime_err err = clime_torch_store_get(store, VLLM_KEY, wait, &value, e);
    const char *at = err ? NULL : memmem(value.data, value.len, opcode, sizeof opcode);
    if (!err && (!at || (size_t)(value.data + value.len - at) < sizeof opcode + CLIME_COMM_ID_BYTES))
        err = clime_fail(e, CLIME_ERR_UNAVAILABLE, "the torch store's key /" VLLM_KEY " holds no id of a group");
    if (!err) memcpy(id, at + sizeof opcode, CLIME_COMM_ID_BYTES);
    clime_buf_free(&value);
    return err;
}

/* ---- joining ----------------------------------------------------------------------------------------------- */

static enum clime_err open_comm(struct clime_weight_update *u, struct clime_update_group *g,
                                const uint8_t id[CLIME_COMM_ID_BYTES], int64_t until_us, struct clime_error *e) {
    struct clime_comm_wait wait = wait_until(u, until_us);
    return u->ops->comm_open(u->dev, id, g->rank, g->world, &wait, &g->comm, e);
}

static enum clime_err join_vllm(struct clime_weight_update *u, struct clime_update_group *g, int64_t until_us,
                                struct clime_error *e) {
    uint8_t id[CLIME_COMM_ID_BYTES];
    struct clime_comm_wait wait = wait_until(u, until_us);
    enum clime_err err = vllm_id(g->store, &wait, id, e);
    if (!err) err = open_comm(u, g, id, until_us, e);
    if (err) return err;
    wait = wait_until(u, until_us);
    return u->ops->comm_greet(g->comm, &wait, e);
}

static enum clime_err join(struct clime_weight_update *u, struct clime_update_group *g, const struct clime_group_ask *a,
                           struct clime_error *e) {
    int64_t until_us = clime_now_us() + (int64_t)(a->timeout * 1e6);
    struct clime_comm_wait wait;
    enum clime_err err = a->id ? open_comm(u, g, a->id, until_us, e) : CLIME_OK;
    wait = wait_until(u, until_us);
    if (a->id) return err || !a->vllm ? err : u->ops->comm_greet(g->comm, &wait, e);
    err = clime_torch_store_open(a->host, a->port, &wait, &g->store, e);
    if (!err && a->vllm) err = join_vllm(u, g, until_us, e);
    return err;
}

enum clime_err clime_update_group_join(struct clime_server *s, const struct clime_group_ask *a, bool *evicted,
                                       struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_dev *dev;
    *evicted = false;
    if (clime_update_group_find(u, clime_str_of(a->name)))
        return clime_fail(e, CLIME_ERR_INPUT, "the group \"%s\" is there already", a->name);
    if ((!a->id || a->vllm) && s->followers)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "a torch sender counts a rank for each of this server's devices, which join by nccl_id as one");
    enum clime_err err = clime_update_device(s, &dev, e);
    if (err) return err;
    struct clime_update_group *g = clime_update_group_find(u, clime_str_of(""));
    *evicted = !g;
    if (!g) g = make_room(u, a->name);
    clime_incoming_forget(u); /* from a previous sender: a new one starts over */
    g->rank = a->rank;
    g->world = a->world;
    g->apart = !a->id || a->vllm;
    err = join(u, g, a, e);
    if (err)
        clime_update_group_close(u, g);
    else
        snprintf(g->name, sizeof g->name, "%s", a->name);
    return err;
}

/* ---- receiving --------------------------------------------------------------------------------------------- */

static enum clime_err join_late(struct clime_weight_update *u, struct clime_update_group *g, int64_t until_us,
                                struct clime_error *e) {
    uint8_t id[CLIME_COMM_ID_BYTES];
    struct clime_comm_wait wait = wait_until(u, until_us);
    enum clime_err err = torch_id(g->store, g->name, &wait, id, e);
    if (!err) err = open_comm(u, g, id, until_us, e);
    clime_torch_store_close(g->store);
    g->store = NULL;
    if (!err) LOG_INFO("update group \"%s\": joined as rank %d of %d over a torch store", g->name, g->rank, g->world);
    return err;
}

enum clime_err clime_update_group_receive(struct clime_server *s, struct clime_update_group *g,
                                          const struct clime_comm_part *parts, int n, double timeout,
                                          struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    int64_t until_us = clime_now_us() + (int64_t)(timeout * 1e6);
    int each = g->apart ? 1 : n;
    enum clime_err err = g->comm ? CLIME_OK : join_late(u, g, until_us, e);
    for (int i = 0; i < n && !err; i += each) {
        struct clime_comm_wait wait = wait_until(u, until_us);
        err = u->ops->comm_broadcast(g->comm, parts + i, each, &wait, e);
    }
    if (err) clime_update_group_close(u, g);
    return err;
}
