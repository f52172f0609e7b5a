/* Status names and the one place where error text is formatted. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

#define STR_(x) #x
#define STR(x) STR_(x)

const char *nib_version(void)
{
    return STR(NIB_VERSION_MAJOR) "." STR(NIB_VERSION_MINOR) "." STR(NIB_VERSION_PATCH);
}

const char *nib_status_name(enum nib_status s)
{
    switch (s) {
    case NIB_OK: return "ok";
    case NIB_E_ARGUMENT: return "argument";
    case NIB_E_MEMORY: return "memory";
    case NIB_E_IO: return "io";
    case NIB_E_FORMAT: return "format";
    case NIB_E_UNSUPPORTED: return "unsupported";
    case NIB_E_LIMIT: return "limit";
    case NIB_E_STATE: return "state";
    case NIB_E_NUMERIC: return "numeric";
    case NIB_E_DEVICE: return "device";
    case NIB_E_CANCELLED: return "cancelled";
    case NIB_E_TIME: return "time";
    }
    return "unknown";
}

enum nib_status nib_error_set(struct nib_error *err, enum nib_status status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->status = status;
        (void)vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
    }
    return status;
}
