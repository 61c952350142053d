/* Schema of the ledger as a list of migrations. docs/ledger.md describes the result for users. */
#ifndef CLIME_TRAINER_LEDGER_SCHEMA_H
#define CLIME_TRAINER_LEDGER_SCHEMA_H

int clime_schema_version(void); /* user_version of an up-to-date ledger */
int clime_schema_first(void);   /* the oldest version; readers accept it unmigrated */

/* SQL that migrates schema v, 0 (a new file) or in [first, version), to *next, including the user_version PRAGMA. */
const char *clime_schema_after(int v, int *next);

#endif
