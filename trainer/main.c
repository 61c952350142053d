/* clime-train: one program, a subcommand for each job. main picks the row and hands over; nothing else is here. */
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/log.h"
#include "common/nearest.h"
#include "common/os/files.h"
#include "common/version.h"
#include "trainer/cmd/data.h"
#include "trainer/cmd/eval.h"
#include "trainer/cmd/export.h"
#include "trainer/cmd/grade.h"
#include "trainer/cmd/init.h"
#include "trainer/cmd/page.h"
#include "trainer/cmd/plan.h"
#include "trainer/cmd/sft.h"
#include "trainer/cmd/task.h"
#include "trainer/learn/follower.h"
#include "trainer/run/rl.h"
#include "trainer/watch/report.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the name; returns the exit code */
    const char *help;
} commands[] = {
    {"init", clime_init_main, "a new model folder with random weights, tokenizer and chat template"},
    {"task", clime_task_main, "a generated dataset of questions with checkable answers"},
    {"data", clime_data_main, "what a file would be trained on; conversion, the best answers of a run"},
    {"sft", clime_sft_main, "supervised fine-tuning on prompts and responses"},
    {"dpo", clime_dpo_main, "learning from pairs of which one answer is preferred: DPO and its kin"},
    {"rl", clime_rl_main, "reinforcement learning through router and servers"},
    {"eval", clime_eval_main, "a policy's score on prompt sets"},
    {"grade", clime_grade_main, "a reward function over JSON lines from standard input"},
    {"export", clime_export_main, "a checkpoint as a Hugging Face folder"},
    {"plan", clime_plan_main, "memory and time of a run on devices that are not there"},
    {"page", clime_page_main, "a web page of runs, live or ended: curves, times, samples, events"},
    {"report", clime_report_main, "what a run did, with a plot of the reward"},
};

static void usage(FILE *to) {
    fprintf(to, "clime-train COMMAND [options]\n\n");
    for (size_t i = 0; i < CLIME_COUNT(commands); i++) fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "\nclime-train COMMAND --help lists the command's options.\n");
}

int main(int argc, char **argv) {
    clime_log_open("train", CLIME_LOG_INFO);
    clime_files_raise();
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("clime-train " CLIME_VERSION);
        return 0;
    }
    if (!strcmp(argv[1], "rank")) return clime_follower_main(); /* as rank 0 starts it */
    struct clime_nearest near = {.word = clime_str_of(argv[1])};
    for (size_t i = 0; i < CLIME_COUNT(commands); i++) {
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
        clime_nearest_try(&near, commands[i].name);
    }
    fprintf(stderr, "clime-train: no command \"%s\"", argv[1]);
    if (near.best) fprintf(stderr, ", did you mean \"%s\"", near.best);
    fprintf(stderr, "\n");
    usage(stderr);
    return 2;
}
