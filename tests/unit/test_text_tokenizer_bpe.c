/* Merging against the definition: random tables of merges in no sensible order, on pieces of all lengths, compared with
 * a plain loop that looks for the pair to merge and merges it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/bpe.h"

enum { MERGES_MAX = 60, PIECE_MAX = 700 };

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % n);
}

static size_t merge_plainly(const struct nib_merge *merge, size_t n_merges, int32_t *id, size_t n)
{
    for (size_t r = 0; r < n_merges;) {
        size_t i = 0;
        while (i + 1 < n && (id[i] != merge[r].left || id[i + 1] != merge[r].right))
            i++;
        if (i + 1 >= n) {
            r++;
            continue;
        }
        id[i] = merge[r].result;
        memmove(&id[i + 1], &id[i + 2], (n - i - 2) * sizeof id[0]);
        n--;
        r = 0; /* the new id may stand in a pair of any rank */
    }
    return n;
}

/* n_letters ids are there at first; a merge makes a new one from two that exist, or one that is made otherwise too:
 * then equal pairs arise out of order. In the end the order is shuffled, unless it is to be that of training. */
static size_t random_merges(struct nib_merge *merge, uint32_t n_letters, uint32_t n_wanted, bool shuffled)
{
    size_t n = 0;
    uint32_t n_ids = n_letters;
    for (uint32_t k = 0; k < n_wanted; k++) {
        bool again = random_below(3) == 0;
        struct nib_merge m = {(int32_t)random_below(n_ids), (int32_t)random_below(n_ids),
                              (int32_t)(again ? random_below(n_ids) : n_ids)};
        bool is_new = true;
        for (size_t i = 0; i < n; i++)
            is_new = is_new && (merge[i].left != m.left || merge[i].right != m.right);
        if (is_new) {
            merge[n++] = m;
            n_ids += !again;
        }
    }
    for (size_t i = n; shuffled && i > 1; i--) {
        size_t j = random_below((uint32_t)i);
        struct nib_merge m = merge[i - 1];
        merge[i - 1] = merge[j];
        merge[j] = m;
    }
    return n;
}

static void same_as_plain_merging(void **state)
{
    (void)state;
    static int32_t got[PIECE_MAX], want[PIECE_MAX];
    struct nib_merge merge[MERGES_MAX];
    size_t n_shorter = 0;
    for (uint32_t round = 0; round < 4000; round++) {
        uint32_t n_letters = 1 + random_below(4);
        size_t n_merges = random_merges(merge, n_letters, random_below(MERGES_MAX + 1), round % 2 == 0);
        struct nib_bpe *b;
        size_t repeated;
        assert_int_equal(nib_bpe_open(merge, n_merges, &b, &repeated), NIB_OK);
        size_t n = random_below(round % 8 == 0 ? PIECE_MAX + 1 : 80), n_got = n;
        for (size_t i = 0; i < n; i++)
            got[i] = want[i] = (int32_t)random_below(n_letters);
        assert_int_equal(nib_bpe_apply(b, got, &n_got), NIB_OK);
        size_t n_want = merge_plainly(merge, n_merges, want, n);
        if (n_got != n_want || memcmp(got, want, n_want * sizeof got[0]) != 0)
            fail_msg("round %u: %zu ids of %u letters with %zu merges: got %zu, wanted %zu or other ids", round, n,
                     n_letters, n_merges, n_got, n_want);
        n_shorter += n_want < n;
        nib_bpe_close(b);
    }
    assert_true(n_shorter > 2000);
}

static void repeated_pair_is_refused(void **state)
{
    (void)state;
    const struct nib_merge merge[] = {{0, 1, 2}, {1, 0, 3}, {0, 1, 4}};
    struct nib_bpe *b;
    size_t repeated = 0;
    assert_int_equal(nib_bpe_open(merge, 3, &b, &repeated), NIB_E_FORMAT);
    assert_int_equal(repeated, 2);
    assert_null(b);
    nib_bpe_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_plain_merging),
        cmocka_unit_test(repeated_pair_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
