/* Byte-pair merging: ids of single bytes in, ids of merged tokens out. */
#ifndef NIB_BPE_H
#define NIB_BPE_H

#include "base/status.h"

/* left followed by right becomes result. Earlier merges go first. */
struct nib_merge {
    int32_t left, right, result;
};

struct nib_bpe;

/* Index the merges merge[0..n) by pair; the order gives the rank. The array is not kept. A pair that occurs twice is
 * NIB_E_FORMAT, with the index of the second in *repeated. Ids are not negative; n is below 2^31. */
enum nib_status nib_bpe_open(const struct nib_merge *merge, size_t n, struct nib_bpe **out, size_t *repeated);
void            nib_bpe_close(struct nib_bpe *b);

/* Merge the piece id[0..*n) in place: again and again the adjacent pair of lowest rank, the leftmost of equals, until
 * no pair has a merge. *n becomes the new count. O(n log n). After NIB_E_MEMORY the ids are unspecified; NIB_E_LIMIT is
 * for more than 2^30 ids. Safe from any thread. */
enum nib_status nib_bpe_apply(const struct nib_bpe *b, int32_t *id, size_t *n);

#endif
