/* The boot line: any bytes. What is accepted is in range, and what is told ends and is printable. */
#include "kernel/bootline.h"
#include "tests/fuzz/fuzz.h"

static void check_text(const char *text)
{
    for (; *text; text++)
        must(*text >= ' ' && *text <= '~');
}

static void unknown(void *context, const char *sentence)
{
    (void)context;
    check_text(sentence);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *line = malloc(size + 1);
    struct bootline out;
    struct bootline_error error;
    const struct bootline_env env = { .unknown = unknown, .app_names = "echo,discard" };
    memcpy(line, data, size);
    line[size] = '\0';
    if (bootline_parse(line, &out, &env, &error)) {
        must(out.ip_prefix <= 32 && out.ip6_prefix <= 128 && out.app_count <= BOOTLINE_APP_MAX);
        must(out.cores <= BOOTLINE_NUMBER_MAX && out.queues <= BOOTLINE_NUMBER_MAX);
        must(out.ring == 0 || (out.ring >= 2 && out.ring <= 32768 && (out.ring & (out.ring - 1)) == 0));
        must(out.poll_us == POLL_AUTO || out.poll_us <= BOOTLINE_POLL_MAX);
        must(out.ip == IP_AUTO || out.ip == IP_STATIC);
        for (unsigned i = 0; i < out.app_count; i++)
            must(memchr(out.apps[i], 0, BOOTLINE_APP_LEN) != NULL && out.apps[i][0]);
        must(memchr(out.conform_area, 0, sizeof out.conform_area) != NULL);
    } else {
        must(strncmp(error.text, "bad value ", 10) == 0);
        check_text(error.text);
    }
    free(line);
    return 0;
}
