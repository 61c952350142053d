/* clime-train page: serves the page of run folders until stopped. Main thread; the rest is the page's. */
#include "trainer/cmd/page.h"

#include <stdio.h>
#include <string.h>

#include "common/http/client.h"
#include "common/http/port.h"
#include "common/log.h"
#include "common/options/options.h"
#include "common/os/process.h"
#include "trainer/watch/page/page.h"

#define MAX_RUNS 16 /* that one chart can show */

static void print_routes(void) {
    struct clime_buf text;
    clime_buf_init(&text, 1 << 20);
    clime_http_routes_json(clime_page_routes, &text);
    puts(text.data);
    clime_buf_free(&text);
}

int clime_page_main(int argc, char **argv) {
    const char *runs[MAX_RUNS] = {0}, *host, *port_file, *tokenizer;
    struct clime_page *page = NULL;
    struct clime_error e = {0};
    int64_t port;
    int n = 0;
    bool routes;
    char url[300];
    const struct clime_opt table[] = {
        {"page-port", CLIME_OPT_INT, &port, "0", "PORT", "port of the page; 0 = any free one", 0, 65535},
        {"page-host", CLIME_OPT_STRING, &host, "127.0.0.1", "ADDR",
         "address of the page; it has no key: on another one than loopback whoever reaches it reads the runs"},
        {"page-port-file", CLIME_OPT_STRING, &port_file, NULL, "FILE", "where to write the port once it serves"},
        {"hf-checkpoint", CLIME_OPT_STRING, &tokenizer, NULL, "DIR",
         "Hugging Face folder whose tokenizer spells the tokens of runs without an hf/ of their own; without one they "
         "are shown by number"},
        {"print-routes", CLIME_OPT_BOOL, &routes, NULL, NULL, "print the route table and exit"},
    };
    enum clime_err rc = clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, runs, MAX_RUNS,
                                            "clime-train page RUN... [options]\nThe page of run folders, live or "
                                            "ended: curves, times, samples, events. It only reads.\n",
                                            &e);
    if (!rc && routes) {
        print_routes();
        return 0;
    }
    while (n < MAX_RUNS && runs[n]) n++;
    if (!rc && !n) rc = clime_fail(&e, CLIME_ERR_INPUT, "which run? clime-train page RUN");
    if (!rc) rc = clime_http_port_check("page-port", "page-host", host, (int)port, &e);
    if (!rc) {
        const struct clime_page_options o = {.host = host,
                                             .port = (int)port,
                                             .runs = runs,
                                             .n_runs = n,
                                             .port_file = port_file,
                                             .tokenizer_dir = tokenizer};
        clime_http_client_global_init();
        rc = clime_process_begin(&e);
        if (!rc) rc = clime_page_open(&o, &page, &e);
    }
    if (rc) {
        LOG_ERROR("page: %s", e.msg);
        return 1;
    }
    clime_page_url(page, url, sizeof url);
    printf("page     %s\n", url);
    fflush(stdout);
    clime_process_wait(-1);
    clime_page_close(page);
    return 0;
}
