/* A parsed module: instructions with their operands resolved to places in a warp's register file. Internal to ptxsim.
 *
 * Every value an instruction names, immediate, special register or address of a variable, has a slot: 32 lanes of 4 or 8
 * bytes, or one word of lane bits for a predicate. Slots are counted in 32-bit words from the function's base. */
#ifndef PTX_MODULE_H
#define PTX_MODULE_H

#include "ptxsim/ptx_ops.h"
#include "ptxsim/ptxsim.h"

enum px_type {
    PX_NONE, PX_PRED, PX_B8, PX_B16, PX_B32, PX_B64, PX_B128, PX_U8, PX_U16, PX_U32, PX_U64, PX_S8, PX_S16, PX_S32, PX_S64,
    PX_F16, PX_F16X2, PX_BF16, PX_BF16X2, PX_TF32, PX_F32, PX_F64, PX_E4M3, PX_E5M2, PX_E2M1, PX_E2M3, PX_E3M2, PX_UE8M0,
    PX_UE4M3, PX_E4M3X2, PX_E5M2X2, PX_E2M1X2, PX_E2M3X2, PX_E3M2X2, PX_UE8M0X2, PX_N_TYPES
};

/* Bytes of a value of this type; 0 for PX_NONE and PX_PRED. E2M1X2 is one byte. */
uint32_t    px_type_bytes(enum px_type t);
const char *px_type_name(enum px_type t);

enum px_space { PX_GENERIC, PX_GLOBAL, PX_SHARED, PX_LOCAL, PX_PARAM, PX_CONST, PX_FRAME /* parameters of calls */ };

#define PX_NO_ROUNDING 255

enum px_kind { PX_REG, PX_SINK, PX_ADDRESS, PX_FRAME_ADDRESS };

struct px_operand {
    uint32_t slot;
    int32_t  offset; /* of an address */
    uint8_t  kind, width; /* bytes of the register: 0 predicate, 2, 4, 8, 16 */
    bool     negated;     /* !%p, -%r */
    bool     constant;    /* an immediate: `value` */
    uint64_t value;
};

struct px_instruction {
    uint16_t op;
    uint8_t  type[5];       /* px_type in the order written */
    uint8_t  space, compare, join, vector, n_groups;
    uint8_t  rounding;      /* a px_mod, or PX_NO_ROUNDING */
    bool     ftz, sat, cc, full; /* full: all lanes of the warp must be here (.aligned) */
    bool     guarded, guard_not, dual;
    uint8_t  group[8];      /* operands of each written operand: 1, or the length of a vector */
    uint32_t guard;         /* slot */
    uint32_t line, target;  /* target: instruction of a branch, function of a call, table of brx */
    uint64_t mods[4];       /* bits by px_mod */
    const struct px_operand *o;
    uint32_t first_operand, n_operands;
};

static inline bool px_has(const struct px_instruction *i, enum px_mod m)
{
    return i->mods[m / 64] >> (m % 64) & 1;
}

/* A slot that the machine fills. */
enum px_fill { PX_FILL_VALUE, PX_FILL_SPECIAL, PX_FILL_SHARED, PX_FILL_DYNAMIC, PX_FILL_PARAM, PX_FILL_LOCAL };
struct px_constant {
    uint32_t slot;
    uint8_t  width, fill;
    uint64_t value; /* or px_special, or an offset; address of a module variable */
};

enum px_special {
    PX_TID, PX_NTID = PX_TID + 3, PX_CTAID = PX_NTID + 3, PX_NCTAID = PX_CTAID + 3, PX_CLUSTERID = PX_NCTAID + 3,
    PX_NCLUSTERID = PX_CLUSTERID + 3, PX_CLUSTER_CTAID = PX_NCLUSTERID + 3, PX_CLUSTER_NCTAID = PX_CLUSTER_CTAID + 3,
    PX_CLUSTER_CTARANK = PX_CLUSTER_NCTAID + 3, PX_CLUSTER_NCTARANK, PX_LANEID, PX_WARPID, PX_NWARPID, PX_SMID, PX_NSMID,
    PX_GRIDID, PX_LANEMASK_EQ, PX_LANEMASK_LT, PX_LANEMASK_LE, PX_LANEMASK_GT, PX_LANEMASK_GE, PX_DYNAMIC_SMEM,
    PX_TOTAL_SMEM, PX_CLOCK, PX_N_SPECIALS
};

struct px_param { uint32_t offset, bytes; };

struct px_function {
    char               *name;
    bool                entry, defined;
    uint32_t            begin, end;            /* instructions */
    uint32_t            n_words, base;         /* of registers */
    uint32_t            local_bytes, local_base, frame_bytes, frame_base;
    uint32_t            shared_bytes, shared_align; /* static */
    uint32_t            dynamic_align;
    uint32_t            param_bytes;           /* of an entry */
    uint32_t            n_params, n_returns;
    struct px_param     param[64], result[4];
    struct px_constant *constant;
    uint32_t            n_constants, max_constants;
    uint32_t            max_threads, cluster[3];
};

struct px_variable {
    char    *name;
    uint8_t *memory; /* of .global and .const */
    size_t   bytes;
    bool     constant;
};

struct px_module {
    char                  *text; /* a copy, for messages */
    size_t                 bytes;
    struct px_instruction *code;
    uint32_t               n_code, max_code;
    struct px_operand     *operand;
    uint32_t               n_operands, max_operands;
    struct px_function    *function;
    uint32_t               n_functions, max_functions;
    uint32_t              *table; /* brx targets: a count, then instructions */
    uint32_t               n_table, max_table;
    struct px_variable    *variable;
    uint32_t               n_variables, max_variables;
    uint32_t               n_words, local_bytes, frame_bytes; /* of a warp, over all functions */
};

/* Fills op, types, modifiers and fields from the opcode; false with a sentence in `error`. */
bool px_decode(struct px_instruction *i, const char *opcode, size_t n, char *error, size_t error_bytes);
/* Least and most written operands of an opcode. */
void px_operand_limits(enum px_op op, int *least, int *most);
const char *px_op_name(enum px_op op);
/* The source line `line` of the module, trimmed, into out. */
void px_module_line(const struct px_module *m, uint32_t line, char *out, size_t n);

#endif
