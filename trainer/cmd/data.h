/* clime-train data: shows what a file would be trained on, before training; and converts files. */
#ifndef CLIME_TRAINER_CMD_DATA_H
#define CLIME_TRAINER_CMD_DATA_H

int clime_data_main(int argc, char **argv);

#endif
