/* The ledger's schema, as the list of steps that lead to it. docs/ledger.md describes the result for users. */
#ifndef CLIME_TRAINER_LEDGER_SCHEMA_H
#define CLIME_TRAINER_LEDGER_SCHEMA_H

int clime_schema_version(void);  /* user_version of a finished ledger */
int clime_schema_readable(void); /* the oldest that this program's readers understand as it is */

/* SQL that leads from version v to v + 1, with the PRAGMA that says so. 0 <= v < clime_schema_version(). */
const char *clime_schema_migration(int v);

#endif
