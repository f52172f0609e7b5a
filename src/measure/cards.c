/* Cards by what is published about them. Rates are dense; where makers state a range, its lower end. */
#include "nibble.h"

static const struct nib_card cards[] = {
    {"b200", "B200", 180, 8000, 9000, 2250},
    {"b300", "B300", 288, 8000, 13000, 2250},
    {"gb300", "GB300", 288, 8000, 15000, 2500},
    /* 188 SMs at 2.6 GHz, an instruction of 16 x 8 x 64 products in 4 clocks; BF16 at an eighth of that. */
    {"rtx-pro-6000", "RTX PRO 6000 Blackwell", 96, 1792, 2000, 250},
    {"spark", "DGX Spark (GB10)", 128, 273, 470, 59},
    {"h200", "H200", 141, 4800, 0, 990},
};

const struct nib_card *nib_card_get(int32_t i)
{
    return i >= 0 && i < (int32_t)(sizeof cards / sizeof *cards) ? &cards[i] : NULL;
}
