/* Parts of the pass that are issued again and again with equal arguments (decoding, drafts, verification), recorded by
 * the backend where it can. A key holds all that the arguments depend on beside what never changes in a rank. */
#ifndef NIB_RECORD_H
#define NIB_RECORD_H

#include "model/forward.h"

enum nib_record_part { NIB_RECORD_TRUNK = 1, NIB_RECORD_MTP, NIB_RECORD_LOGITS };

void nib_record_key_init(struct nib_record_key *k, enum nib_record_part part);
void nib_record_key_add(struct nib_record_key *k, uint64_t word);
void nib_record_key_add_pointer(struct nib_record_key *k, const void *p);
void nib_record_key_add_rows(struct nib_record_key *k, const struct nib_rows *rows);

/* work(rk, args): replayed, recorded or just run; n_rows is what decides whether recording can pay. A wrapped op table
 * sees every op. */
enum nib_status nib_record_run(struct nib_rank *rk, const struct nib_record_key *key, int32_t n_rows,
                               enum nib_status (*work)(struct nib_rank *rk, const void *args), const void *args);

#endif
