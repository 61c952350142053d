/* Ledger: samples for those who look (see browse.h): pages of a list by filter and order, one sample, its tokens. */
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
extern const char *const clime_browse_order_names[]; /* by the enum, ends with NULL */

struct clime_browse_filter {
    int64_t rollout, group;        /* -1 = any */
    int64_t step;                  /* of the step that it was trained in; -1 = any */
    const char *status;            /* NULL = any */
    double reward_min, reward_max; /* NaN = no bound */
    int64_t length_min, length_max;
    const char *text; /* that response or prompt contains, letters of both cases alike; NULL = any. Newest or oldest */
    enum clime_browse_order order;
    /* The last sample of the page before: its id, and in the orders that have one the value they go by. */
    bool goes_on;
    int64_t last_id;
    double last_value;
    int64_t limit;
    /* Newest and oldest (clime_now_us): when to answer with what was found so far, and when if anything was. */
    int64_t until_us, soon_us;
};

/* {"samples": [...], "next": {"id", "value"} or null, "complete"}: figures of each and its first words, or those around
 * the text. complete false: the time was over before the page was full, next goes on with the search. No stream is read
 * but for those words. */
enum clime_err clime_browse_samples(struct clime_db *db, const struct clime_browse_filter *f, struct clime_jw *w,
                                    struct clime_error *e);

/* {"group": {...}, "members": [...]}: the prompt and every answer to it, with text but without tokens. */
enum clime_err clime_browse_group(struct clime_db *db, int64_t group, struct clime_jw *w, struct clime_error *e);

/* Members of the open object: figures, text and step of one sample, its prompt, and its group's other samples. */
enum clime_err clime_browse_sample(struct clime_db *db, int64_t id, struct clime_jw *w, struct clime_error *e);

/* The member "streams" of the open object: every stream of numbers by name, each number with all its bits (the fewest
 * digits that read back to them). ids (may be NULL) gets those of prompt and response: the caller frees them. */
enum clime_err clime_browse_streams(struct clime_db *db, int64_t id, struct clime_jw *w, int32_t **ids, size_t *n_ids,
                                    struct clime_error *e);

#endif
