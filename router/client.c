/* Calls to workers: the URL, and one HTTP client a thread: an easy handle keeps its connections to the workers, and
 * sharing a connection cache between threads is unsupported by libcurl and was 2.2 times slower when measured. */
#include <pthread.h>

#include "common/http/client.h"
#include "router/router.h"

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_client(void *c) {
    clime_http_client_free(c);
}

static void make_key(void) {
    CHECK(pthread_key_create(&key, free_client) == 0);
}

struct clime_http_client *clime_router_client(void) {
    pthread_once(&once, make_key);
    struct clime_http_client *c = pthread_getspecific(key);
    if (!c) {
        c = clime_http_client_new();
        CHECK(pthread_setspecific(key, c) == 0);
    }
    return c;
}

char *clime_router_url(const char *worker, const struct clime_http_request *rq) {
    struct clime_str path = clime_http_path(rq), query = clime_http_query_string(rq);
    return xasprintf("%s" CLIME_STR_FMT "%s" CLIME_STR_FMT, worker, CLIME_STR_ARG(path), query.len ? "?" : "",
                     CLIME_STR_ARG(query));
}
