/* nibble run: one prompt, one answer, or a conversation (chat.c). The prompt is built in run_prompt.c, the answer is
 * shown by run_stream.c. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "chat.h"
#include "cli.h"
#include "nibble.h"
#include "output.h"
#include "progress.h"
#include "run_prompt.h"
#include "run_stream.h"
#include "session.h"

struct run_options {
    struct cli_engine_options engine;
    struct prompt_options     prompt;
    struct nib_sampling       sampling;
    int32_t                   n_max;
    bool                      temperature_given, top_p_given, seed_given, json;
};

struct run {
    struct stream   stream;
    struct progress progress;
    bool            done; /* the calls are complete */
};

static volatile sig_atomic_t interrupted;

/* The first Ctrl-C ends the answer cleanly, the second one ends the program. */
static void on_interrupt(int number)
{
    interrupted = number;
}

static void catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
}

static bool on_token(void *user, int32_t token, float logprob)
{
    struct run *r = user;

    (void)logprob;
    progress_finish(&r->progress);
    if (!stream_token(&r->stream, token))
        return false;
    r->done = stream_done(&r->stream);
    return !r->done && !interrupted;
}

static bool on_prefill(void *user, int32_t done, int32_t total)
{
    struct run *r = user;

    progress_update(&r->progress, (uint64_t)done, (uint64_t)total);
    return !interrupted;
}

static double prefill_rate(const struct nib_generate_result *r)
{
    return r->prefill_s > 0 ? r->n_prompt / r->prefill_s : 0;
}

/* The first token is drawn from the prompt's own logits, so n tokens take n - 1 steps. */
static double decode_rate(const struct nib_generate_result *r)
{
    return r->n_generated > 1 && r->decode_s > 0 ? (r->n_generated - 1) / r->decode_s : 0;
}

static void print_rates(const struct nib_generate_result *r)
{
    (void)fprintf(stderr, "prefill %d tokens %.1f tok/s, decode %d tokens %.1f tok/s", r->n_prompt, prefill_rate(r),
                  r->n_generated, decode_rate(r));
    if (r->n_drafted > 0)
        (void)fprintf(stderr, ", %d of %d drafts accepted", r->n_accepted, r->n_drafted);
    (void)fputc('\n', stderr);
}

static const char *stop_name(enum nib_stop_reason reason)
{
    switch (reason) {
    case NIB_STOP_ID: return "stop";
    case NIB_STOP_LENGTH: return "length";
    case NIB_STOP_CALLBACK: return "interrupted";
    }
    return "unknown";
}

static json_t *calls_json(const struct nib_reply *reply)
{
    json_t *calls = json_array();

    for (int32_t i = 0; reply && i < reply->n_calls; i++) {
        const struct nib_reply_call *c = &reply->call[i];
        (void)json_array_append_new(calls, json_pack("{s:s%, s:s%}", "name", c->name.data, c->name.n, "arguments",
                                                     c->arguments.data, c->arguments.n));
    }
    return calls;
}

static int print_json(const struct stream *stream, const struct nib_generate_result *r)
{
    const struct nib_reply *reply = stream_reply(stream);
    size_t                  n = 0;
    const char             *content = stream_content(stream, &n);
    const struct nib_text   none = {0}, *reasoning = reply ? &reply->reasoning : &none;

    json_t *o = json_pack("{s:s%, s:s%, s:i, s:i, s:i, s:i, s:s, s:o, s:o}", "text", content, n, "reasoning",
                          reasoning->data ? reasoning->data : "", reasoning->n, "prompt_tokens", r->n_prompt,
                          "generated_tokens", r->n_generated, "drafted_tokens", r->n_drafted, "accepted_tokens",
                          r->n_accepted, "stop", stop_name(r->reason), "prefill_tok_s", output_real(prefill_rate(r)),
                          "decode_tok_s", output_real(decode_rate(r)));
    if (o && stream->options.tools && json_object_set_new(o, "tool_calls", calls_json(reply)) != 0) {
        json_decref(o);
        o = NULL;
    }
    return output_json(o);
}

/* What the model's own generation_config.json says, where the command line says nothing. */
static int choose_sampling(const struct session *s, struct run_options *o)
{
    struct nib_error err = {0};

    if (!o->temperature_given)
        o->sampling.temperature = s->info->greedy ? 0 : s->info->temperature;
    if (!o->top_p_given)
        o->sampling.top_p = s->info->top_p;
    if (!o->seed_given && getentropy(&o->sampling.seed, sizeof o->sampling.seed) != 0)
        return cli_fail("the system gives no random seed; give one with --seed");
    if (s->options->verbose)
        cli_note("sampling: temperature %g, top-p %g, seed %llu", (double)o->sampling.temperature,
                 (double)o->sampling.top_p, (unsigned long long)o->sampling.seed);
    enum nib_status status = nib_sampling_check(&o->sampling, &err);
    return status == NIB_OK ? CLI_OK : session_fail(status, &err);
}

static int32_t n_drafts(const struct run_options *o)
{
    return o->engine.drafts < CLI_DRAFTS_AUTO ? o->engine.drafts : NIB_DRAFTS_AUTO;
}

static int generate(struct session *s, struct run_options *o, const struct nib_ids *ids, bool has_tools)
{
    const struct stream_options shown = {.raw = o->prompt.raw, .thinking = !o->prompt.raw && o->prompt.think > 0,
                                         .tools = has_tools, .print = !o->json};
    struct nib_generate_result result = {0};
    struct nib_error           err = {0};
    struct run                 r = {0};
    int                        code = CLI_OK;

    if (ids->n >= (size_t)s->n_ctx)
        return cli_fail("the prompt has %zu tokens, which leaves no room in the context of %d; see --ctx", ids->n,
                        s->n_ctx);
    if (!stream_open(&r.stream, s->tokenizer, s->info->eos_id, &shown)) {
        stream_close(&r.stream);
        return cli_fail_memory();
    }
    catch_interrupt();
    struct nib_generate_args args = {
        .seq = s->seq,
        .prompt = ids->id,
        .n_prompt = (int32_t)ids->n,
        .n_max = o->n_max,
        .stop_id = &s->info->eos_id,
        .n_stop = 1,
        .sampling = o->sampling,
        .n_drafts = n_drafts(o),
        .on_token = on_token,
        .on_prefill = on_prefill,
        .user = &r,
    };
    progress_start(&r.progress, "reading the prompt", "tok");
    enum nib_status status = nib_generate(s->engine, &args, &result, &err);
    progress_finish(&r.progress);
    if (r.done)
        result.reason = NIB_STOP_ID;
    bool ended = stream_end(&r.stream, result.reason == NIB_STOP_ID ? NIB_CHAT_END_STOP : NIB_CHAT_END_LENGTH);

    if (status != NIB_OK)
        code = interrupted ? CLI_FAILED : session_fail(status, &err);
    else if (!ended)
        code = ferror(stdout) ? CLI_OK : cli_fail_memory(); /* main() reports the output */
    else if (o->json)
        code = print_json(&r.stream, &result);
    if (status == NIB_OK && code == CLI_OK)
        print_rates(&result);
    if (interrupted)
        code = CLI_FAILED;
    stream_close(&r.stream);
    return code;
}

static int answer_one(struct session *s, struct run_options *o)
{
    struct nib_ids ids = {0};
    bool           has_tools = false;

    int code = prompt_encode(s, &o->prompt, &ids, &has_tools);
    if (code == CLI_OK)
        code = session_open_engine(s, 0, false);
    if (code == CLI_OK)
        code = generate(s, o, &ids, has_tools);
    nib_ids_free(&ids);
    return code;
}

static int converse(struct session *s, struct run_options *o)
{
    const struct chat_options chat = {
        .prompt = &o->prompt, .sampling = &o->sampling, .n_max = o->n_max, .n_drafts = n_drafts(o)};

    s->forks = true;
    int code = session_open_engine(s, 0, false);
    return code == CLI_OK ? chat_run(s, &chat) : code;
}

static int run(struct session *s, struct run_options *o, bool chat)
{
    int code = session_open(s, &o->engine);

    if (code == CLI_OK)
        code = choose_sampling(s, o);
    if (code == CLI_OK)
        code = session_open_tokenizer(s);
    if (code == CLI_OK)
        code = chat ? converse(s, o) : answer_one(s, o);
    return code;
}

int cmd_run(int argc, char **argv)
{
    struct run_options o = {0};
    struct session     s;
    int                code;

    cli_engine_options_init(&o.engine);
    nib_sampling_init(&o.sampling);
    const struct cli_option own[] = {
        {.name = "--prompt", .alias = "-p", .kind = CLI_KIND_TEXT, .value = &o.prompt.text, .metavar = "TEXT",
         .help = "the user's message"},
        {.name = "--file", .alias = "-f", .kind = CLI_KIND_TEXT, .value = &o.prompt.file, .metavar = "FILE",
         .help = "read it from a file, - for standard input; one newline at its end is dropped"},
        {.name = "--system", .kind = CLI_KIND_TEXT, .value = &o.prompt.system, .metavar = "TEXT",
         .help = "a system message before it"},
        {.name = "--think", .kind = CLI_KIND_CHOICE, .value = &o.prompt.think, .given = &o.prompt.think_given,
         .choices = prompt_think_names, .help = "let the model reason first; off"},
        {.name = "--tools", .kind = CLI_KIND_TEXT, .value = &o.prompt.tools, .metavar = "FILE",
         .help = "functions that the model may call, a JSON array as in OpenAI's requests"},
        {.name = "--chat-profile", .kind = CLI_KIND_CHOICE, .value = &o.prompt.profile,
         .given = &o.prompt.profile_given, .choices = prompt_profile_names,
         .help = "which release's prompt rules; auto: from the checkpoint folder"},
        {.name = "--raw", .kind = CLI_KIND_FLAG, .value = &o.prompt.raw,
         .help = "the prompt is the whole text as the model sees it: no chat form, control tokens\n"
                 "count, a beginning of sentence is put in front unless it is there"},
        {.name = "--allow-control-tokens", .kind = CLI_KIND_FLAG, .value = &o.prompt.allow_control,
         .help = "control tokens written in messages count; otherwise they are plain text"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json,
         .help = "print the answer when it is complete, as JSON: text, reasoning, prompt_tokens,\n"
                 "generated_tokens, drafted_tokens, accepted_tokens, stop (stop or length),\n"
                 "prefill_tok_s, decode_tok_s; with --tools also tool_calls"},
        {.name = "--drafts", .kind = CLI_KIND_CHOICE, .value = &o.engine.drafts, .choices = cli_draft_names,
         .help = "tokens that the MTP block guesses ahead in a step; changes the speed, not the text\n"
                 "(docs/drafts.md); auto: as many as pay; 0"},
    };
    const struct cli_option sampling[] = {
        {.name = "--tokens", .alias = "-n", .kind = CLI_KIND_COUNT, .value = &o.n_max, .low = 1, .high = INT32_MAX,
         .metavar = "N", .help = "stop after N tokens; without it, when the context is full"},
        {.name = "--temp", .kind = CLI_KIND_NUMBER, .value = &o.sampling.temperature, .given = &o.temperature_given,
         .low = 0, .high = 100, .metavar = "T", .help = "temperature; 0 takes the likeliest token; the model's own"},
        {.name = "--top-p", .kind = CLI_KIND_NUMBER, .value = &o.sampling.top_p, .given = &o.top_p_given, .low = 0,
         .above_low = true, .high = 1, .metavar = "P",
         .help = "keep the likeliest tokens up to this mass; the model's own"},
        {.name = "--top-k", .kind = CLI_KIND_COUNT, .value = &o.sampling.top_k, .low = 0, .high = INT32_MAX,
         .metavar = "K", .help = "keep the K likeliest tokens; 0: off"},
        {.name = "--min-p", .kind = CLI_KIND_NUMBER, .value = &o.sampling.min_p, .low = 0, .high = 1, .metavar = "P",
         .help = "drop tokens below this share of the likeliest one's probability; 0"},
        {.name = "--repetition", .kind = CLI_KIND_NUMBER, .value = &o.sampling.repetition, .low = 0,
         .above_low = true, .high = 100, .metavar = "R", .help = "penalty on tokens seen so far, a factor; 1: off"},
        {.name = "--presence", .kind = CLI_KIND_NUMBER, .value = &o.sampling.presence, .low = -2, .high = 2,
         .metavar = "X", .help = "penalty on tokens generated before; 0"},
        {.name = "--frequency", .kind = CLI_KIND_NUMBER, .value = &o.sampling.frequency, .low = -2, .high = 2,
         .metavar = "X", .help = "the same, times how often; 0"},
        {.name = "--seed", .kind = CLI_KIND_SEED, .value = &o.sampling.seed, .given = &o.seed_given, .metavar = "N",
         .help = "the same seed draws the same tokens; otherwise random"},
    };
    const struct cli_group groups[] = {
        {"Prompt", own, sizeof own / sizeof own[0]},
        {"Sampling (docs/sampling.md says exactly how)", sampling, sizeof sampling / sizeof sampling[0]},
        {"Engine", o.engine.table, o.engine.n_table},
    };
    const struct cli_syntax syntax = {
        .command = "run",
        .usage = "[-m DIR] [-p TEXT | -f FILE] [options]",
        .about = "Answers a prompt. Without one, on a terminal, it is a conversation; /help there lists its commands.\n"
                 "The answer is written to standard output as it comes; the rates of prefill and decode follow on\n"
                 "standard error. Reasoning (--think) is dimmed on a terminal; elsewhere it is written as the model\n"
                 "writes it, up to </think>.",
        .groups = groups,
        .n_groups = 3,
    };
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    const bool chat = !o.prompt.text && !o.prompt.file && !o.prompt.raw && !o.json && isatty(0) == 1 && isatty(1) == 1;
    code = prompt_check(&o.prompt, chat);
    if (code != CLI_OK)
        return code;
    code = run(&s, &o, chat);
    session_close(&s);
    return code;
}
