/* The chat page at /: static files embedded in the program (common/page/assets.h). It uses the public endpoints like
 * any client. HTTP workers; owns nothing. */
#include "common/page/assets.h"
#include "server/server.h"

#define EMBED(symbol, file) CLIME_EMBED(symbol, "server/page/assets/" file)

EMBED(chat_asset_index, "index.html");
EMBED(chat_asset_chat_css, "chat.css");
EMBED(chat_asset_main_js, "main.js");
EMBED(chat_asset_api_js, "api.js");
EMBED(chat_asset_chat_js, "chat.js");
EMBED(chat_asset_fields_js, "fields.js");
EMBED(chat_asset_generate_js, "generate.js");
EMBED(chat_asset_tokens_js, "tokens.js");

static const struct clime_asset assets[] = {
    CLIME_ASSET("index.html", CLIME_HTML, chat_asset_index),
    CLIME_ASSET("chat.css", CLIME_CSS, chat_asset_chat_css),
    CLIME_ASSET("main.js", CLIME_JS, chat_asset_main_js),
    CLIME_ASSET("api.js", CLIME_JS, chat_asset_api_js),
    CLIME_ASSET("chat.js", CLIME_JS, chat_asset_chat_js),
    CLIME_ASSET("fields.js", CLIME_JS, chat_asset_fields_js),
    CLIME_ASSET("generate.js", CLIME_JS, chat_asset_generate_js),
    CLIME_ASSET("tokens.js", CLIME_JS, chat_asset_tokens_js),
};

void clime_handle_page(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_asset_reply(rq, assets, CLIME_COUNT(assets), clime_str_of("index.html"));
}

void clime_handle_page_asset(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_asset_reply(rq, assets, CLIME_COUNT(assets), clime_http_param(rq));
}
