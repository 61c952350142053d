/* The ledger's schema, as the list of steps that lead to it. docs/ledger.md describes the result for users. */
#ifndef CLIME_TRAINER_LEDGER_SCHEMA_H
#define CLIME_TRAINER_LEDGER_SCHEMA_H

int clime_schema_version(void); /* user_version of a finished ledger */
int clime_schema_first(void);   /* the oldest that there is; readers understand it as it is */

/* SQL that leads from schema v, which is 0 (a new file) or [first, version), to *next, with the PRAGMA that says so. */
const char *clime_schema_after(int v, int *next);

#endif
