/* clime-train export: the newest (or a named) checkpoint of a run as a Hugging Face folder. */
#ifndef CLIME_TRAINER_CMD_EXPORT_H
#define CLIME_TRAINER_CMD_EXPORT_H

int clime_export_main(int argc, char **argv); /* argv[0] = "export"; returns the exit code */

#endif
