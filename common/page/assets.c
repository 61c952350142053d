/* Serves embedded page files (see assets.h), including the shared ones. On the server's threads; owns nothing. */
#include "common/page/assets.h"

CLIME_EMBED(asset_shared_dom_js, "common/page/dom.js");
CLIME_EMBED(asset_shared_style_css, "common/page/style.css");
CLIME_EMBED(asset_shared_icon_svg, "common/page/icon.svg");

static const struct clime_asset shared[] = {
    CLIME_ASSET("dom.js", CLIME_JS, asset_shared_dom_js),
    CLIME_ASSET("style.css", CLIME_CSS, asset_shared_style_css),
    CLIME_ASSET("icon.svg", CLIME_SVG, asset_shared_icon_svg),
};

const char clime_page_headers[] =
    "Content-Security-Policy: default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n";

static const struct clime_asset *find(const struct clime_asset *assets, size_t n, struct clime_str name) {
    for (size_t i = 0; i < n; i++)
        if (clime_str_is(name, assets[i].name)) return &assets[i];
    return NULL;
}

void clime_asset_reply(struct clime_http_request *rq, const struct clime_asset *own, size_t n, struct clime_str name) {
    const struct clime_asset *a = find(own, n, name);
    if (!a) a = find(shared, CLIME_COUNT(shared), name);
    if (a)
        clime_http_reply(rq, 200, a->type, clime_page_headers, (struct clime_str){a->data, (size_t)(a->end - a->data)});
    else
        clime_http_reply_error(rq, 404, "the page has no such file");
}
