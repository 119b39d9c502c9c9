/* The counters to look at and to collect: lwIP's web server on TCP port 80, with `/` (a status page that reads
 * /metrics.json), `/metrics` (Prometheus), `/metrics.json` and `/trace` (the rings' last operations: docs/trace.md).
 * Every core serves; each shows all cores' numbers.
 *
 * lwIP's httpd asks for files by the functions of its fs.h, which are these: a file is made when it is opened, HTTP
 * header and all, and freed when it is closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "apps/app.h"
#include "apps/metrics.h"
#include "kernel/console.h"
#include "kernel/trace.h"
#include "lwip/apps/fs.h"
#include "lwip/apps/httpd.h"

#define HEADER_MAX 192
#define LISTEN_MIN 1024 /* bytes that listening takes at most */

extern const char status_page_start[], status_page_end[]; /* apps/status_page.S */

static void write_page(struct text *t)
{
    text_bytes(t, status_page_start, (size_t)(status_page_end - status_page_start));
}

static void add_line(void *to, const char *line)
{
    text_bytes(to, line, strlen(line));
    text_bytes(to, "\n", 1);
}

static void write_trace(struct text *t)
{
    if (t->at == NULL)
        t->used += trace_bytes();
    else
        trace_print(add_line, t);
}

static const struct {
    const char *name, *type;
    void (*write)(struct text *t);
} pages[] = {
    { "/index.html", "text/html; charset=utf-8", write_page }, /* what httpd makes of / */
    { "/metrics", "text/plain; version=0.0.4; charset=utf-8", metrics_prometheus },
    { "/metrics.json", "application/json", metrics_json },
    { "/trace", "text/plain; charset=utf-8", write_trace },
};

#define CLOSE "Connection: close\r\n"
#define TEXT  CLOSE "Content-Type: text/plain; charset=utf-8\r\n\r\n"

/* Under these names httpd asks for what it answers errors with. */
static const struct {
    const char *name, *answer;
} errors[] = {
    { "/404.html", "HTTP/1.1 404 Not Found\r\n" TEXT "Not found. There are /, /metrics, /metrics.json and /trace.\n" },
    { "/400.html", "HTTP/1.1 400 Bad Request\r\n" TEXT "This is no request of HTTP, or it is too long.\n" },
    /* Also for HEAD, whose answer has no content. */
    { "/501.html", "HTTP/1.1 501 Not Implemented\r\nAllow: GET\r\nContent-Length: 0\r\n" CLOSE "\r\n" },
};
static const char no_memory[] = "HTTP/1.1 503 Service Unavailable\r\n" TEXT "Out of memory: try again.\n";

static err_t give(struct fs_file *file, const char *answer, size_t length, void *memory)
{
    *file = (struct fs_file){ .data = answer,
                              .len = (int)length,
                              .index = (int)length, /* nothing is left to read: it is all in `data` */
                              .pextension = memory,
                              .flags = FS_FILE_FLAGS_HEADER_INCLUDED };
    return ERR_OK;
}

/* Makes a page: room for the most it can take, the content, and in front of it the header, which needs its length. */
static err_t make(struct fs_file *file, const char *type, void (*write)(struct text *t))
{
    struct text content = { NULL, 0, 0 };
    char header[HEADER_MAX];
    write(&content);
    char *memory = malloc(HEADER_MAX + content.used);
    if (memory == NULL)
        return give(file, no_memory, sizeof no_memory - 1, NULL);
    content = (struct text){ memory + HEADER_MAX, content.used, 0 };
    write(&content);
    int n = snprintf(header, sizeof header,
                     "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %u\r\nCache-Control: no-store\r\n" CLOSE
                     "\r\n",
                     type, (unsigned)content.used);
    char *start = content.at - n;
    memcpy(start, header, (size_t)n);
    return give(file, start, (size_t)n + content.used, memory);
}

err_t fs_open(struct fs_file *file, const char *name)
{
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(name, pages[i].name) == 0)
            return make(file, pages[i].type, pages[i].write);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(name, errors[i].name) == 0)
            return give(file, errors[i].answer, strlen(errors[i].answer), NULL);
    return ERR_VAL;
}

void fs_close(struct fs_file *file)
{
    free(file->pextension);
    file->pextension = NULL;
}

int fs_bytes_left(struct fs_file *file)
{
    return file->len - file->index;
}

static bool start(void)
{
    void *room = malloc(LISTEN_MIN); /* httpd_init() has no way to say that there is no memory */
    if (room == NULL) {
        log_error("app", "http: cannot listen on TCP port 80: no memory");
        return false;
    }
    free(room);
    httpd_init();
    return true;
}

APP(http, .ports = "tcp/80", .by_default = true, .start = start);
