/* The fixed texts of V4 prompts, byte for byte those of the model's own encoder (MIT License, Copyright (c) 2023
 * DeepSeek). A changed byte here is a prompt the model has never seen. */
#include "text/chat_texts.h"

#include <stddef.h>

const char nib_chat_tools_before[] =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"<｜DSML｜tool_calls>\" block like the following:\n"
    "\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";

const char nib_chat_tools_after[] =
    "\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

const char nib_chat_format_before[] =
    "## Response Format:\n"
    "\n"
    "You MUST strictly adhere to the following schema to reply:\n";

/* The preview models know this text as max, the ga models as high. */
static const char effort_absolute[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n"
    "\n";

static const char effort_beyond[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n"
    "\n";

const char *nib_chat_effort_prefix(enum nib_chat_profile profile, enum nib_effort effort)
{
    bool preview = profile == NIB_CHAT_PREVIEW;
    switch (effort) {
    case NIB_EFFORT_NONE: return "";
    case NIB_EFFORT_LOW: return preview ? NULL : "";
    case NIB_EFFORT_HIGH: return preview ? "" : effort_absolute;
    case NIB_EFFORT_MAX: return preview ? effort_absolute : effort_beyond;
    }
    return NULL;
}

const struct nib_chat_task nib_chat_tasks[NIB_CHAT_N_TASKS] = {
    {"action", "<｜action｜>"},
    {"query", "<｜query｜>"},
    {"authority", "<｜authority｜>"},
    {"domain", "<｜domain｜>"},
    {"title", "<｜title｜>"},
    {"read_url", "<｜read_url｜>"},
};
