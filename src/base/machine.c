/* What Linux says of its processor and memory. On other systems both stay unknown. */
#include "base/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* The text behind "key ...: " in the first line that begins with key. */
static void read_line(const char *file, const char *key, char *out, size_t size)
{
    char  line[256];
    FILE *f = fopen(file, "r");

    out[0] = '\0';
    if (!f)
        return;
    while (out[0] == '\0' && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        (void)snprintf(out, size, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
    (void)fclose(f);
}

static uint64_t read_kib(const char *key)
{
    char     text[64];
    uint64_t kib = 0;

    read_line("/proc/meminfo", key, text, sizeof text);
    return sscanf(text, "%" SCNu64, &kib) == 1 ? kib * 1024 : 0;
}

enum nib_status nib_machine_device(int32_t i, struct nib_device_info *out, struct nib_error *err)
{
    memset(out, 0, sizeof *out);
    if (i != 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "device %" PRId32 " of the processor is asked for, there is only 0",
                             i);
    read_line("/proc/cpuinfo", "model name", out->name, sizeof out->name);
    out->total_bytes = read_kib("MemTotal");
    out->available_bytes = read_kib("MemAvailable"); /* Linux's estimate of what can be used without swapping */
    out->usable = true;
    return NIB_OK;
}
