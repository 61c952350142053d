/* A model on a device: configuration, layout, weights, rotary table, and the forward pass both roles share.
 *
 * Nouns: `clime_model` (weights on a device), `clime_batch` (token rows and their attention context), `clime_kv`
 * (paged key/value memory of a server), `clime_work` (planned scratch for up to max_rows rows). The trainer's saved
 * activations and the backward pass are in model/backward.h.
 *
 * One thread owns a model and all its companions (the engine thread, the trainer's main thread).
 * The invariant everything rests on: a row's hidden state and log-probability are the same bits whether it runs
 * paged or packed, alone or among others (docs/numerics.md).
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

/* A model over the ranks of a group (model/ranks.c): each has its share of the weights and computes its columns of
 * every product; columns are gathered, nothing is added. Every rank runs the same calls with the same rows. */
struct clime_model_ranks {
    int rank, n;               /* 0 of 1: alone */
    bool whole_experts;        /* an expert lies on one rank */
    struct clime_links *links; /* between them; borrowed */
    void *piece;        /* device: rank 0's room for what it hands out from the host; NULL where that is no way */
    enum clime_err err; /* the first exchange that failed: then what is computed means nothing */
    struct clime_error error;
};

/* A trainer's weights of which each rank keeps a part, and a ring in which two layers at a time are whole
 * (model/ring.c, ring_kept.c).
 *
 * Embedding, final norm and head are whole on every rank. Of the layers a rank keeps what it updates (struct
 * clime_parts), and of what nobody updates an even part. Before a layer computes it is gathered into a place of the
 * ring, while the one before it in the pass computes, and the next but one takes its place. A layer's place is always
 * the same, so nothing that reads weights knows of the ring: it asks for the layer (clime_ring_layer) and finds it
 * where it is. Experts that a rank keeps whole it reads there (struct clime_matrix.kept): to copy them within the
 * device, twice a pack, was 5 % of a step over two.
 *
 * Every rank asks for the same layers in the same order, whether it has something to compute or not; where a rank has
 * nothing it asks all the same (clime_train_idle).
 *
 * As a server's shares (struct clime_part): what a rank of a server over as many devices needs of the layers then lies
 * together in flat as that server would lay it out, so that it computes with the trainer's memory
 * (clime_model_open_share). What a rank updates of others' shares lies behind. */
#define CLIME_RING_PLACES 2

/* Experts that stay (who.experts): each rank has its own ones whole, in one place for good; the ring has none of them.
 * What a rank keeps follows the blocks of the norm and ends a little before or behind its experts, and where several
 * ranks have the same ones it keeps a part of them: the other elements, the edges, are another rank's, from whom they
 * come whenever weights have changed. */
struct clime_ring {
    struct clime_part who;
    int64_t first, end;       /* bytes of the whole that are of layers */
    struct clime_range *kept; /* of these, without gaps: whose they are; this rank's begin at byte `at` of flat */
    int n_kept;
    struct clime_range *direct; /* of kept, ascending: whole experts, at most one range of a tensor and rank. Their rank
                                 * reads them there and has them in no place */
    int n_direct;
    struct clime_range *experts;      /* [layers][CLIME_STAYS] this rank's, where it has any; NULL: they do not stay */
    bool edges, frozen_edges;         /* are what the weights are; of tensors that no step changes */
    int64_t visit, visit_bytes;       /* in flat: room for other ranks' experts on their way to `whole` */
    int64_t place[CLIME_RING_PLACES]; /* in flat */
    int64_t tail;                     /* in flat: of what is from `end` on */
    int64_t bytes;                    /* of flat */
    int holds[CLIME_RING_PLACES];     /* which layer is there; -1 = none */
    int coming;                       /* the layer on its way; -1 = none */
    uint32_t number;                  /* of its exchange */
    struct clime_links *links;        /* borrowed */
    struct clime_move *sends, *receives; /* [n_kept * (world - 1)], [n_kept] */
    /* As a server's shares (who.as_shares): what of a rank's share another one updates, and what of another's this one,
     * ascending; `at` in flat, `rank` is the other. It is sent on whenever it has changed. */
    struct clime_range *taken, *given;
    int n_taken, n_given;
    void *whole; /* host: all weights, of rank 0; NULL until they were wanted */
    bool is_new; /* whole is older than the weights */
};

struct clime_model {
    struct clime_config cfg;
    struct clime_layout layout; /* of the whole model, whatever a rank's share */
    struct clime_shard shard;   /* what of it lies in flat: alone, all in the same places */
    int64_t *place;             /* [layout.n_slices] where in flat the rank's part of each row begins; with a ring,
                                 * where its layer is whole */
    struct clime_model_ranks ranks;
    struct clime_ring *ring; /* a trainer's weights in parts (above); NULL: they lie in flat at their places */
    uint64_t handover;       /* hash of layout, rotary table and configuration: both sides of a handover compare it */
    uint64_t read_sum;       /* checksum of the weights that were read from a folder (weights_map.h); 0 = none were */
    const struct clime_ops *ops;
    struct clime_dev *dev; /* dt inside; owned, or another model's (beside) */
    bool beside;
    void *flat; /* device: shard.bytes, ring->bytes with a ring; NULL while it has no weights */
    bool no_weights, shared, releasable; /* as in the options */
    bool released;                       /* the bytes of flat are given back */
    bool foreign; /* flat is another process's memory, mapped from the handle: never written here */
    uint8_t handle[CLIME_SHARE_BYTES];
    struct { /* clime_model_open_share, _stage: until it is used or let go */
        void *flat;
        bool staged; /* memory of the model's own */
        uint8_t handle[CLIME_SHARE_BYTES];
    } coming;
    struct clime_rope rope;
    struct clime_heads heads;    /* the rank's */
    struct clime_matrix *matrix; /* [layout.n_slices] of the row that a matrix begins with; N = 0 in all other rows.
                                  * data and packed are up to date since clime_model_repack */
    void *packed_base;           /* the allocation that packed copies are carved from */
    struct clime_plan plan;
    struct clime_planes { /* what a page of the server's KV memory is made of; from the configuration alone */
        size_t *begin;    /* [n + 1] bytes of a page in all planes before each; the last: in all */
        int *first;       /* [L] number of a layer's first plane */
        int n;
    } planes;
};

struct clime_model_options {
    const char *device;           /* "auto", "cpu", "cuda" */
    const char *dtype;            /* "auto" (the checkpoint's), "bf16" or "bfloat16", "f32" or "float32" */
    struct clime_dev_options dev; /* dt is set by open */
    int max_pos;                  /* length of the rotary table; 0 = the config's max_pos */
    bool no_weights;              /* open without any; they come by clime_model_set, _copy or _map */
    bool shared;                  /* the weights may be exported; always so on a device with memory of its own */
    bool releasable;              /* the weights may be given back, their address stays; then never exported */
    bool whole_experts;           /* over ranks: of experts a rank has some whole, not rows of all (ranks.h) */
    int rank, n_ranks;            /* of a group that shares the model; 0 of 0 or 1: alone */
    /* NULL, or a model that lives longer: this one computes in its device context, in its type, whatever else is said.
     * So what both are told is done in the order in which they are told it, and links are of both (kernels/links.h). */
    const struct clime_model *beside;
};

/* What a user gave as a type, at a program's start: one that model options know, or CLIME_ERR_INPUT. */
enum clime_err clime_model_check_dtype(const char *name, struct clime_error *e);

/* In two steps, for who must know what fits before anything is allocated: prepare reads DIR's configuration, opens the
 * device and plans (clime_plan_bytes(&m->plan) is what load will take); load allocates and reads the weights. */
enum clime_err clime_model_prepare(const char *dir, const struct clime_model_options *o, struct clime_model **out,
                                   struct clime_error *e);
enum clime_err clime_model_load(struct clime_model *m, const char *dir, struct clime_error *e);
/* Both. */
enum clime_err clime_model_open(const char *dir, const struct clime_model_options *o, struct clime_model **out,
                                struct clime_error *e);
void clime_model_close(struct clime_model *m); /* NULL is fine */

/* What processes that compute one model must have alike: "device", "dtype", the keys of config.json that are computed
 * with, "rotary-table", "layout", and once weights were read from a folder "weights". */
void clime_model_facts(const struct clime_model *m, struct clime_facts *out);

size_t clime_model_bytes(const struct clime_model *m);     /* of all weights */
size_t clime_model_own_bytes(const struct clime_model *m); /* of this rank's */
/* What the product that takes most takes for a moment at its first use (ops->trial_bytes; trials come one after
 * another): T rows in the layers, R of the head; trains: their gradients too. */
size_t clime_model_trial_bytes(const struct clime_model *m, int T, int R, bool trains);
/* All choices of such products of the forward pass are made now (ops->choose). */
void clime_model_choose(const struct clime_model *m, int T, int R);
size_t clime_model_memory(const struct clime_model *m); /* of all that a model with weights of its own allocates */

/* Replacing all weights, only between steps; then the matrices are packed again. */
/* From memory of the same layout and type, of the host or the device. Foreign weights are left for memory of the
 * model's own first: CLIME_ERR_LIMIT when there is none, and nothing has changed. */
enum clime_err clime_model_set(struct clime_model *m, const void *h_flat, struct clime_error *e);
enum clime_err clime_model_copy(struct clime_model *m, const void *d_flat, struct clime_error *e);
/* Of memory of the device only the marked rows of the layout, [layout.n_slices]; the others stay. The weights are there
 * and the model's own. */
void clime_model_copy_slices(struct clime_model *m, const void *d_flat, const bool *slices);
/* Of memory of dev, bytes [lo, hi) of the whole buffer, each tensor by its type: CLIME_ERR_INPUT names one that is not
 * finite. Waits. */
enum clime_err clime_model_finite(const struct clime_model *m, struct clime_dev *dev, int64_t lo, int64_t hi,
                                  const void *data, struct clime_error *e);
/* From now on the weights are those that another process exported, in place; memory of the model's own is freed. The
 * owner may rewrite them while this model does not compute; then map is called again. CLIME_ERR_INPUT as
 * ops->share_open or when they lie on another device; nothing has changed then. */
enum clime_err clime_model_map(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES], struct clime_error *e);
/* Over ranks: the same, from a trainer of as many that keeps parts as shares, in two steps, so that all ranks do it or
 * none: open maps what this rank's device has, use computes with it from now on, or lets it go and changes nothing. */
enum clime_err clime_model_open_share(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES],
                                      struct clime_error *e);
void clime_model_use_share(struct clime_model *m, bool use);
/* All weights as they lie in the memory of several processes of this host: a sharded trainer's ranks, of any number. */
struct clime_weight_parts {
    const uint8_t (*handles)[CLIME_SHARE_BYTES]; /* [n_handles] */
    int n_handles;
    const struct clime_range *ranges; /* [n_ranges] of which each has some: rank is the handle's number, `at` a byte of
                                       * its memory (clime_ranges_check) */
    int n_ranges;
    uint64_t
        checksum; /* of the tensors, each word by its place in the whole buffer: what lies between does not count */
};
/* On a model alone or on each rank of several: the rank's share is copied into memory beside its weights, which
 * use_share puts in force or lets go. *sum: of what no rank before it has; over all ranks it must be the checksum.
 * CLIME_ERR_INPUT: a part does not map or lies elsewhere, or a tensor is not finite; CLIME_ERR_LIMIT: there is no
 * memory. The model's thread (model/stage.c). */
enum clime_err clime_model_stage(struct clime_model *m, const struct clime_weight_parts *p, uint64_t *sum,
                                 struct clime_error *e);
enum clime_err clime_weight_parts_check(const struct clime_weight_parts *p, uint64_t sum, struct clime_error *e);
/* The sum of what this rank of a trainer gives away, of `ranges`; all ranks' together are the checksum. */
enum clime_err clime_model_sum(const struct clime_model *m, const struct clime_range *ranges, int n_ranges,
                               uint64_t *sum, struct clime_error *e);
/* Where others find the weights of this one (options.shared), while it has them. */
struct clime_model_card {
    uint8_t handle[CLIME_SHARE_BYTES];
    char unit[64], host[64]; /* the device (clime_dev_head); whose processes can map it: "" = not known */
    int gpu;                 /* as the device was opened */
};
enum clime_err clime_model_show(const struct clime_model *m, int gpu, struct clime_model_card *out,
                                struct clime_error *e);

/* Gives the bytes of the model's own weights back to the device (releasable); the next set or copy takes some again, or
 * clime_model_take_back does now: CLIME_ERR_LIMIT when there are none. release returns the number of bytes: 0 when
 * there are none of its own. */
size_t clime_model_release(struct clime_model *m);
enum clime_err clime_model_take_back(struct clime_model *m, struct clime_error *e);

/* ---- over several ranks ---- */
/* The links of the group; after load, before the first step. */
void clime_model_link(struct clime_model *m, struct clime_links *links);
/* CLIME_OK until an exchange has failed. */
enum clime_err clime_model_ranks_check(const struct clime_model *m, struct clime_error *e);
void clime_model_ranks_fail(struct clime_model *m, const struct clime_error *why); /* as if one had */
/* ids[T] of rank 0, in device memory, come to all: tokens that were drawn there and that no host knows yet. */
void clime_model_share_ids(struct clime_model *m, int T, int32_t *ids);
/* Steps of up to CLIME_LINKS_FEW_ROWS rows may be recorded. */
bool clime_model_records(const struct clime_model *m);
/* Memory for the rank's weights is there. CLIME_ERR_LIMIT: it is not, nothing has changed. */
enum clime_err clime_model_own(struct clime_model *m, struct clime_error *e);
/* Replaces all weights on all ranks: rank 0 has them whole, in host or device memory, and hands out each one's share;
 * the others take theirs at the same time. All have memory of their own. After an error ranks_check fails, too. */
enum clime_err clime_model_hand_out(struct clime_model *m, const void *flat, bool host, struct clime_error *e);
enum clime_err clime_model_take_share(struct clime_model *m, struct clime_error *e);
/* What this rank has of so many bytes of the whole model's buffer from offset on, its parts behind each other, into
 * host memory with room for all. Returns how many. Waits; a device that fails says so at sync. */
int64_t clime_model_read_share(const struct clime_model *m, int64_t offset, int64_t bytes, void *h_out);

/* Both of a model alone; with a ring, of rank 0's copy (clime_ring_whole). get waits. */
void clime_model_get(const struct clime_model *m, void *h_flat);
void clime_model_repack(struct clime_model *m); /* after flat changed in place (optimizer) */

/* The weights as a source of pieces, which pass through 32 MiB of host memory at most. dev: a context on the model's
 * device that belongs to the reading thread; m->dev for the model's own. A read fails as ops->sync. */
struct clime_model_pieces {
    struct clime_weights_source from; /* to be read while this struct stays where it is */
    const struct clime_model *m;
    struct clime_dev *dev;
    void *piece;
    bool locked; /* piece is host memory of the device's */
};
void clime_model_pieces_open(struct clime_model_pieces *p, const struct clime_model *m, struct clime_dev *dev);
void clime_model_pieces_close(struct clime_model_pieces *p);

static inline void *clime_model_at(const struct clime_model *m, int64_t offset) {
    return (char *)m->flat + offset;
}

/* ---- a trainer's weights in parts ---------------------------------------------------------------------------- */
/* From now on the model's weights are kept in parts, as `trained` says who updates what (the layout of the policy; a
 * reference model has the policy's parts); world 1: whole again. Between prepare and load. */
void clime_model_ring(struct clime_model *m, const struct clime_layout *trained, struct clime_part who);
/* After load, and before the first layer is asked for; all ranks call it alike. */
enum clime_err clime_model_ring_link(struct clime_model *m, struct clime_links *links, struct clime_error *e);

/* Which rank's part of the updates this is: the ring's, or of all links; NULL = alone. */
static inline struct clime_part clime_model_part(const struct clime_model *m, const struct clime_links *links) {
    return m->ring ? m->ring->who : (struct clime_part){links ? links->rank : 0, links ? links->world : 1, 0};
}

/* Without a ring these do nothing. */
/* What is queued from now on finds layer l; layer `next` begins to come, -1 = none. A failure is the model's
 * (clime_model_ranks_check). */
void clime_ring_layer(struct clime_model *m, int l, int next);
/* What is kept has changed: what the ring holds is old. */
void clime_ring_changed(struct clime_model *m);
/* Rank 0's copy in host memory becomes what the weights are; all ranks call it alike. */
enum clime_err clime_ring_whole(struct clime_model *m, struct clime_error *e);
void clime_ring_drop_whole(struct clime_model *m); /* the copy is not needed for now */

/* Also without a ring: */
/* Where the rank's own byte `offset` of the whole lies. */
void *clime_model_kept(const struct clime_model *m, int64_t offset);
/* Cuts shares of the parameters where what a rank keeps does not lie together. Both owned. */
struct clime_share *clime_model_cut_shares(const struct clime_model *m, struct clime_share *shares, int *n);
/* Byte `offset` is on every rank. */
bool clime_model_everywhere(const struct clime_model *m, int64_t offset);
/* With a ring: which rank gives what of the whole away, and where it lies in that rank's flat. Of what is everywhere
 * each gives as much as the others. Without gaps; owned. */
struct clime_range *clime_ring_gives(const struct clime_model *m, int *n);
/* What of the whole lies on this rank, and where in flat; the first *n_everywhere on every rank. Owned. */
struct clime_range *clime_model_holds(const struct clime_model *m, int *n, int *n_everywhere);

/* ---- paged memory of a server ------------------------------------------------------------------------------ */
/* What a layer keeps of a position lies in planes, as many and as wide as its mixer needs: attention has one of keys
 * and one of values, each [n_pages, HK, CLIME_PAGE, Dh]; latent attention one of its rows, [n_pages, CLIME_PAGE, R+Dr].
 */
enum { CLIME_PLANE_K, CLIME_PLANE_V };

struct clime_kv {
    int n_pages;
    void *base;    /* plane after plane, at a fixed address */
    bool released; /* its bytes are given back */
};
size_t clime_kv_page_bytes(const struct clime_model *m); /* of one page in all planes */
enum clime_err clime_kv_open(struct clime_model *m, int n_pages, struct clime_kv *out, struct clime_error *e);
void clime_kv_close(struct clime_model *m, struct clime_kv *kv);
void clime_kv_release(struct clime_model *m, struct clime_kv *kv); /* nothing of what it held will come back */
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
    uint32_t *routing;    /* [T] device: folds what the routers choose (ops->route); NULL = nobody asks */
    const int16_t *given; /* [L, T, k] device: experts that rows have instead of the routers' choice (ops->route), of
                             each layer; NULL = none has */
    int cuts; /* packed: each of so many parts of the rows has its experts' rows together; 0 or 1: all rows */
    struct clime_context *context; /* packed: attention is over its ranks' rows, of which T are here; NULL = over T */
    struct clime_travel *travel;   /* packed: rows go to experts that stay with their rank; NULL = all are here */
    bool again;                    /* for the backward pass, which needs nothing of what those experts would give */
};

/* Scratch of a server's forward, planned once for max_rows rows and max_out head rows. */
struct clime_work {
    int max_rows, max_out;
    struct clime_layer_act act; /* one set for all layers; many share memory; the planes of KV are not here */
    void *out_hidden;           /* [max_out, D] gathered, then normalised */
    float *logits;              /* [max_out, V]; over several ranks filled on rank 0 alone */
    float *logit_parts;         /* over several ranks: [max_out, V] as they come */
    float *inv_temp, *lse, *logp, *entropy; /* [max_out] device */
    int32_t *targets, *out_rows;            /* [max_out] device */
    /* Of a model with experts what the routers chose, [max_rows] of the last paged batch, and [max_out] of the rows of
     * its last logits; else NULL. */
    uint32_t *routing, *out_routing;
    int32_t *chosen; /* the caller's: [L, T, k] gets what each layer with experts chose; NULL = nobody asks */
    struct clime_plan plan;
};
size_t clime_work_bytes(const struct clime_model *m, int max_rows, int max_out);
enum clime_err clime_work_open(struct clime_model *m, int max_rows, int max_out, struct clime_work *w,
                               struct clime_error *e);
void clime_work_close(struct clime_model *m, struct clime_work *w);

/* Runs all layers over a paged batch; leaves the last residual stream in w->act (CLIME_ACT_X). */
void clime_forward_paged(struct clime_model *m, const struct clime_batch *b, struct clime_work *w);

/* logits[R,V] of the rows h_rows[R] (host; NULL = the first R) of that stream: gather, final norm, head. R <= max_out.
 */
void clime_forward_logits(struct clime_model *m, struct clime_work *w, const int32_t *h_rows, int R);

/* Inside of the model, for model/: its share, places and matrices from the layout; its planes from the layout and the
 * device's type. CLIME_ERR_INPUT when so many ranks cannot share it. */
enum clime_err clime_model_lay(struct clime_model *m, struct clime_error *e);
/* Memory that the rank needs to hand out weights: whoever does has told the others, so it is planned like the weights.
 */
size_t clime_model_piece_bytes(const struct clime_model *m);
/* The rank's rows of a head that is the embedding. */
const void *clime_tied_head(const struct clime_model *m);
/* Memory for the rank's own weights. */
enum clime_err clime_model_new_weights(const struct clime_model *m, void **out, struct clime_error *e);
/* Bytes of the whole model's buffer from offset on, of which the rank keeps what is its own; as
 * clime_weights_import_blocks calls it. arg: the model. */
void clime_model_put(void *arg, int64_t offset, const void *data, int64_t bytes);
/* Names what load allocates beside the weights, anew. */
void clime_model_plan(struct clime_model *m);
/* Packs the matrices of rows [from, to) again, where the device packs: those of experts that stay, or all others. */
void clime_model_pack_rows(struct clime_model *m, int from, int to, bool staying);
void clime_ring_free(struct clime_ring *r); /* NULL is fine */
/* What has the same place in every ring over a layout: first, end, places and tail. The bytes up to their end. */
int64_t clime_ring_lay(const struct clime_layout *l, struct clime_ring *r);
/* The layers' bytes over the ranks of r->who, as `trained` says who updates what: kept, direct, experts, and as shares
 * taken and given; and visit_bytes. From r->bytes on they have places in flat; r->bytes becomes the end of these. */
void clime_ring_cut(struct clime_ring *r, const struct clime_layout *trained, const struct clime_ops *ops);
/* The kept range that has byte `offset` of a layer, or the first behind it. */
int clime_ring_find(const struct clime_ring *r, int64_t offset);
/* The next piece of [lo, hi), bytes of a layer, which begins at lo: of one rank, and all of it direct or none. False
 * at the end. */
bool clime_ring_piece(const struct clime_ring *r, int64_t lo, int64_t hi, struct clime_range *out, bool *direct);
/* Of [lo, hi) what this rank reads where it keeps it, the first range; false when nothing. */
bool clime_ring_direct(const struct clime_ring *r, int64_t lo, int64_t hi, struct clime_range *out);
/* Which part of flat the rank's shares have: from there on the kept ranges are cut and placed. r->bytes is the end. */
void clime_ring_cut_shares(struct clime_ring *r, const struct clime_layout *l);
void clime_ring_spread(struct clime_model *m); /* what has changed of others' shares goes to them */
/* s is of a rank; its parts' places become those in the flat of the trainer's rank. Returns the bytes needed. */
int64_t clime_shares_in_ring(const struct clime_layout *l, struct clime_shard *s);
/* m->place by m->shard. */
void clime_model_place(struct clime_model *m);
void clime_ring_put(struct clime_model *m, int64_t offset, const void *data, int64_t bytes);
/* CLIME_ERR_UNAVAILABLE, naming it, when a table lacks operations that the configuration needs. */
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
