/* The files of the page, inside the program: the assembler takes them in as they are (.incbin, from the folder where
 * make runs; the Makefile says what this object depends on). On the server's threads; owns nothing. */
#include "common/http/server.h"
#include "trainer/page/page_int.h"

#define EMBED(symbol, file)                                                                                            \
    extern const char symbol[], symbol##_end[];                                                                        \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"trainer/page/assets/" file "\"\n" #symbol                   \
            "_end:\n.popsection\n")

EMBED(asset_index, "index.html");
EMBED(asset_style, "style.css");
EMBED(asset_main, "main.js");

static const struct {
    const char *name, *type, *data, *end;
} assets[] = {
    {"style.css", "text/css; charset=utf-8", asset_style, asset_style_end},
    {"main.js", "text/javascript; charset=utf-8", asset_main, asset_main_end},
};

static void reply(struct clime_http_request *rq, const char *type, const char *data, const char *end) {
    clime_http_reply(rq, 200, type, clime_page_headers, (struct clime_str){data, (size_t)(end - data)});
}

void clime_page_index(struct clime_http_request *rq, void *page) {
    (void)page;
    reply(rq, "text/html; charset=utf-8", asset_index, asset_index_end);
}

void clime_page_asset(struct clime_http_request *rq, void *page) {
    (void)page;
    for (size_t i = 0; i < CLIME_COUNT(assets); i++)
        if (clime_str_is(clime_http_param(rq), assets[i].name)) {
            reply(rq, assets[i].type, assets[i].data, assets[i].end);
            return;
        }
    clime_http_reply_error(rq, 404, "the page has no such file");
}
