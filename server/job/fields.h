/* Request members that the endpoint does not read. One that would change the output is never ignored silently:
 *
 *   unsupported  known, not implemented: rejected by name unless its value is neutral (clients send every field they
 *                know).
 *   inert        known, no effect here.
 *   unknown      a typo or a newer client's: rejected with the nearest name under --strict-fields, else logged once per
 *                name and counted (clime:unknown_fields_total).
 *
 * Members that an endpoint reads are in its parser's own table (common/json/members.h). HTTP workers.
 */
#ifndef CLIME_SERVER_JOB_FIELDS_H
#define CLIME_SERVER_JOB_FIELDS_H

#include "common/json/members.h"

/* Remembers the unknown names already logged. Own lock. */
struct clime_field_watch;
struct clime_field_watch *clime_field_watch_new(bool strict);
void clime_field_watch_free(struct clime_field_watch *w);

struct clime_field {
    const char *name;
    const char *neutral; /* neutral JSON values "a|b" besides null, false, "", [] and {}; NULL = no other;
                          * CLIME_FIELD_INERT = any */
};
extern const char CLIME_FIELD_INERT[];

struct clime_fields {
    const char *where;                     /* for messages */
    const struct clime_field *rows[3];     /* not read; the first match decides. Each ends with name == NULL */
    const struct clime_members *read[3];   /* read by the parser */
    const struct clime_members *elsewhere; /* read, but inside `elsewhere_name` */
    const char *elsewhere_name;
};

/* Consumes the value of a member that f->read lacks. Sets the scanner's error when it is rejected. */
void clime_fields_other(const struct clime_fields *f, struct clime_field_watch *w, struct clime_json *j,
                        struct clime_str key);

/* A field that cannot take effect with this model: rejected under --strict-fields, else logged once, with the reason.
 * `where` and `name` are constants. */
enum clime_err clime_fields_idle(struct clime_field_watch *w, const char *where, const char *name, const char *why,
                                 struct clime_error *e);

/* Parses a body with f->read[0]'s members into `object`; an empty body is {}. */
enum clime_err clime_fields_read(const struct clime_fields *f, struct clime_field_watch *w, struct clime_str body,
                                 struct clime_arena *a, void *object, struct clime_error *e);

/* Rows of fields_table.c */
extern const struct clime_field clime_fields_sampling[];  /* sampling parameters */
extern const struct clime_field clime_fields_generate[];  /* /generate, beside sampling_params */
extern const struct clime_field clime_fields_text[];      /* /tokenize, /apply_template, /detokenize */
extern const struct clime_field clime_fields_responses[]; /* /v1/responses */
extern const struct clime_field clime_fields_messages[];  /* /v1/messages */
extern const struct clime_field clime_fields_openai[];    /* all OpenAI-style endpoints, beside sampling parameters */

#endif
