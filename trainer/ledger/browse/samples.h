/* Ledger: samples as JSON (see browse.h): filtered and sorted pages, one sample, its tokens. */
#ifndef CLIME_TRAINER_LEDGER_BROWSE_SAMPLES_H
#define CLIME_TRAINER_LEDGER_BROWSE_SAMPLES_H

#include "common/json/write.h"
#include "trainer/ledger/db.h"

enum clime_browse_order {
    CLIME_BROWSE_NEWEST,
    CLIME_BROWSE_OLDEST,
    CLIME_BROWSE_BEST, /* by reward; samples without one are left out */
    CLIME_BROWSE_WORST,
    CLIME_BROWSE_LONGEST,
    CLIME_BROWSE_SHORTEST,
};
extern const char *const clime_browse_order_names[]; /* indexed by the enum, NULL-terminated */

struct clime_browse_filter {
    int64_t rollout, group;        /* -1 = any */
    int64_t step;                  /* step that trained on it; -1 = any */
    const char *status;            /* NULL = any */
    double reward_min, reward_max; /* NaN = no bound */
    int64_t length_min, length_max;
    const char *text; /* substring of response or prompt, case-insensitive; NULL = any. Newest or oldest only */
    enum clime_browse_order order;
    /* Last sample of the previous page: its id and, for orders by value, its value. */
    bool goes_on;
    int64_t last_id;
    double last_value;
    int64_t limit;
    /* Newest and oldest (clime_now_us): return partial results at until_us, or at soon_us if there are any. */
    int64_t until_us, soon_us;
};

/* {"samples": [...], "next": {"id", "value"} or null, "complete"}: figures and first words of each, or the words around
 * the text. complete false: time ran out before the page was full; continue from next. Streams are read only for those
 * words. */
enum clime_err clime_browse_samples(struct clime_db *db, const struct clime_browse_filter *f, struct clime_jw *w,
                                    struct clime_error *e);

/* {"group": {...}, "members": [...]}: the prompt and every answer to it, with text but without tokens. */
enum clime_err clime_browse_group(struct clime_db *db, int64_t group, struct clime_jw *w, struct clime_error *e);

/* Members of the open object: figures, text and step of a sample, its prompt, and the other samples of its group. */
enum clime_err clime_browse_sample(struct clime_db *db, int64_t id, struct clime_jw *w, struct clime_error *e);

/* The member "streams" of the open object: every numeric stream by name, in the shortest digits that read back to the
 * same bits. ids (may be NULL) receives prompt and response ids; the caller frees them. */
enum clime_err clime_browse_streams(struct clime_db *db, int64_t id, struct clime_jw *w, int32_t **ids, size_t *n_ids,
                                    struct clime_error *e);

#endif
