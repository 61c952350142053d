/* Process start and end (see process.h). Main thread, except clime_process_wake.
 *
 * One poll reads signals (a signalfd) and the pipes: no signal handler runs. */
#include "common/os/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/os/atomic_file.h"
#include "common/os/files.h"

static int signal_fd = -1;
static int wake_pipe[2] = {-1, -1};

enum clime_err clime_process_begin(struct clime_error *e) {
    sigset_t set;
    clime_files_raise();
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    signal(SIGPIPE, SIG_IGN);
    signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (signal_fd < 0 || pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK))
        return clime_fail(e, CLIME_ERR_BUSY, "signals cannot be waited for: %s", strerror(errno));
    return CLIME_OK;
}

enum clime_process_end clime_process_wait(int parent_fd) {
    struct pollfd fds[3] = {{signal_fd, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}, {parent_fd, POLLIN, 0}};
    for (;;) {
        if (poll(fds, 3, -1) < 0) continue; /* EINTR */
        if (fds[0].revents) return CLIME_END_SIGNAL;
        if (fds[1].revents) return CLIME_END_WAKE;
        if (fds[2].revents & POLLIN) { /* ignore bytes; end of file means the parent is gone */
            char byte;
            if (read(parent_fd, &byte, 1) == 0) return CLIME_END_PARENT;
        } else if (fds[2].revents) {
            return CLIME_END_PARENT;
        }
    }
}

void clime_process_wake(void) {
    if (write(wake_pipe[1], "w", 1) < 0) return; /* the pipe is full: already awake */
}

enum clime_err clime_port_file_write(const char *path, int port, int parent_fd, struct clime_error *e) {
    char text[16];
    struct pollfd parent = {parent_fd, POLLIN, 0};
    bool gone = poll(&parent, 1, 0) > 0 && (parent.revents & POLLHUP);
    if (!path || gone) return CLIME_OK;
    int n = snprintf(text, sizeof text, "%d\n", port);
    return clime_atomic_save(path, text, (size_t)n, e);
}
