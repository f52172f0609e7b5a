/* nibble: DeepSeek-V4 inference on native NVFP4 weights.
 *
 * The model in ten lines:
 *   nib_model   a checkpoint folder, opened and checked: config, tensors, formats. Nothing is computed.
 *   nib_engine  a model's weights packed on one backend ("cpu", "cuda", "ref"), and memory for sequences.
 *   nib_seq     one conversation's state on an engine: append by stepping, truncate, fork.
 *   nib_step    one forward pass over rows of any number of sequences: prefill, chunked prefill, decode and
 *               verification are the same call. A sequence's logits do not depend, bit for bit, on how its tokens
 *               were cut into steps, on its neighbours in the batch, or on the number of threads.
 *   nib_generate  the usual loop: feed a prompt, sample, call back with every token.
 *   nib_tokenizer, nib_chat  text <-> ids.
 *
 * Every call that can fail returns a status; those where a person will read the reason also fill a nib_error (which
 * may be NULL). The library never exits, prints, or reads the environment. Objects close with NULL accepted.
 * Unless a call says otherwise, an object is used by one thread at a time; different objects are independent, except
 * that sequences share their engine. */
#ifndef NIBBLE_H
#define NIBBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_VERSION_MAJOR 0
#define NIB_VERSION_MINOR 1
#define NIB_VERSION_PATCH 0

const char *nib_version(void); /* "0.1.0" */

/* ---- Status --------------------------------------------------------------------------------------------------- */

enum nib_status {
    NIB_OK = 0,
    NIB_E_ARGUMENT,    /* a value given by the caller is not allowed */
    NIB_E_MEMORY,      /* host or device memory is used up */
    NIB_E_IO,          /* the operating system refused a file operation */
    NIB_E_FORMAT,      /* a file or text does not follow its format */
    NIB_E_UNSUPPORTED, /* well-formed, but nothing this build can run */
    NIB_E_LIMIT,       /* the context, the pool, or a number of sequences is full */
    NIB_E_STATE,       /* not possible in the object's present state */
    NIB_E_NUMERIC,     /* NaN where a number is needed */
    NIB_E_DEVICE,      /* the device failed; the engine must be reopened */
    NIB_E_CANCELLED,   /* a callback asked to stop */
    NIB_E_TIME         /* a time limit passed */
};

const char *nib_status_name(enum nib_status s); /* "ok", "argument", ... */

struct nib_error {
    enum nib_status status;
    char            text[1024]; /* names the thing, the value found and the value wanted */
};

/* ---- Options -------------------------------------------------------------------------------------------------- */

enum nib_act_quant { NIB_ACT_QUANT_AUTO, NIB_ACT_QUANT_NONE, NIB_ACT_QUANT_FP8, NIB_ACT_QUANT_NVFP4,
                     NIB_ACT_QUANT_INT8 };
enum nib_kv        { NIB_KV_F32, NIB_KV_BF16, NIB_KV_FP8, NIB_KV_NVFP4 };
/* What is rounded besides what act_quant and kv say: MODEL nothing (rows between ops are fp32); BF16 rows between ops, to
 * bf16; RELEASE whatever the published inference code rounds. AUTO is BF16 on a GPU, whose tensor cores multiply such
 * rows, else MODEL. */
enum nib_numerics  { NIB_NUMERICS_MODEL, NIB_NUMERICS_RELEASE, NIB_NUMERICS_BF16, NIB_NUMERICS_AUTO };

struct nib_options {
    const char        *backend;    /* "auto" (a usable card, or else the processor), "cpu", "ref", "cuda" where built
                                      in */
    int32_t            n_threads;  /* 0: all cores */
    int32_t            n_ctx;      /* tokens a sequence may hold; 0: the smaller of the model's and 8192 */
    int32_t            n_seqs_max; /* sequences open at once; 1 */
    int32_t            n_rows_max; /* rows of one step; 0: 256, on a GPU 2048 */
    int32_t            n_rollback; /* tokens that truncate can always take back; 16 */
    int32_t            n_kv_pages; /* pages of 128 tokens for all sequences together; 0: full contexts for each */
    enum nib_act_quant act_quant;  /* auto: int8 on the cpu backend, but for NEON without dot products; else none */
    enum nib_kv        kv;         /* bf16 */
    enum nib_numerics  numerics;   /* auto; release sets act_quant fp8 and kv fp8 and refuses others */
    bool               mtp;        /* load the MTP block and keep its state; false */
    int32_t            n_drafts;   /* most tokens that may be drafted in a step for a sequence, 0 to 8; above 0 sets
                                      mtp; 0 */
    uint32_t           cpu_mask;   /* CPU features that may be used; ~0 */
    const char        *cpu;        /* level of the cpu backend's kernels: "c", "avx2", "avx512", "vnni", "bf16", "neon"
                                      or "dotprod", refused where the machine lacks it; NULL: the machine's best */
    /* cuda: file in which it is kept what the self-test of kernels that have not run on hardware yet found on this card
     * with this driver and program, so that it does not run at every open. Made where it is missing, with its
     * folders; where it is damaged, not ours or cannot be written, the test runs and nothing fails. NULL: it always
     * runs. */
    const char        *selftest_file;
    /* For finding faults; docs/tracing.md. Both make steps many times slower. */
    const char        *trace;      /* file that gets a line of JSON for every op; NULL */
    const char        *compare;    /* "ref": run every op there too, and fail at the first result out of bounds; NULL */
    /* Called while weights load, done of total in bytes; return false to cancel. May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *progress_user;
};

void nib_options_init(struct nib_options *o);

/* ---- Model ---------------------------------------------------------------------------------------------------- */

struct nib_model;

/* Open a checkpoint folder and check it: config, shard files, every tensor's shape, type and range. Tensor data
 * stays on disk (mapped). *out is NULL on failure. */
enum nib_status nib_model_open(const char *dir, struct nib_model **out, struct nib_error *err);
void            nib_model_close(struct nib_model *m); /* after every engine of it is closed */

/* Facts; valid until close. Counts are of weights, not bytes. */
struct nib_model_info {
    const char *dir;
    const char *layout; /* "official" or "hf" names */
    int32_t     dim, n_layers, n_heads, head_dim, n_rot, q_rank, n_groups, o_rank, n_window, n_hc;
    int32_t     n_experts, top_k, n_inner, n_hash_layers, n_index_heads, index_dim, index_top_k;
    int32_t     vocab, n_ctx_max, bos_id, eos_id;
    int32_t     n_swa_layers, n_csa_layers, n_hca_layers;
    bool        has_mtp;
    uint64_t    n_params, n_params_active; /* active: per token, head counted, embedding not, without MTP */
    uint64_t    stored_bytes;              /* of all tensors in use */
    int64_t     n_tensors, n_tensors_used; /* in the files; of those, read */
    uint64_t    bytes_per_token;           /* weight bytes read per decoded token at batch 1 */
    float       temperature, top_p;        /* generation_config.json; 1, 1 if absent */
    bool        greedy;                    /* do_sample false there */
};
const struct nib_model_info *nib_model_get_info(const struct nib_model *m);

/* Tensors in use, in model order. */
struct nib_tensor_info {
    const char *name;   /* as in the checkpoint */
    const char *file;
    const char *family; /* "experts", "shared", "attention", "compressor", "indexer", "router", "hc", "norm", "embed",
                           "head", "mtp" */
    const char *format; /* "nvfp4", "mxfp4", "fp8", "bf16", "f32", "i64" */
    int64_t     shape[3]; /* of the decoded tensor */
    int32_t     n_dims;
    uint64_t    bytes;  /* with its scales */
};
int64_t nib_model_n_tensors(const struct nib_model *m);
bool    nib_model_get_tensor(const struct nib_model *m, int64_t i, struct nib_tensor_info *out); /* false: no such i */

/* What an engine with these options would take, computed from headers alone. */
struct nib_memory_plan {
    uint64_t weights_bytes, kv_bytes, workspace_bytes, total_bytes;
    uint64_t available_bytes; /* of the backend's memory at the time of asking; 0: unknown */
    uint64_t kv_bytes_per_seq;
    const char *backend; /* that "auto" stands for; static */
    int32_t  n_ctx, n_seqs_max, n_rows_max; /* as the engine would have them */
};
enum nib_status nib_model_plan(const struct nib_model *m, const struct nib_options *o, struct nib_memory_plan *out,
                               struct nib_error *err);

/* What a backend can run on: the processor for "ref" and "cpu", each card for "cuda". */
struct nib_device_info {
    char     name[128];       /* as the device calls itself; "" where it does not say */
    uint64_t total_bytes, available_bytes; /* of its memory, at the time of asking; 0: unknown */
    bool     exact;           /* available_bytes is what can be taken, not an estimate: an engine that needs more is
                                 refused */
    bool     usable;          /* this build can run there */
    char     why_not[160];    /* a sentence; "" if usable */
    char     note[160];       /* what else to know about it, a sentence; "" if nothing */
    char     failed[400];     /* the kernel that failed its self-test when this process opened an engine there, how, and
                                 what runs in its place, a sentence; "" if none did */
};
/* Device i of a backend, from 0. NIB_E_ARGUMENT behind the last one and for an unknown backend; NIB_E_UNSUPPORTED, with
 * the reason, if there is none (no driver, no card). */
enum nib_status nib_device_get(const char *backend, int32_t i, struct nib_device_info *out, struct nib_error *err);

/* ---- Engine, sequences, steps --------------------------------------------------------------------------------- */

struct nib_engine;
struct nib_seq;

enum nib_status nib_engine_open(struct nib_model *m, const struct nib_options *o, struct nib_engine **out,
                                struct nib_error *err);
void            nib_engine_close(struct nib_engine *e); /* after all of its sequences are closed */
const struct nib_options *nib_engine_options(const struct nib_engine *e); /* with auto values resolved */

enum nib_status nib_seq_open(struct nib_engine *e, struct nib_seq **out, struct nib_error *err);
void            nib_seq_close(struct nib_seq *s);
int32_t         nib_seq_length(const struct nib_seq *s); /* tokens held */

/* Drop the tokens from position `length` on. Always possible for the last n_rollback tokens and for 0; further back
 * only where the state is still held, else NIB_E_STATE and nothing changed (go back further by a fork kept from
 * then). */
enum nib_status nib_seq_truncate(struct nib_seq *s, int32_t length);

/* A second sequence with the same tokens; pages are shared until written. This is also the snapshot: keep the fork, and
 * fork it again to restore. Counts towards n_seqs_max. */
enum nib_status nib_seq_fork(struct nib_seq *s, struct nib_seq **out, struct nib_error *err);

/* Write all that a sequence holds to a file, which appears under its name only when complete and on disk; and read it
 * back into a new sequence, which continues bit for bit as the saved one would have (on the same backend). It can be
 * cut back by the saving engine's n_rollback. The tokens are not in the file. Loading refuses, by name: truncated or
 * damaged files (NIB_E_FORMAT); files of another format version, another model, or other kv, act_quant, numerics or mtp
 * options (NIB_E_UNSUPPORTED); more tokens than the context holds (NIB_E_LIMIT). Whoever can write such a file decides
 * what the model has seen: load only your own. docs/sessions.md. */
enum nib_status nib_seq_save(struct nib_seq *s, const char *path, struct nib_error *err);
enum nib_status nib_seq_load(struct nib_engine *e, const char *path, struct nib_seq **out, struct nib_error *err);

/* One step's rows: each sequence's new tokens, contiguous, continuing at its present length. */
struct nib_batch {
    int32_t                n_rows;     /* at most n_rows_max */
    int32_t                n_seqs;
    int32_t                n_logits;
    const int32_t         *token;      /* [n_rows] */
    const int32_t         *seq_start;  /* [n_seqs + 1], first row of each; last is n_rows; no sequence empty */
    struct nib_seq *const *seq;        /* [n_seqs] distinct, of this engine */
    const int32_t         *logits_row; /* [n_logits] ascending rows whose logits are wanted */
};

/* Run it. logits: [n_logits][vocab] or NULL. mtp_logits (only with options.mtp, else NULL): likewise, of the MTP
 * block's pair whose token is that row's: the streams before it and itself, a guess at the token after the next one; a
 * row at position 0 has none and gets NaN. On failure the sequences are as before, except after NIB_E_DEVICE. */
enum nib_status nib_step(struct nib_engine *e, const struct nib_batch *b, float *logits, float *mtp_logits,
                         struct nib_error *err);

/* ---- Generation ----------------------------------------------------------------------------------------------- */

/* Order of application and exact meaning: docs/sampling.md. */
struct nib_sampling {
    float    temperature; /* 0: greedy, ties to the lowest id; 1 */
    float    top_p;       /* (0, 1]; 1 */
    float    min_p;       /* [0, 1]; 0 */
    int32_t  top_k;       /* 0: off */
    float    repetition, presence, frequency; /* 1, 0, 0 */
    uint64_t seed;        /* the same seed draws the same tokens from the same logits */
};
void nib_sampling_init(struct nib_sampling *s);
enum nib_status nib_sampling_check(const struct nib_sampling *s, struct nib_error *err); /* or NIB_E_ARGUMENT */

#define NIB_DRAFTS_AUTO (-1)

struct nib_generate_args {
    struct nib_seq     *seq;       /* continues at its present length */
    const int32_t      *prompt;    /* [n_prompt] appended first; at least one */
    int32_t             n_prompt;
    const int32_t      *before;    /* [n_before] tokens that the sequence holds already, for the penalties; not NULL if
                                      n_before > 0 */
    int32_t             n_before;
    int32_t             n_max;     /* tokens to generate at most; 0: until the context is full */
    const int32_t      *stop_id;   /* [n_stop] end generation; not NULL if n_stop > 0 */
    int32_t             n_stop;
    struct nib_sampling sampling;
    int32_t             n_drafts;  /* to draft in a step, at most options.n_drafts; 0: none; NIB_DRAFTS_AUTO: as many
                                      as pay, by the clock. docs/drafts.md */
    /* Each sampled token in order, the stopping one included; return false to stop there. */
    bool (*on_token)(void *user, int32_t token, float logprob);
    /* Prompt tokens done so far; return false to cancel. May be NULL. */
    bool (*on_prefill)(void *user, int32_t done, int32_t total);
    void               *user;
};
enum nib_stop_reason { NIB_STOP_ID, NIB_STOP_LENGTH, NIB_STOP_CALLBACK };
struct nib_generate_result {
    enum nib_stop_reason reason;
    int32_t              n_prompt, n_generated;
    int32_t              n_steps;                /* of decoding */
    int32_t              n_drafted, n_accepted;  /* tokens */
    double               prefill_s, decode_s;
};
enum nib_status nib_generate(struct nib_engine *e, const struct nib_generate_args *a, struct nib_generate_result *r,
                             struct nib_error *err);

/* ---- Tokenizer ------------------------------------------------------------------------------------------------ */

struct nib_tokenizer;

/* Read tokenizer.json (a file, or the folder that holds it). Encoding and decoding are safe from any thread. */
enum nib_status nib_tokenizer_open(const char *path, struct nib_tokenizer **out, struct nib_error *err);
void            nib_tokenizer_close(struct nib_tokenizer *t);
int32_t         nib_tokenizer_n_ids(const struct nib_tokenizer *t); /* largest id + 1 */
int32_t         nib_tokenizer_find(const struct nib_tokenizer *t, const char *text); /* id of an added token; -1 */

struct nib_ids {
    int32_t *id; /* owned; free with nib_ids_free */
    size_t   n;
};
void nib_ids_free(struct nib_ids *ids);

/* Byte range [start, end) in which added tokens are plain text. */
struct nib_range {
    size_t start, end;
};

/* Text (any bytes) to ids; nothing added in front or behind. Added tokens are recognised except inside `literal`
 * (n_literal ascending ranges, may be NULL). */
enum nib_status nib_tokenizer_encode(const struct nib_tokenizer *t, const char *text, size_t n_bytes,
                                     const struct nib_range *literal, size_t n_literal, struct nib_ids *out,
                                     struct nib_error *err);

struct nib_text {
    char  *data; /* owned, NUL after n bytes; free with nib_text_free */
    size_t n;
};
void nib_text_free(struct nib_text *t);

/* Ids to valid UTF-8; invalid sequences become U+FFFD. skip_special leaves out tokens flagged special. Ids that have no
 * token are an error. */
enum nib_status nib_tokenizer_decode(const struct nib_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                                     struct nib_text *out, struct nib_error *err);

/* The bytes of one id, not necessarily whole characters; NULL if it has no token. Valid until close. */
const char *nib_tokenizer_bytes(const struct nib_tokenizer *t, int32_t id, size_t *n, bool *special);

/* Streaming decode: never emits part of a character. The concatenation of all pieces equals nib_tokenizer_decode. */
struct nib_utf8_stream {
    unsigned char pending[4];
    int32_t       n_pending;
};
void nib_utf8_stream_init(struct nib_utf8_stream *s);
/* Feed bytes; what became complete is appended to out (grown as needed). */
enum nib_status nib_utf8_stream_push(struct nib_utf8_stream *s, const char *bytes, size_t n, struct nib_text *out);
enum nib_status nib_utf8_stream_end(struct nib_utf8_stream *s, struct nib_text *out);

/* ---- Chat ----------------------------------------------------------------------------------------------------- */

enum nib_chat_profile { NIB_CHAT_AUTO, NIB_CHAT_GA, NIB_CHAT_PREVIEW };
enum nib_effort { NIB_EFFORT_NONE, NIB_EFFORT_LOW, NIB_EFFORT_HIGH, NIB_EFFORT_MAX };

/* A call as it stands in a conversation; texts are not NUL-terminated. */
struct nib_past_call {
    const char *id, *name, *arguments;
    size_t      n_id, n_name, n_arguments;
};

struct nib_chat_options {
    enum nib_chat_profile profile;    /* not AUTO here: see nib_chat_profile_detect */
    bool                  thinking;
    enum nib_effort       effort;     /* only with thinking */
    bool                  drop_thinking; /* true: reasoning of earlier turns is left out */
    bool                  add_bos;    /* true */
    bool                  add_generation_prompt; /* false = exactly the reference; true: an assistant turn is opened
                                                    where the reference leaves none */
    /* Asked for every turn with calls, all of which have string ids: the text the model itself wrote for exactly these
     * calls, of *n bytes, markers counting, to be read again as it was; NULL: it is rendered anew. Valid until the next
     * question. May be NULL. */
    const char *(*replay)(void *user, const struct nib_past_call *call, size_t n_calls, size_t *n);
    void *replay_user;
};
void nib_chat_options_init(struct nib_chat_options *o);

/* Which profile a checkpoint folder wants (reads encoding/encoding_dsv4.py as text and config.json). *guessed is true
 * where nothing said so. Refuses V4.1 encoders. */
enum nib_status nib_chat_profile_detect(const char *dir, enum nib_chat_profile *out, bool *guessed,
                                        struct nib_error *err);

struct nib_prompt {
    struct nib_text   text;
    struct nib_range *content; /* [n_content] ranges that came from the messages, for nib_tokenizer_encode's literal */
    size_t            n_content;
};
void nib_prompt_free(struct nib_prompt *p);

/* Render messages (JSON text: an array of message objects, OpenAI style) and request-level tools (JSON array or NULL)
 * to the prompt. context: earlier messages, already encoded, or NULL. */
enum nib_status nib_chat_encode(const struct nib_chat_options *o, const char *messages, const char *tools,
                                const char *context, struct nib_prompt *out, struct nib_error *err);

/* ---- Parsing generated text ------------------------------------------------------------------------------------- */

/* What a model writes after an encoded prompt, taken apart as it arrives. Text is decoded bytes in pieces of any size,
 * markers and all, without the prompt. No event splits a character, a JSON escape, or holds part of a marker. Calls
 * that a text's sudden end makes void may have been announced by then; the message leaves them out. */
enum nib_chat_event_kind {
    NIB_CHAT_REASONING,  /* text: more of the reasoning */
    NIB_CHAT_CONTENT,    /* text: more of the answer */
    NIB_CHAT_CALL_BEGIN, /* text: name of the function */
    NIB_CHAT_ARGUMENTS,  /* text: more of the call's JSON object */
    NIB_CHAT_CALL_END
};
struct nib_chat_event {
    enum nib_chat_event_kind kind;
    int32_t                  call; /* which call, from 0; -1 for text */
    const char              *text; /* [n] UTF-8, valid during the callback */
    size_t                   n;
};

struct nib_chat_parser_options {
    bool thinking; /* the prompt ended in <think> */
    bool tools;    /* calls are looked for; false: their markup is text */
    void (*on_event)(void *user, const struct nib_chat_event *event); /* may be NULL */
    void *user;
};
void nib_chat_parser_options_init(struct nib_chat_parser_options *o); /* all off */

enum nib_chat_end    { NIB_CHAT_END_STOP, NIB_CHAT_END_LENGTH }; /* an end or stop token or string; cut by a limit */
enum nib_chat_finish { NIB_CHAT_FINISH_STOP, NIB_CHAT_FINISH_LENGTH, NIB_CHAT_FINISH_TOOL_CALLS };

struct nib_reply_call {
    struct nib_text name, arguments; /* a JSON object */
};
struct nib_reply {
    struct nib_text       reasoning, content;
    struct nib_reply_call *call; /* [n_calls] */
    int32_t               n_calls;
    enum nib_chat_finish  finish;
};
void nib_reply_free(struct nib_reply *m);

struct nib_chat_parser;

/* Options are copied. Errors of all of these: memory; use after the end. */
enum nib_status nib_chat_parser_open(const struct nib_chat_parser_options *o, struct nib_chat_parser **out,
                                     struct nib_error *err);
void            nib_chat_parser_close(struct nib_chat_parser *p);
enum nib_status nib_chat_parser_push(struct nib_chat_parser *p, const char *bytes, size_t n, struct nib_error *err);
enum nib_status nib_chat_parser_end(struct nib_chat_parser *p, enum nib_chat_end end, struct nib_error *err);

bool nib_chat_parser_done(const struct nib_chat_parser *p); /* generation should stop: nothing more will be read */
bool nib_chat_parser_in_reasoning(const struct nib_chat_parser *p);
bool nib_chat_parser_in_calls(const struct nib_chat_parser *p);

/* Everything, after the end; NULL before it. Valid until close. */
const struct nib_reply *nib_chat_parser_reply(const struct nib_chat_parser *p);

/* Append the text of the block of calls as it was written, from the blank line or marker that opens it to the one that
 * closes it. NIB_E_STATE if there is no closed block. */
enum nib_status nib_chat_parser_block(const struct nib_chat_parser *p, struct nib_text *out);

/* A whole text at once. The caller frees *out, which is empty on failure. */
enum nib_status nib_chat_parse(const struct nib_chat_parser_options *o, const char *text, size_t n,
                               enum nib_chat_end end, struct nib_reply *out, struct nib_error *err);

/* Stop strings in a text that arrives in pieces. Where the first one begins and which it is; n and n_stop if there is
 * none. Of strings that begin at one place the first of the list. Empty strings never match. */
size_t nib_stop_find(const char *text, size_t n, const char *const *stop, size_t n_stop, size_t *which);
/* Bytes at the end of text that could still become one, to be held back. */
size_t nib_stop_tail(const char *text, size_t n, const char *const *stop, size_t n_stop);

/* ---- Serving ---------------------------------------------------------------------------------------------------- */

/* Many requests on one engine. A thread of the server's own joins them into steps: each running request decodes in
 * every step, prompts are read in pieces between, and beginnings of sequences are kept and used again. What a request
 * gets does not depend, bit for bit, on any of that. From open to close the engine belongs to the server; nothing else
 * may step it.
 *
 * Requests are submitted and cancelled from any thread. Callbacks run on the server's thread, one at a time, and hold
 * up every request: they must be quick and must not call nib_server_close. */
struct nib_server;
struct nib_request;

struct nib_server_options {
    int32_t n_running_max; /* requests in a step, at most the engine's n_seqs_max: what it has more are beginnings kept;
                              8 */
    int32_t n_waiting_max; /* more are refused; 256 */
    int32_t n_prefill_max; /* prompt tokens of one step; fewer where running requests would wait too long; 512 */
    bool    reuse;         /* keep beginnings; true */
    int32_t n_drafts;      /* to draft in a step for each request, at most the engine's n_drafts, or NIB_DRAFTS_AUTO:
                              as many as pay, by the clock. Changes no result at any temperature; 0. docs/drafts.md */
    void  (*on_told)(void *user); /* on the server's thread, when what a step brought was told to its requests, and
                                     before a step what else had ended: to wake who sends it on; NULL: nothing */
    void   *user;                 /* on_told's */
};
void nib_server_options_init(struct nib_server_options *o);

enum nib_status nib_server_open(struct nib_engine *e, const struct nib_server_options *o, struct nib_server **out,
                                struct nib_error *err);
/* Cancels what still runs, and returns when all of it has ended; from then on only submitting, which fails, and asking
 * for stats are possible. Not from a callback. */
void            nib_server_stop(struct nib_server *s);
/* Stops it if it was not. Before the engine is closed; not from a callback. */
void            nib_server_close(struct nib_server *s);
/* From now on submitting fails with NIB_E_STATE; what was submitted goes on. From any thread. */
void            nib_server_drain(struct nib_server *s);

struct nib_drawn_token {
    int32_t        id;
    int32_t        index;       /* of the tokens generated, from 0 */
    float          logprob;     /* of the raw softmax */
    int32_t        n_top;       /* of the likeliest tokens, descending, equals by lower id */
    const int32_t *top_id;      /* [n_top], valid during the callback */
    const float   *top_logprob; /* [n_top] */
};

/* What a request's on_token may ask for. */
struct nib_next {
    bool           stop;      /* end the request here */
    const int32_t *allowed;   /* [n_allowed] ids one of which the next token must be; read before the next call */
    int32_t        n_allowed; /* 0: any */
};

struct nib_logit_bias {
    int32_t id;
    float   bias; /* -INFINITY bans the token */
};

struct nib_request_result {
    enum nib_status      status; /* NIB_E_CANCELLED, NIB_E_TIME, or why the request failed */
    enum nib_stop_reason reason; /* with NIB_OK */
    int32_t              n_prompt, n_cached, n_generated; /* n_cached: tokens of the prompt that were kept from
                                                             before */
    int32_t              n_preempted;                     /* times it had to give up its place */
    bool                 was_run;                         /* it did not only wait */
    double               queue_s, first_token_s, total_s; /* since it was submitted: until run, until a token, until the
                                                             end */
};

struct nib_request_args {
    const int32_t              *prompt;  /* [n_prompt] at least one; copied, as are the arrays below */
    int32_t                     n_prompt;
    int32_t                     n_max;   /* tokens to generate; 0: until the context is full */
    int32_t                     n_min;   /* stop ids are not drawn before that many */
    const int32_t              *stop_id; /* [n_stop] */
    int32_t                     n_stop;
    struct nib_sampling         sampling;
    const struct nib_logit_bias *bias;   /* [n_bias] */
    int32_t                     n_bias;
    int32_t                     n_top;   /* likeliest tokens told with each; at most 20 */
    const int32_t              *allowed; /* [n_allowed] as in struct nib_next, for the first token; not copied */
    int32_t                     n_allowed;
    /* Seconds since it was submitted; 0: any time. Still waiting after the first: NIB_E_TIME. After the second:
     * NIB_E_TIME without a token, else its end, NIB_STOP_LENGTH. */
    double                      wait_s_max, total_s_max;
    uint64_t                    salt;    /* kept beginnings are shared among requests of one salt only */
    void (*on_token)(void *user, const struct nib_drawn_token *token, struct nib_next *next);
    void (*on_end)(void *user, const struct nib_request_result *result); /* exactly once for each submitted request,
                                                                            last */
    void *user; /* must live until then */
};

/* NIB_E_LIMIT: too many wait, or the request can never fit; NIB_E_STATE: draining; NIB_E_DEVICE: it failed earlier;
 * NIB_E_ARGUMENT. on_end is not called on failure. */
enum nib_status nib_server_submit(struct nib_server *s, const struct nib_request_args *a, struct nib_request **out,
                                  struct nib_error *err);
void            nib_request_cancel(struct nib_request *r); /* takes effect before the next step */
void            nib_request_close(struct nib_request *r);  /* gives up the handle; a request that runs goes on */

#define NIB_SERVER_N_BUCKETS 14
struct nib_server_stats {
    int32_t  n_running, n_waiting, n_running_max, n_snapshots, n_snapshots_max;
    int32_t  n_pages, n_pages_used; /* of KV entries */
    uint64_t n_prompt_tokens, n_generated_tokens, n_prefix_queries, n_prefix_hits; /* tokens */
    uint64_t n_preemptions, n_steps, n_step_rows;
    uint64_t n_drafts, n_draft_tokens, n_accepted_tokens; /* times that a request drafted; tokens */
    uint64_t step_rows[NIB_SERVER_N_BUCKETS]; /* steps of at most 1, 8, 16, 32, ... 16384 rows; last: more */
};
void nib_server_get_stats(struct nib_server *s, struct nib_server_stats *out); /* from any thread */

/* NIB_OK, or NIB_E_DEVICE and what failed: all requests have ended or end with that status, new ones are refused, and
 * only an engine opened anew, in a process of its own for a GPU, works again. From any thread; on_told is called
 * after it changes. */
enum nib_status nib_server_failure(struct nib_server *s, struct nib_error *err);

/* ---- Quantise -------------------------------------------------------------------------------------------------- */

/* Which matrices become NVFP4; docs/quantize.md lists them. All else is copied byte for byte, except that with the last
 * two presets an FP8 o_a projection becomes BF16 (exact). */
enum nib_quant_preset { NIB_QUANT_EXPERTS, NIB_QUANT_FULL, NIB_QUANT_FULL_HEAD };

/* How block scales are chosen where the source is not FP4 already (MXFP4 is cast exactly, NVFP4 kept). AUTO is MSE
 * without weights. MSE with a calibration text weighs errors by the inputs' mean squares; GPTQ needs one. */
enum nib_quant_method { NIB_QUANT_AUTO, NIB_QUANT_ABSMAX, NIB_QUANT_4OVER6, NIB_QUANT_MSE, NIB_QUANT_GPTQ };

enum nib_quant_layout { NIB_QUANT_LAYOUT_KEEP, NIB_QUANT_LAYOUT_HF, NIB_QUANT_LAYOUT_OFFICIAL };

struct nib_quantize_progress {
    const char *what;       /* "planning", "calibrating", "converting", "verifying" */
    const char *tensor;     /* being worked on; may be NULL */
    uint64_t    done_bytes; /* source + destination bytes */
    uint64_t    total_bytes;
};

struct nib_quantize_options {
    enum nib_quant_preset preset;
    enum nib_quant_method method;
    enum nib_quant_layout layout;      /* spelling of tensor names */
    const char           *include;     /* comma-separated globs of matrix names (without ".weight"), added; NULL */
    const char           *exclude;     /* taken out again; NULL */
    const char           *calibrate;   /* .jsonl file of rows with "ids", "prompt_ids", "text" or "prompt"; NULL */
    int32_t               n_threads;   /* 0: all cores; changes no byte of the result */
    uint64_t              memory_bytes; /* working memory, at least 64 MiB; 4 GiB */
    uint64_t              shard_bytes; /* 5 GiB */
    bool                  resume;      /* go on with an interrupted run of the same job */
    bool                  dry_run;     /* plan only, from headers */
    bool (*progress)(void *user, const struct nib_quantize_progress *p); /* return false to cancel; may be NULL */
    void (*warning)(void *user, const char *text);                       /* may be NULL */
    void *user;
};

void nib_quantize_options_init(struct nib_quantize_options *o);

struct nib_quantize_result {
    int64_t  n_tensors, n_matrices; /* written; of those matrices converted to NVFP4 */
    int64_t  n_exact;               /* matrices whose decoded values equal the source's */
    int64_t  n_mismatches;          /* verify: tensors that differ from what they should be */
    uint64_t n_weights;             /* of converted matrices */
    uint64_t n_recoded, n_saturated; /* cast blocks outside the scale's window; values beyond the grid */
    uint64_t source_bytes, output_bytes; /* of tensors */
    double   relative_mse, cosine;  /* of all converted matrices together */
    int32_t  n_shards, n_shards_kept; /* kept: finished by an earlier run */
    uint64_t memory_bytes;          /* planned working memory */
    double   seconds;               /* taken; dry run: compute time estimated from a short measurement, input and output
                                       at 1 GB/s */
    bool     was_complete;          /* resume: nothing was left to do */
};

/* Convert the checkpoint folder src to dst, which must not exist, be empty, or (with resume) hold an interrupted run of
 * the same job. src is never written to. Shards appear under their names only when complete and on disk; the index and
 * config.json come last. On failure the finished shards stay, to be resumed. */
enum nib_status nib_quantize(const char *src, const char *dst, const struct nib_quantize_options *o,
                             struct nib_quantize_result *r, struct nib_error *err);

/* Recompute the error of every NVFP4 matrix of dst against src and compare all other tensors; of the options only
 * threads, memory and callbacks count. NIB_OK with n_mismatches > 0 where something differs; each is told through
 * `warning`. */
enum nib_status nib_quantize_verify(const char *src, const char *dst, const struct nib_quantize_options *o,
                                    struct nib_quantize_result *r, struct nib_error *err);

/* ---- Measuring speed ------------------------------------------------------------------------------------------ */

/* A model of published sizes whose weights are random numbers: no files, and nothing that it says means anything.
 * Packing copies the weights, so that an engine's memory and its reading are those of a real checkpoint. */
struct nib_shape {
    const char *name;      /* "pro", "flash", or "tiny", the bundled model's sizes */
    int32_t     n_layers;  /* 0: all. Fewer are of the two compressed kinds in turn, 4:1 first, routed by scores */
    int32_t     n_experts; /* 0: all */
    const char *format;    /* of linears: "nvfp4" (NULL), "fp8", "mxfp4", "bf16", or "official": experts MXFP4, the rest
                              FP8 */
};
enum nib_status nib_model_open_random(const struct nib_shape *shape, struct nib_model **out, struct nib_error *err);

/* An empty sequence holds `length` tokens from now on, with random numbers for all that they would have left behind.
 * NIB_E_STATE if it is not empty, NIB_E_LIMIT if they do not fit. */
enum nib_status nib_seq_fill_random(struct nib_seq *s, int32_t length, struct nib_error *err);

/* What n_threads (0: all cores) can do at most, in 1e9 a second: the best of many short runs of the plainest loops.
 * The caller zeroes *m; another call with the same read_bytes betters what it holds. Takes about half a second. */
struct nib_machine {
    double   read_gb_s;    /* read_bytes of memory, again and again: a cache counts where it holds them */
    double   fp32_gflop_s; /* fused multiply-adds of fp32, two operations each; a card: products of bf16, sums fp32 */
    double   fp8_gflop_s;  /* a card's products of FP8, if the engine has kernels of them there; else as above */
    double   int8_gop_s;   /* products of bytes, summed exactly or with saturation, two operations each; a card: of FP4
                              under block scales, if the engine has kernels of them there; else as above */
    uint64_t read_bytes;   /* size of what is read, at most 1 GiB; a card: 4 GiB */
    int32_t  n_threads;    /* a card: 0 */
};
enum nib_status nib_machine_measure(int32_t n_threads, uint64_t read_bytes, struct nib_machine *m,
                                    struct nib_error *err);
/* The same of device 0 of a backend that runs on a card, by its own kernels; NIB_E_UNSUPPORTED for others. It needs
 * memory for what is read: takes less where there is less, and in another call leaves that rate as it is. */
enum nib_status nib_device_measure(const char *backend, uint64_t read_bytes, struct nib_machine *m,
                                   struct nib_error *err);

/* What a step did in the ops of one name, or as a whole. Bytes are those that have to be read from memory however
 * clever the op: each weight once (of experts those that were chosen), each stored row once for its sequence.
 * Operations are two for each product of a matrix or of attention. */
struct nib_profile_op {
    const char *name; /* "moe"; the op's name and, where it has several uses, which */
    int32_t     n_calls;
    bool        head; /* behind the layers: the last collapse and the logits */
    double      seconds; /* a card: on it, each op alone */
    uint64_t    bytes, fp32_ops, fp8_ops, int8_ops; /* by the arithmetic that the operands' formats allow */
};
#define NIB_PROFILE_OPS_MAX 80
struct nib_profile {
    double                seconds; /* of the whole call */
    int32_t               n_ops;
    struct nib_profile_op op[NIB_PROFILE_OPS_MAX];
};

/* nib_step() under observation. With `count` bytes and operations are filled in, which takes time of its own, so that
 * seconds mean nothing then; without, seconds only. Not on an engine with trace or compare (NIB_E_STATE). */
enum nib_status nib_step_profile(struct nib_engine *e, const struct nib_batch *b, float *logits, bool count,
                                 struct nib_profile *out, struct nib_error *err);

/* ---- Predicting speed -------------------------------------------------------------------------------------------- */

/* A card by what its maker publishes: 1e9 bytes and 1e12 operations a second, dense. fp4 is 0 where the card multiplies
 * 4-bit numbers as BF16 ones. */
struct nib_card {
    const char *name, *text; /* "b200"; in words */
    double      memory_gb, read_gb_s, fp4_tflop_s, bf16_tflop_s;
};
const struct nib_card *nib_card_get(int32_t i); /* from 0; NULL behind the last */

/* A step that nobody ran. */
struct nib_predict_args {
    struct nib_shape       shape;
    const struct nib_card *card;
    int32_t                n_cards;   /* that share all bytes and operations evenly, at no cost; 1 or more */
    int32_t                n_seqs;    /* each with n_context tokens before the step */
    int32_t                n_context;
    int32_t                n_rows;    /* tokens of each sequence: 1 decodes, more are a piece of a prompt */
    enum nib_act_quant     act_quant; /* auto: NVFP4 where the card multiplies it, else none */
    enum nib_kv            kv;
};

/* The ops of one name. Seconds are the longest of: bytes at the planned share of the card's rate, operations at theirs,
 * and launches. Bytes and operations are counted as nib_step_profile() does, with experts drawn evenly at random; the
 * streams that hyper-connections read and write are added, other rows between ops are not. */
enum nib_bound { NIB_BOUND_BYTES, NIB_BOUND_PRODUCTS, NIB_BOUND_LAUNCHES };
struct nib_predicted_op {
    const char    *name;
    int32_t        n_calls, n_launches; /* of kernels, in all calls */
    uint64_t       bytes, fp4_ops, bf16_ops;
    double         bytes_share, ops_share; /* planned shares of the card's rates */
    double         seconds;
    enum nib_bound bound;
};
struct nib_prediction {
    double                  seconds, tokens_s; /* of the step; all sequences' tokens */
    double                  limit_seconds;     /* with every share 1 and no launches */
    uint64_t                weights_bytes, kv_bytes; /* stored; of n_seqs sequences that end with this step */
    int32_t                 n_cards_needed;    /* whose memory holds both, at 90 % of it */
    enum nib_act_quant      act_quant;
    int32_t                 n_ops;
    struct nib_predicted_op op[NIB_PROFILE_OPS_MAX];
};
/* Runs the forward pass on a table of ops that counts in place of computing. */
enum nib_status nib_predict(const struct nib_predict_args *a, struct nib_prediction *out, struct nib_error *err);

#ifdef __cplusplus
}
#endif
#endif
