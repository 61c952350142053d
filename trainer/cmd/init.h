/* clime-train init: a new Hugging Face folder with random weights, a tokenizer and a chat template. */
#ifndef CLIME_TRAINER_CMD_INIT_H
#define CLIME_TRAINER_CMD_INIT_H

int clime_init_main(int argc, char **argv); /* argv[0] = "init"; returns the exit code */

#endif
