/* A ring; a search looks at the first call's id of every block, which is quick beside encoding a conversation. */
#include "serve_replay.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void clear(struct replay_block *b)
{
    for (size_t i = 0; i < b->n_calls; i++) {
        free(b->id[i]);
        free(b->name[i]);
        free(b->arguments[i]);
    }
    free(b->text);
    memset(b, 0, sizeof *b);
}

void replay_init(struct replay *r)
{
    memset(r, 0, sizeof *r);
    (void)pthread_mutex_init(&r->lock, NULL);
}

void replay_deinit(struct replay *r)
{
    for (size_t i = 0; i < REPLAY_BLOCKS_MAX; i++)
        clear(&r->block[i]);
    (void)pthread_mutex_destroy(&r->lock);
}

static char *copy(const char *text, size_t n)
{
    char *c = malloc(n + 1);
    if (c) {
        memcpy(c, text, n);
        c[n] = '\0';
    }
    return c;
}

void replay_keep(struct replay *r, const struct nib_reply *reply, const char *const *id, const char *text, size_t n)
{
    if (reply->n_calls == 0 || reply->n_calls > REPLAY_CALLS_MAX || n > REPLAY_BLOCK_BYTES_MAX)
        return;
    (void)pthread_mutex_lock(&r->lock);
    struct replay_block *b = &r->block[r->next++ % REPLAY_BLOCKS_MAX];
    clear(b);
    bool ok = (b->text = copy(text, n)) != NULL;
    b->n_text = n;
    for (int32_t i = 0; i < reply->n_calls; i++) {
        const struct nib_reply_call *c = &reply->call[i];
        b->id[i] = copy(id[i], strlen(id[i]));
        b->name[i] = copy(c->name.data, c->name.n);
        b->arguments[i] = copy(c->arguments.data, c->arguments.n);
        b->n_calls++;
        ok = ok && b->id[i] && b->name[i] && b->arguments[i];
    }
    if (!ok)
        clear(b);
    (void)pthread_mutex_unlock(&r->lock);
}

static bool is(const char *kept, const char *text, size_t n)
{
    return strlen(kept) == n && memcmp(kept, text, n) == 0;
}

static bool is_block(const struct replay_block *b, const struct nib_past_call *call, size_t n_calls)
{
    if (b->n_calls == 0 || b->n_calls != n_calls)
        return false;
    for (size_t i = 0; i < n_calls; i++)
        if (!is(b->id[i], call[i].id, call[i].n_id) || !is(b->name[i], call[i].name, call[i].n_name) ||
            !is(b->arguments[i], call[i].arguments, call[i].n_arguments))
            return false;
    return true;
}

char *replay_find(struct replay *r, const struct nib_past_call *call, size_t n_calls, size_t *n)
{
    char *text = NULL;
    (void)pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < REPLAY_BLOCKS_MAX && !text; i++)
        if (is_block(&r->block[i], call, n_calls)) {
            text = copy(r->block[i].text, r->block[i].n_text);
            *n = r->block[i].n_text;
        }
    (void)pthread_mutex_unlock(&r->lock);
    return text;
}
