/* Keys, and the choice between replaying, recording and running. */
#include "model/record.h"

#include <assert.h>

/* Beyond this many rows a step is bound by its products, and prompts come in too many sizes to keep them all. */
enum { N_ROWS_RECORDED = 64 };

void nib_record_key_init(struct nib_record_key *k, enum nib_record_part part)
{
    k->n = 0;
    nib_record_key_add(k, (uint64_t)part);
}

void nib_record_key_add(struct nib_record_key *k, uint64_t word)
{
    assert(k->n < NIB_RECORD_KEY_WORDS);
    k->word[k->n++] = word;
}

void nib_record_key_add_pointer(struct nib_record_key *k, const void *p)
{
    nib_record_key_add(k, (uint64_t)(uintptr_t)p);
}

void nib_record_key_add_rows(struct nib_record_key *k, const struct nib_rows *rows)
{
    const void *const pointers[] = {rows->token, rows->pos, rows->seq, rows->seq_start, rows->slot, rows->window_page, rows->entry_page};
    nib_record_key_add(k, (uint64_t)(uint32_t)rows->n_rows << 32 | (uint32_t)rows->n_seqs);
    nib_record_key_add(k, (uint64_t)rows->page_stride);
    nib_record_key_add(k, (uint64_t)(uint32_t)rows->first_pos);
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++)
        nib_record_key_add_pointer(k, pointers[i]);
}

enum nib_status nib_record_run(struct nib_rank *rk, const struct nib_record_key *key, int32_t n_rows,
                               enum nib_status (*work)(struct nib_rank *rk, const void *args), const void *args)
{
    const struct nib_recorder *r = rk->api->recorder;
    bool found;
    if (!r || rk->ops != rk->api->ops || n_rows > N_ROWS_RECORDED)
        return work(rk, args);
    NIB_TRY(r->replay(rk->stream, key, &found));
    if (found)
        return NIB_OK;
    if (!r->begin(rk->stream, key))
        return work(rk, args);
    const enum nib_status status = work(rk, args), end = r->end(rk->stream, key, status == NIB_OK);
    return status == NIB_OK ? end : status;
}
