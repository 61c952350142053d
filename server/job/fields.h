/* Members of a request's body that its endpoint does not read. They are never ignored in silence when they would change
 * the output:
 *
 *   unsupported  clime knows what it asks for and does not have it: refused by name, unless the value asks for nothing
 *                (clients send every field that they know).
 *   inert        known, and without effect here.
 *   unknown      a typing error, or a newer peer's: refused with the nearest name under --strict-fields, else logged
 *                once for each name, and counted (clime:unknown_fields_total).
 *
 * What an endpoint reads itself stands in its parser's own table (common/json/members.h). HTTP workers.
 */
#ifndef CLIME_SERVER_JOB_FIELDS_H
#define CLIME_SERVER_JOB_FIELDS_H

#include "common/json/members.h"

/* Remembers which unknown names were logged. One lock. */
struct clime_field_watch;
struct clime_field_watch *clime_field_watch_new(bool strict);
void clime_field_watch_free(struct clime_field_watch *w);

struct clime_field {
    const char *name;
    const char *neutral; /* JSON values "a|b" that ask for nothing, besides null, false, "", [] and {}; NULL = no other;
                          * CLIME_FIELD_INERT = any */
};
extern const char CLIME_FIELD_INERT[];

struct clime_fields {
    const char *where;                     /* for messages */
    const struct clime_field *rows[3];     /* not read; the first row decides. Each ends with name == NULL */
    const struct clime_members *read[3];   /* read by the parser */
    const struct clime_members *elsewhere; /* read, but inside `elsewhere_name` */
    const char *elsewhere_name;
};

/* Consumes the value of a member that no row of f->read has. Sets the scanner's error when it is refused. */
void clime_fields_other(const struct clime_fields *f, struct clime_field_watch *w, struct clime_json *j,
                        struct clime_str key);

/* A field that this model's server cannot do what it asks: refused under --strict-fields, else logged once, with the
 * reason. `where` and `name` are constants. */
enum clime_err clime_fields_idle(struct clime_field_watch *w, const char *where, const char *name, const char *why,
                                 struct clime_error *e);

/* A body that is an object of f->read[0]'s members, into `object`; no body at all is {}. */
enum clime_err clime_fields_read(const struct clime_fields *f, struct clime_field_watch *w, struct clime_str body,
                                 struct clime_arena *a, void *object, struct clime_error *e);

/* Rows of fields_table.c */
extern const struct clime_field clime_fields_sampling[];  /* sampling parameters */
extern const struct clime_field clime_fields_generate[];  /* /generate, beside sampling_params */
extern const struct clime_field clime_fields_text[];      /* /tokenize, /apply_template, /detokenize */
extern const struct clime_field clime_fields_responses[]; /* /v1/responses */
extern const struct clime_field clime_fields_messages[];  /* /v1/messages */
extern const struct clime_field clime_fields_openai[];    /* all that speak of messages, beside sampling ones */

#endif
