/* Small endpoints: models, health, version, metrics, the page. */
#include "serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char serve_page_html[];
extern const size_t        serve_page_html_bytes;

static bool is_served(const struct serve *s, const char *name)
{
    const size_t n = strlen(name);
    if (strcmp(name, s->name) == 0)
        return true;
    for (const char *at = s->other_names; n > 0 && at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && memcmp(at, name, n) == 0)
            return true;
    return false;
}

bool serve_check_model(struct exchange *x, const json_t *body, const char **name)
{
    /* The hosted service's names: clients have them built in. */
    static const char *const aliases[] = {"deepseek-chat", "deepseek-reasoner"};

    *name = x->serve->name;
    if (!field_string(body, "model", name, &x->error))
        return false;
    if (is_served(x->serve, *name) || x->serve->settings->any_model)
        return true;
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcmp(*name, aliases[i]) == 0)
            return true;
    (void)api_fail(&x->error, "model", "model_not_found", "the model '%.80s' is not served here; '%.200s' is", *name,
                   x->serve->name);
    x->error.status = 404;
    return false;
}

static json_t *model_object(const struct serve *s, const char *name, size_t n)
{
    return json_pack("{s:s%, s:s, s:I, s:s, s:s, s:i}", "id", name, n, "object", "model", "created", (json_int_t)s->start_time,
                     "owned_by", "nibble", "root", s->name, "max_model_len", (int)s->n_ctx);
}

/* The body holds what followed the path, if anything. */
void serve_models(struct exchange *x)
{
    const struct serve *s = x->serve;
    if (x->body.n > 0 && strcmp(x->body.data, "/") != 0) {
        if (is_served(s, x->body.data)) {
            exchange_answer(x, model_object(s, x->body.data, x->body.n));
            return;
        }
        (void)api_fail(&x->error, "model", "model_not_found", "the model '%.80s' is not served here", x->body.data);
        x->error.status = 404;
        return;
    }
    json_t *models = json_array();
    (void)json_array_append_new(models, model_object(s, s->name, strlen(s->name)));
    for (const char *at = s->other_names; at && *at; at += strcspn(at, ","), at += *at == ',')
        (void)json_array_append_new(models, model_object(s, at, strcspn(at, ",")));
    exchange_answer(x, json_pack("{s:s, s:o}", "object", "list", "data", models));
}

void serve_health(struct exchange *x)
{
    const bool draining = atomic_load(&x->serve->draining);
    if (atomic_load(&x->serve->ready) && !draining) {
        exchange_answer(x, json_pack("{s:s}", "status", "ok"));
        return;
    }
    (void)api_fail(&x->error, NULL, draining ? "shutting_down" : "loading",
                   draining ? "shutting down" : "loading the model");
    x->error.status = 503;
    x->error.type = "unavailable_error";
}

void serve_version(struct exchange *x)
{
    exchange_answer(x, json_pack("{s:s}", "version", nib_version()));
}

void serve_metrics(struct exchange *x)
{
    struct nib_server_stats stats;
    struct buffer           out = {0};

    nib_server_get_stats(x->serve->engine, &stats);
    metrics_write(&x->serve->metrics, &stats, x->serve->name, &out);
    x->text = out.data;
    x->n_text = out.n;
    x->content_type = "text/plain; version=0.0.4; charset=utf-8";
}

void serve_page(struct exchange *x)
{
    x->text = malloc(serve_page_html_bytes + 1);
    if (!x->text) {
        exchange_answer(x, NULL);
        return;
    }
    memcpy(x->text, serve_page_html, serve_page_html_bytes);
    x->n_text = serve_page_html_bytes;
    x->content_type = "text/html; charset=utf-8";
}
