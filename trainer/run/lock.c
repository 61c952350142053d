/* Lock of a run folder. Called by clime_rl_open and clime_sft_open, on the program's first thread; clime_rl_close
 * releases it.
 *
 * A second trainer on a run folder is refused. The kernel releases the locks when the process ends, however it ends.
 * Every file system can lock the file; the folder is locked too where possible, because a lock file can be deleted.
 *
 * A lock belongs to every process with the descriptor, and a child has it from fork to exec: one being started when its
 * trainer is killed holds the lock a moment longer. The file names the trainer; if that process is gone, wait for the
 * lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "trainer/run/run.h"
#include "trainer/watch/now.h"

#define WAIT_US 10000000 /* for an exec on a busy machine; a process on another machine cannot be checked */
#define LOOK_US 10000

/* Pid in the file if that process is gone, else 0. */
static int gone(const char *path) {
    char text[16] = "";
    FILE *f = fopen(path, "re");
    int pid = f && fgets(text, sizeof text, f) ? (int)strtol(text, NULL, 10) : 0;
    if (f) fclose(f);
    return pid > 0 && kill(pid, 0) && errno == ESRCH ? pid : 0;
}

static enum clime_err take(int fd, const char *path, const char *file, const char *run, struct clime_error *e) {
    int64_t limit_us = clime_now_us() + WAIT_US;
    if (fd < 0) return clime_fail(e, CLIME_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    for (bool told = false; flock(fd, LOCK_EX | LOCK_NB);) {
        if (errno != EWOULDBLOCK) return clime_fail(e, CLIME_ERR_IO, "cannot lock %s: %s", path, strerror(errno));
        int pid = gone(file);
        if (!pid || clime_now_us() > limit_us)
            return clime_fail(e, CLIME_ERR_BUSY, "another clime-train works on the run folder %s", run);
        if (!told)
            LOG_INFO("%s is locked by a child of process %d, which is gone: waiting for at most %d s", path, pid,
                     WAIT_US / 1000000);
        told = true;
        clime_sleep_us(LOOK_US);
    }
    return CLIME_OK;
}

enum clime_err clime_rl_lock(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = clime_make_dirs(rl->o.run, e);
    if (rc) return rc;
    char *path = xasprintf("%s/lock", rl->o.run);
    rl->dir_fd = open(rl->o.run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = take(rl->dir_fd, rl->o.run, path, rl->o.run, e);
    if (rc == CLIME_ERR_IO) rc = CLIME_OK; /* NFS locks no folders */
    rl->lock_fd = rc ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (!rc) rc = take(rl->lock_fd, path, path, rl->o.run, e);
    if (!rc) rc = clime_now_open(rl->o.run, rl->lock_fd, &rl->now, e);
    free(path);
    return rc;
}
