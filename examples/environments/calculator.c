/* The calculator of calculator.py in C, over libcurl and cJSON: tokens and text through a session's /generate.
 *
 *   cc -o calculator calculator.c -lcurl -lcjson
 *   clime-train rl --environment-command "./calculator" ...
 *
 * The policy writes "=27+35" and gets the result; any other answer ends the task, with reward 1 when it is the label.
 * What stands around an observation is the chat template's: BEFORE and AFTER are those of `clime-train init`'s own. */
#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEFORE "<|tool|>"
#define AFTER "<|end|><|assistant|>"
#define TURNS 4

struct reply {
    char *text;
    size_t len;
};

static size_t collect(char *data, size_t size, size_t n, void *arg) {
    struct reply *r = arg;
    char *grown = realloc(r->text, r->len + size * n + 1);
    if (!grown) return 0;
    r->text = grown;
    memcpy(r->text + r->len, data, size * n);
    r->len += size * n;
    r->text[r->len] = 0;
    return size * n;
}

/* POSTs body (freed) and returns the HTTP status, 0 when nobody answered; *out: the reply's JSON or NULL. */
static long post(CURL *curl, const char *path, cJSON *body, cJSON **out) {
    const char *key = getenv("CLIME_API_KEY");
    char url[1024], auth[512];
    struct reply r = {0};
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    char *text = cJSON_PrintUnformatted(body);
    long status = 0;
    snprintf(url, sizeof url, "%s%s", getenv("CLIME_URL"), path);
    snprintf(auth, sizeof auth, "Authorization: Bearer %s", key ? key : "none");
    headers = curl_slist_append(headers, auth);
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &r);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 600L);
    if (curl_easy_perform(curl) == CURLE_OK) curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    /* A policy may write a NUL, at which cJSON's strings end; another character that no answer has takes its place. */
    for (char *at = r.text; at && (at = strstr(at, "\\u0000")); at += 6) memcpy(at, "\\ufffd", 6);
    *out = r.text ? cJSON_Parse(r.text) : NULL;
    curl_slist_free_all(headers);
    cJSON_Delete(body);
    free(text);
    free(r.text);
    return status;
}

/* Reads a number of at most 9 digits; NULL when there is none. */
static const char *number(const char *at, long long *out) {
    int n = 0;
    for (*out = 0; at[n] >= '0' && at[n] <= '9' && n < 9; n++) *out = *out * 10 + (at[n] - '0');
    return n ? at + n : NULL;
}

/* Whether text is one calculation; its value. */
static int calculate(const char *text, long long *value) {
    long long a, b;
    const char *op = *text == '=' ? number(text + 1, &a) : NULL;
    const char *end = op && *op ? number(op + 1, &b) : NULL;
    if (!end || *end || !strchr("+-*", *op)) return 0;
    *value = *op == '+' ? a + b : *op == '-' ? a - b : a * b;
    return 1;
}

static int is_label(const cJSON *label, const char *answer) {
    char number[32];
    if (cJSON_IsString(label)) return !strcmp(label->valuestring, answer);
    snprintf(number, sizeof number, "%.0f", cJSON_GetNumberValue(label));
    return cJSON_IsNumber(label) && !strcmp(number, answer);
}

/* Whether a reply is the error of a context that is full. */
static int is_too_long(const cJSON *reply) {
    const char *code = cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(reply, "error"), "code"));
    return code && !strcmp(code, "context_length_exceeded");
}

/* Plays one task; the reward, or -1 when the lease is over, -2 when the policy did not answer. */
static double act(CURL *curl, const cJSON *task) {
    char path[512], observation[128] = "";
    const char *session = cJSON_GetStringValue(cJSON_GetObjectItem(task, "session"));
    double reward = 0;
    snprintf(path, sizeof path, "%s/generate", session);
    for (int turn = 0; turn < TURNS; turn++) {
        cJSON *body = cJSON_CreateObject(), *reply;
        if (turn) cJSON_AddStringToObject(body, "text", observation);
        long status = post(curl, path, body, &reply);
        const char *answer = cJSON_GetStringValue(cJSON_GetObjectItem(reply, "text"));
        long long value;
        int again = 0;
        if (status == 404 || status == 503)
            reward = -1;
        else if (status == 413 || is_too_long(reply)) /* the session's limits of turns and tokens: the policy's doing */
            reward = 0;
        else if (status != 200 || !answer)
            reward = -2;
        else if ((again = calculate(answer, &value)))
            snprintf(observation, sizeof observation, BEFORE "%lld" AFTER, value);
        else
            reward = is_label(cJSON_GetObjectItem(task, "label"), answer);
        cJSON_Delete(reply);
        if (!again) return reward;
    }
    return 0;
}

int main(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    CURL *curl = curl_easy_init();
    for (;;) {
        cJSON *body = cJSON_CreateObject(), *task, *reply = NULL;
        char path[128];
        cJSON_AddNumberToObject(body, "wait_s", 30);
        long status = post(curl, "/tasks/lease", body, &task);
        if (status == 0) break; /* the trainer is gone */
        if (status == 200) {
            double reward = act(curl, task);
            snprintf(path, sizeof path, "/tasks/%s", cJSON_GetStringValue(cJSON_GetObjectItem(task, "task")));
            body = cJSON_CreateObject();
            if (reward == -2)
                cJSON_AddStringToObject(body, "error", "the policy did not answer");
            else
                cJSON_AddNumberToObject(body, "reward", reward);
            if (reward == -1)
                cJSON_Delete(body);
            else
                post(curl, path, body, &reply);
            cJSON_Delete(reply);
        }
        cJSON_Delete(task);
    }
    curl_easy_cleanup(curl);
    return 0;
}
