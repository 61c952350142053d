/* A model on a device: configuration, layout, weights, rotary table, and the forward pass of server and trainer.
 *
 * Nouns: `clime_model` (weights on a device), `clime_batch` (token rows and their attention context), `clime_kv` (a
 * server's paged key/value memory), `clime_work` (planned scratch for up to max_rows rows). The trainer's saved
 * activations and the backward pass are in model/backward.h.
 *
 * One thread owns a model and everything built on it (the engine thread, the trainer's main thread). Main invariant: a
 * row's hidden state and log-probability have the same bits whether it runs paged or packed, alone or with other rows
 * (docs/numerics.md).
 */
#ifndef CLIME_MODEL_MODEL_H
#define CLIME_MODEL_MODEL_H

#include "kernels/kernels.h"
#include "kernels/links.h"
#include "kernels/plan.h"
#include "model/act.h"
#include "model/config/config.h"
#include "model/context/context.h"
#include "model/context/travel.h"
#include "model/weights/weights.h"

/* A model sharded over the ranks of a group (model/ranks.c): each rank has its share of the weights and computes its
 * columns of every product; columns are gathered, never summed. Every rank makes the same calls with the same rows. */
struct clime_model_ranks {
    int rank, n;               /* 0 of 1: not sharded */
    bool whole_experts;        /* each expert is on one rank */
    struct clime_links *links; /* between the ranks; borrowed */
    void *piece;        /* device: rank 0's staging buffer for sending host weights; NULL where it is not needed */
    enum clime_err err; /* the first failed exchange; results after it are undefined */
    struct clime_error error;
};

/* Trainer weights sharded over ranks, with a ring buffer that holds two complete layers at a time (model/ring.c,
 * ring_kept.c).
 *
 * Embedding, final norm and head are replicated on every rank. Of the layers, a rank keeps what it updates (struct
 * clime_parts) and an even part of the frozen tensors. Each layer is prefetched into a place of the ring while the
 * previous layer of the pass computes; the layer after next reuses the place. A layer always has the same place, so
 * kernels see fixed addresses: a caller only requests the layer (clime_ring_layer). Experts that a rank keeps whole are
 * read where they are kept (struct clime_matrix.kept): copying them within the device twice a pack was 5 % of a step on
 * two devices.
 *
 * Every rank requests the same layers in the same order, even without rows to compute (clime_train_idle).
 *
 * as_shares (struct clime_part): what a server rank over as many devices needs of the layers is contiguous in flat, in
 * the server's layout, so a server can compute with the trainer's memory (clime_model_open_share). What a rank updates
 * of other ranks' shares follows it. */
#define CLIME_RING_PLACES 2

/* Resident experts (who.experts): each rank has its own experts whole, at a fixed place; the ring holds no experts. The
 * kept range is cut at norm blocks, so it ends a little before or after the rank's experts; ranks with the same experts
 * keep a part each. The remaining elements, the edges, are received from the ranks that keep them whenever weights
 * change. */
struct clime_ring {
    struct clime_part who;
    int64_t first, end;       /* bytes of the whole buffer that belong to layers */
    struct clime_range *kept; /* these bytes by rank, without gaps; this rank's begin at byte `at` of flat */
    int n_kept;
    struct clime_range *direct; /* of kept, ascending: whole experts, at most one range per tensor and rank. Their rank
                                 * reads them there; its ring places do not hold them */
    int n_direct;
    struct clime_range *experts;         /* [layers][CLIME_STAYS] this rank's, if any; NULL: not resident */
    bool edges, frozen_edges;            /* the edges are up to date: all; those of tensors that no step changes */
    int64_t visit, visit_bytes;          /* in flat: buffer for other ranks' experts on their way to `whole` */
    int64_t place[CLIME_RING_PLACES];    /* in flat */
    int64_t tail;                        /* in flat: the bytes from `end` on */
    int64_t bytes;                       /* of flat */
    int holds[CLIME_RING_PLACES];        /* layer in each place; -1 = none */
    int coming;                          /* the layer being prefetched; -1 = none */
    uint32_t number;                     /* of its exchange */
    struct clime_links *links;           /* borrowed */
    struct clime_move *sends, *receives; /* [n_kept * (world - 1)], [n_kept] */
    /* With who.as_shares: `taken` is what other ranks update of this rank's share, `given` what this rank updates of
     * theirs, ascending; `at` in flat, `rank` is the other rank. Sent again whenever it has changed. */
    struct clime_range *taken, *given;
    int n_taken, n_given;
    void *whole; /* host: all weights, on rank 0; NULL until first requested */
    bool is_new; /* whole is older than the weights */
};

struct clime_model {
    struct clime_config cfg;
    struct clime_layout layout; /* of the whole model, on every rank */
    struct clime_shard shard;   /* which part of it is in flat; not sharded: all, at the same offsets */
    int64_t *place;             /* [layout.n_slices] offset in flat of the rank's part of each row; with a ring, of its
                                 * whole layer */
    struct clime_model_ranks ranks;
    struct clime_ring *ring; /* trainer weights in parts (above); NULL: all are in flat */
    uint64_t handover;       /* hash of layout, rotary table and configuration: both sides of a handover compare it */
    uint64_t read_sum;       /* checksum of the weights read from a folder (weights_map.h); 0 = none were read */
    const struct clime_ops *ops;
    struct clime_dev *dev; /* with dt; owned, or another model's (beside) */
    bool beside;
    void *flat;                          /* device: shard.bytes, or ring->bytes with a ring; NULL without weights */
    bool no_weights, shared, releasable; /* as in the options */
    bool released;                       /* the memory of flat is released */
    bool foreign; /* flat is another process's memory, mapped from the handle: never written here */
    uint8_t handle[CLIME_SHARE_BYTES];
    struct { /* clime_model_open_share, _stage: until used or dropped */
        void *flat;
        bool staged; /* memory of the model's own */
        uint8_t handle[CLIME_SHARE_BYTES];
    } coming;
    struct clime_rope rope;
    struct clime_heads heads;    /* of this rank */
    struct clime_matrix *matrix; /* [layout.n_slices], set in the first row of each matrix; N = 0 in all other rows.
                                  * data and packed are current after clime_model_repack */
    void *packed_base;           /* the allocation that packed copies are carved from */
    struct clime_plan plan;
    struct clime_planes { /* memory planes of a KV page; set by the configuration alone */
        size_t *begin;    /* [n + 1] bytes of a page in all planes before each; the last: of the whole page */
        int *first;       /* [L] a layer's first plane */
        int n;
    } planes;
};

struct clime_model_options {
    const char *device;           /* "auto", "cpu", "cuda" */
    const char *dtype;            /* "auto" (the checkpoint's), "bf16" or "bfloat16", "f32" or "float32" */
    struct clime_dev_options dev; /* dt is set by open */
    int max_pos;                  /* length of the rotary table; 0 = the config's max_pos */
    bool no_weights;              /* open without weights; clime_model_set, _copy or _map supplies them */
    bool shared;                  /* the weights may be exported; always true on a device with its own memory */
    bool releasable;              /* the weights may be released and keep their address; then never exported */
    bool whole_experts;           /* over ranks: each rank has whole experts, not rows of all (ranks.h) */
    int rank, n_ranks;            /* of the group that shards the model; 0 of 0 or 1: not sharded */
    /* NULL, or a model that outlives this one: this one uses its device context and its type, whatever the other
     * options. Operations of both run in the order of the calls, and both share links (kernels/links.h). */
    const struct clime_model *beside;
};

/* Checks a user's dtype option at program start: CLIME_ERR_INPUT unless model options know it. */
enum clime_err clime_model_check_dtype(const char *name, struct clime_error *e);

/* Open in two steps, for callers that check memory before allocating: prepare reads DIR's configuration, opens the
 * device and plans (load will allocate clime_plan_bytes(&m->plan)); load allocates and reads the weights. */
enum clime_err clime_model_prepare(const char *dir, const struct clime_model_options *o, struct clime_model **out,
                                   struct clime_error *e);
enum clime_err clime_model_load(struct clime_model *m, const char *dir, struct clime_error *e);
/* prepare, then load. */
enum clime_err clime_model_open(const char *dir, const struct clime_model_options *o, struct clime_model **out,
                                struct clime_error *e);
void clime_model_close(struct clime_model *m); /* NULL is fine */

/* Facts that must be equal in all processes that compute one model: "device", "dtype", the keys of config.json that
 * affect results, "rotary-table", "layout", and once weights were read from a folder "weights". */
void clime_model_facts(const struct clime_model *m, struct clime_facts *out);

size_t clime_model_bytes(const struct clime_model *m);     /* of all weights */
size_t clime_model_own_bytes(const struct clime_model *m); /* of this rank's */
/* Peak temporary bytes of a product's first use, over all products (ops->trial_bytes; trials run one at a time): T rows
 * in the layers, R of the head; trains: gradient products too. */
size_t clime_model_trial_bytes(const struct clime_model *m, int T, int R, bool trains);
/* Makes the algorithm choices of the forward pass's products now (ops->choose). */
void clime_model_choose(const struct clime_model *m, int T, int R);
size_t clime_model_memory(const struct clime_model *m); /* of everything that a model with its own weights allocates */

/* The next calls replace all weights, only between steps, and repack the matrices. */
/* From host (set) or device (copy) memory of the same layout and type. Mapped weights are first replaced by memory of
 * the model's own: CLIME_ERR_LIMIT when there is none; then nothing has changed. */
enum clime_err clime_model_set(struct clime_model *m, const void *h_flat, struct clime_error *e);
enum clime_err clime_model_copy(struct clime_model *m, const void *d_flat, struct clime_error *e);
/* Copies only the marked rows of the layout, [layout.n_slices], from device memory. The model must have weights of its
 * own. */
void clime_model_copy_slices(struct clime_model *m, const void *d_flat, const bool *slices);
/* Checks bytes [lo, hi) of the whole buffer, in dev's memory, each tensor by its type: CLIME_ERR_INPUT names one that
 * is not finite. Blocks. */
enum clime_err clime_model_finite(const struct clime_model *m, struct clime_dev *dev, int64_t lo, int64_t hi,
                                  const void *data, struct clime_error *e);
/* Maps weights that another process exported, in place, and frees the model's own. The owner may rewrite them while
 * this model does not compute; map must be called again afterwards. CLIME_ERR_INPUT as ops->share_open, or when they
 * are on another device; then nothing has changed. */
enum clime_err clime_model_map(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES], struct clime_error *e);
/* Over ranks: the same, from a trainer with as many ranks that keeps parts as shares. In two steps, so that all ranks
 * switch or none: open maps the memory of this rank's device; use computes with it from now on, or unmaps it. */
enum clime_err clime_model_open_share(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES],
                                      struct clime_error *e);
void clime_model_use_share(struct clime_model *m, bool use);
/* All weights in the memory of several processes of this host: a sharded trainer's ranks, any number of them. */
struct clime_weight_parts {
    const uint8_t (*handles)[CLIME_SHARE_BYTES]; /* [n_handles] */
    int n_handles;
    const struct clime_range *ranges; /* [n_ranges] rank is the handle's number, `at` a byte of its memory
                                       * (clime_ranges_check) */
    int n_ranges;
    uint64_t checksum; /* of the tensors, each word by its place in the whole buffer; without padding */
};
/* On an unsharded model or each rank of several: copies the rank's share into memory beside its weights; use_share then
 * activates or drops it. *sum covers what no lower rank has; summed over all ranks it must be the checksum.
 * CLIME_ERR_INPUT: a part does not map or is on another device, or a tensor is not finite; CLIME_ERR_LIMIT: out of
 * memory. The model's thread (model/stage.c). */
enum clime_err clime_model_stage(struct clime_model *m, const struct clime_weight_parts *p, uint64_t *sum,
                                 struct clime_error *e);
enum clime_err clime_weight_parts_check(const struct clime_weight_parts *p, uint64_t sum, struct clime_error *e);
/* Checksum of the `ranges` that this trainer rank exports; the sum over all ranks is the checksum of the weights. */
enum clime_err clime_model_sum(const struct clime_model *m, const struct clime_range *ranges, int n_ranges,
                               uint64_t *sum, struct clime_error *e);
/* Where other processes find this model's weights (options.shared), while it has them. */
struct clime_model_card {
    uint8_t handle[CLIME_SHARE_BYTES];
    char unit[64], host[64]; /* the device (clime_dev_head); the host whose processes can map it: "" = unknown */
    int gpu;                 /* as the device was opened */
};
enum clime_err clime_model_show(const struct clime_model *m, int gpu, struct clime_model_card *out,
                                struct clime_error *e);

/* Releases the memory of the model's own weights (releasable). The next set or copy allocates it again, or
 * clime_model_take_back does now: CLIME_ERR_LIMIT when there is none. release returns the bytes freed: 0 without
 * weights of its own. */
size_t clime_model_release(struct clime_model *m);
enum clime_err clime_model_take_back(struct clime_model *m, struct clime_error *e);

/* ---- over several ranks ---- */
/* Sets the links of the group; after load, before the first step. */
void clime_model_link(struct clime_model *m, struct clime_links *links);
/* CLIME_OK until an exchange has failed. */
enum clime_err clime_model_ranks_check(const struct clime_model *m, struct clime_error *e);
void clime_model_ranks_fail(struct clime_model *m, const struct clime_error *why); /* as if an exchange had failed */
/* Broadcasts rank 0's ids[T], in device memory: tokens sampled there that no host knows yet. */
void clime_model_share_ids(struct clime_model *m, int T, int32_t *ids);
/* Whether steps of up to CLIME_LINKS_FEW_ROWS rows may be recorded. */
bool clime_model_records(const struct clime_model *m);
/* Allocates memory for the rank's weights if needed. CLIME_ERR_LIMIT: out of memory; nothing has changed. */
enum clime_err clime_model_own(struct clime_model *m, struct clime_error *e);
/* Replaces all weights on all ranks: rank 0 has them whole in host or device memory and sends each its share
 * (hand_out); the others call take_share meanwhile. All have their own memory. After an error ranks_check fails too. */
enum clime_err clime_model_hand_out(struct clime_model *m, const void *flat, bool host, struct clime_error *e);
enum clime_err clime_model_take_share(struct clime_model *m, struct clime_error *e);
/* Copies this rank's part of `bytes` bytes of the whole buffer from offset on, contiguously, to host memory with room
 * for all. Returns the number of bytes. Blocks; a device failure is reported by sync. */
int64_t clime_model_read_share(const struct clime_model *m, int64_t offset, int64_t bytes, void *h_out);

/* Both: unsharded models. With a ring, get reads rank 0's copy (clime_ring_whole). get blocks. */
void clime_model_get(const struct clime_model *m, void *h_flat);
void clime_model_repack(struct clime_model *m); /* after flat changed in place (optimizer) */

/* The weights as a source read in pieces, through at most 32 MiB of host memory. dev: a context on the model's device
 * owned by the reading thread, or m->dev on the model's own thread. A read fails as ops->sync. */
struct clime_model_pieces {
    struct clime_weights_source from; /* valid while this struct does not move */
    const struct clime_model *m;
    struct clime_dev *dev;
    void *piece;
    bool locked; /* piece is the device's pinned host memory */
};
void clime_model_pieces_open(struct clime_model_pieces *p, const struct clime_model *m, struct clime_dev *dev);
void clime_model_pieces_close(struct clime_model_pieces *p);

static inline void *clime_model_at(const struct clime_model *m, int64_t offset) {
    return (char *)m->flat + offset;
}

/* ---- a trainer's weights in parts ---------------------------------------------------------------------------- */
/* Keeps the model's weights in parts, cut as `trained` (the policy's layout) says which rank updates what; a reference
 * model has the policy's parts. world 1: whole again. Between prepare and load. */
void clime_model_ring(struct clime_model *m, const struct clime_layout *trained, struct clime_part who);
/* After load, before the first layer is requested; a collective call. */
enum clime_err clime_model_ring_link(struct clime_model *m, struct clime_links *links, struct clime_error *e);

/* Which rank's part of the updates this is: the ring's, or of all links; NULL = not sharded. */
static inline struct clime_part clime_model_part(const struct clime_model *m, const struct clime_links *links) {
    return m->ring ? m->ring->who : (struct clime_part){links ? links->rank : 0, links ? links->world : 1, 0};
}

/* Without a ring the next four do nothing. */
/* Operations queued from now on find layer l; starts the prefetch of layer `next`, -1 = none. A failure is reported by
 * clime_model_ranks_check. */
void clime_ring_layer(struct clime_model *m, int l, int next);
/* The kept weights have changed: invalidates the layers in the ring. */
void clime_ring_changed(struct clime_model *m);
/* Updates rank 0's copy of all weights in host memory; a collective call. */
enum clime_err clime_ring_whole(struct clime_model *m, struct clime_error *e);
void clime_ring_drop_whole(struct clime_model *m); /* frees the copy */

/* Also without a ring: */
/* Address of the rank's own byte `offset` of the whole buffer. */
void *clime_model_kept(const struct clime_model *m, int64_t offset);
/* Cuts shares of the parameters where the rank's memory is not contiguous. Takes and returns an owned array. */
struct clime_share *clime_model_cut_shares(const struct clime_model *m, struct clime_share *shares, int *n);
/* Whether byte `offset` is on every rank. */
bool clime_model_everywhere(const struct clime_model *m, int64_t offset);
/* With a ring: which rank exports which bytes of the whole buffer, and where they are in that rank's flat. Of
 * replicated bytes each exports an equal part. Without gaps; the caller frees it. */
struct clime_range *clime_ring_gives(const struct clime_model *m, int *n);
/* The whole buffer's bytes on this rank, and where in flat; the first *n_everywhere are on every rank. Caller frees. */
struct clime_range *clime_model_holds(const struct clime_model *m, int *n, int *n_everywhere);

/* ---- paged memory of a server ------------------------------------------------------------------------------ */
/* A layer's KV is in planes, as many and as wide as its mixer needs: attention has one of keys and one of values, each
 * [n_pages, HK, CLIME_PAGE, Dh]; latent attention has one plane of rows, [n_pages, CLIME_PAGE, R+Dr]. */
enum { CLIME_PLANE_K, CLIME_PLANE_V };

struct clime_kv {
    int n_pages;
    void *base;    /* plane after plane, at a fixed address */
    bool released; /* its memory is released */
};
size_t clime_kv_page_bytes(const struct clime_model *m); /* of one page in all planes */
enum clime_err clime_kv_open(struct clime_model *m, int n_pages, struct clime_kv *out, struct clime_error *e);
void clime_kv_close(struct clime_model *m, struct clime_kv *kv);
void clime_kv_release(struct clime_model *m, struct clime_kv *kv); /* its contents are lost */
enum clime_err clime_kv_take_back(struct clime_model *m, struct clime_kv *kv, struct clime_error *e);
/* Plane `which` of layer l. */
void *clime_kv_plane(const struct clime_model *m, const struct clime_kv *kv, int l, int which);
void clime_kv_copy_page(struct clime_model *m, struct clime_kv *kv, int from, int to); /* in all planes */

/* ---- forward ------------------------------------------------------------------------------------------------- */
struct clime_batch {
    int T;               /* rows */
    const int32_t *ids;  /* [T] device */
    const int32_t *pos;  /* [T] device */
    const int32_t *slot; /* [T] device, paged: page * CLIME_PAGE + place; NULL = packed */
    struct clime_attn attn;
    struct clime_kv *kv;  /* NULL = packed */
    uint32_t *routing;    /* [T] device: accumulates a hash of the routers' choices (ops->route); NULL = not wanted */
    const int16_t *given; /* [L, T, k] device: experts for the rows in place of the routers' choice (ops->route), per
                           * layer; NULL = none */
    int cuts;             /* packed: parts of the rows, each grouped by expert on its own; 0 or 1: not cut */
    struct clime_context *context; /* packed: attention is over the rows of its ranks, T of them here; NULL = over T */
    struct clime_travel *travel;   /* packed: sends rows to experts on other ranks; NULL = all experts are here */
    bool again;                    /* recomputing for the backward pass, which does not need those experts' outputs */
};

/* Scratch of a server's forward, planned once for max_rows rows and max_out head rows. */
struct clime_work {
    int max_rows, max_out;
    struct clime_layer_act act;             /* one set for all layers; many share memory; KV planes are not here */
    void *out_hidden;                       /* [max_out, D] gathered, then normalised */
    float *logits;                          /* [max_out, V]; over several ranks filled on rank 0 alone */
    float *logit_parts;                     /* over several ranks: [max_out, V] as received */
    float *inv_temp, *lse, *logp, *entropy; /* [max_out] device */
    int32_t *targets, *out_rows;            /* [max_out] device */
    /* Of a model with experts, hashes of the routers' choices: [max_rows] of the last paged batch, [max_out] of the
     * rows of its last logits; else NULL. */
    uint32_t *routing, *out_routing;
    int32_t *chosen; /* the caller's: receives [L, T, k], the choices of each layer with experts; NULL = not wanted */
    struct clime_plan plan;
};
size_t clime_work_bytes(const struct clime_model *m, int max_rows, int max_out);
enum clime_err clime_work_open(struct clime_model *m, int max_rows, int max_out, struct clime_work *w,
                               struct clime_error *e);
void clime_work_close(struct clime_model *m, struct clime_work *w);

/* Runs all layers over a paged batch; leaves the last residual stream in w->act (CLIME_ACT_X). */
void clime_forward_paged(struct clime_model *m, const struct clime_batch *b, struct clime_work *w);

/* logits[R,V] of that stream's rows h_rows[R] (host; NULL = the first R): gather, final norm, head. R <= max_out. */
void clime_forward_logits(struct clime_model *m, struct clime_work *w, const int32_t *h_rows, int R);

/* Internal to model/. Sets the model's share, places and matrices from the layout, and its planes from the layout and
 * the device's type. CLIME_ERR_INPUT when this many ranks cannot share it. */
enum clime_err clime_model_lay(struct clime_model *m, struct clime_error *e);
/* Bytes that the rank needs to send weights; planned, since it cannot fail once the other ranks are receiving. */
size_t clime_model_piece_bytes(const struct clime_model *m);
/* The rank's rows of a tied head. */
const void *clime_tied_head(const struct clime_model *m);
/* Allocates the rank's own weights. */
enum clime_err clime_model_new_weights(const struct clime_model *m, void **out, struct clime_error *e);
/* Stores the rank's part of bytes of the whole buffer from offset on; a callback of clime_weights_import_blocks. arg:
 * the model. */
void clime_model_put(void *arg, int64_t offset, const void *data, int64_t bytes);
/* Plans again what load allocates besides the weights. */
void clime_model_plan(struct clime_model *m);
/* Repacks the matrices of rows [from, to), where the device packs: those of resident experts, or all others. */
void clime_model_pack_rows(struct clime_model *m, int from, int to, bool staying);
void clime_ring_free(struct clime_ring *r); /* NULL is fine */
/* Sets what is the same in every ring over a layout: first, end, places and tail. Returns the bytes up to their end. */
int64_t clime_ring_lay(const struct clime_layout *l, struct clime_ring *r);
/* Cuts the layers' bytes over the ranks of r->who by which rank updates what in `trained`: kept, direct, experts,
 * visit_bytes, and with as_shares taken and given. Places them in flat from r->bytes on and advances r->bytes. */
void clime_ring_cut(struct clime_ring *r, const struct clime_layout *trained, const struct clime_ops *ops);
/* The kept range that contains byte `offset` of a layer, or the first after it. */
int clime_ring_find(const struct clime_ring *r, int64_t offset);
/* The next piece of layer bytes [lo, hi), starting at lo: of one rank, and either all direct or none. False at the
 * end. */
bool clime_ring_piece(const struct clime_ring *r, int64_t lo, int64_t hi, struct clime_range *out, bool *direct);
/* The first range of [lo, hi) that this rank reads where it keeps it; false when there is none. */
bool clime_ring_direct(const struct clime_ring *r, int64_t lo, int64_t hi, struct clime_range *out);
/* Places the rank's shares in flat, and cuts and places the kept ranges by them. r->bytes is the end. */
void clime_ring_cut_shares(struct clime_ring *r, const struct clime_layout *l);
void clime_ring_spread(struct clime_model *m); /* sends what has changed of other ranks' shares */
/* Moves the parts of a rank's shard s to their places in the trainer rank's flat. Returns the bytes needed. */
int64_t clime_shares_in_ring(const struct clime_layout *l, struct clime_shard *s);
/* Sets m->place from m->shard. */
void clime_model_place(struct clime_model *m);
void clime_ring_put(struct clime_model *m, int64_t offset, const void *data, int64_t bytes);
/* CLIME_ERR_UNAVAILABLE, naming the operation, when ops lacks one that the configuration needs. */
enum clime_err clime_model_operations(const struct clime_ops *ops, const struct clime_config *c, struct clime_error *e);
void clime_planes_make(struct clime_model *m);
void clime_planes_free(struct clime_model *m);

/* Weights of a row of the layout; NULL for -1 (the family has none). */
static inline const void *clime_weight(const struct clime_model *m, int row) {
    return row < 0 ? NULL : clime_model_at(m, m->place[row]);
}

static inline enum clime_dtype clime_model_dt(const struct clime_model *m) {
    return clime_dev_info(m->dev)->dt;
}

#endif
