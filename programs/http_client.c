/* URLs, connections, and replies: with a length, in chunks, or up to the end of the connection. */
#include "http_client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { QUIET_S = 600 }; /* a long prompt's first token may take minutes */

/* ---- URLs ---- */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool say(char why[HTTP_WHY_BYTES], const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, HTTP_WHY_BYTES, fmt, ap);
    va_end(ap);
    return false;
}

static bool take_port(const char *text, size_t n, struct http_url *out, char why[HTTP_WHY_BYTES])
{
    char         *end;
    unsigned long port;

    if (n == 0 || n >= sizeof out->port || strspn(text, "0123456789") < n)
        return say(why, "'%.*s' is not a port; wanted 1 to 65535", (int)(n < 40 ? n : 40), text);
    memcpy(out->port, text, n);
    out->port[n] = '\0';
    port = strtoul(out->port, &end, 10);
    return (port >= 1 && port <= 65535) || say(why, "port %s is out of range; wanted 1 to 65535", out->port);
}

bool http_url_parse(const char *text, struct http_url *out, char why[HTTP_WHY_BYTES])
{
    memset(out, 0, sizeof *out);
    if (strncasecmp(text, "https://", 8) == 0)
        return say(why, "https is not supported: there is no TLS in this client; give the server's plain http address");
    if (strncasecmp(text, "http://", 7) != 0)
        return say(why, "'%.60s' does not begin with http://", text);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f)
            return say(why, "the URL holds a character that must be escaped, at offset %zu", (size_t)(c - text));
    text += 7;
    const char  *path = text + strcspn(text, "/?#");
    const size_t n = (size_t)(path - text);
    if (memchr(text, '@', n))
        return say(why, "a user in the URL is not supported; give the key with --api-key");
    const bool   is_v6 = text[0] == '[';
    const char  *bracket = is_v6 ? memchr(text, ']', n) : NULL;
    if (is_v6 && !bracket)
        return say(why, "the IPv6 address lacks its closing bracket");
    const char  *host = text + is_v6;
    const char  *host_end = bracket ? bracket : memchr(text, ':', n) ? memchr(text, ':', n) : path;
    const char  *rest = bracket ? bracket + 1 : host_end;
    const size_t n_host = (size_t)(host_end - host);
    if (n_host == 0 || n_host >= sizeof out->host)
        return say(why, n_host ? "the host's name is too long" : "the host is missing");
    memcpy(out->host, host, n_host);
    (void)strcpy(out->port, "80");
    if (rest < path && *rest != ':')
        return say(why, "'%.40s' follows the IPv6 address; wanted a port or a path", rest);
    if (rest < path && !take_port(rest + 1, (size_t)(path - rest - 1), out, why))
        return false;
    if (strpbrk(path, "?#"))
        return say(why, "the URL has a query or fragment, '%.40s'; wanted a path at most", strpbrk(path, "?#"));
    size_t n_path = strlen(path);
    while (n_path > 0 && path[n_path - 1] == '/')
        n_path--;
    if (n_path >= sizeof out->base)
        return say(why, "the URL's path is too long");
    memcpy(out->base, path, n_path);
    return true;
}

/* ---- Connections ---- */

void http_client_init(struct http_client *c, const struct http_url *url, const char *api_key)
{
    memset(c, 0, sizeof *c);
    c->url = url;
    c->api_key = api_key;
    c->fd = -1;
}

void http_client_deinit(struct http_client *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
    c->in_at = c->in_n = 0;
}

static bool connect_to(struct http_client *c)
{
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo      *list;
    int                   code = getaddrinfo(c->url->host, c->url->port, &wanted, &list), error = 0;
    const int             yes = 1;

    if (code != 0)
        return say(c->why, "'%.100s': %s", c->url->host, gai_strerror(code));
    for (const struct addrinfo *a = list; a && c->fd < 0; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (c->fd >= 0 && connect(c->fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        error = errno;
        http_client_deinit(c);
    }
    freeaddrinfo(list);
    if (c->fd < 0)
        return say(c->why, "cannot connect to %.100s port %s: %s", c->url->host, c->url->port, strerror(error));
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = QUIET_S}, sizeof(struct timeval));
    (void)setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = QUIET_S}, sizeof(struct timeval));
    return true;
}

static bool send_all(struct http_client *c, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t k = send(c->fd, bytes, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return say(c->why, "sending: %s", strerror(errno));
        bytes += k;
        n -= (size_t)k;
    }
    return true;
}

static bool send_request(struct http_client *c, const char *path, const char *body)
{
    const bool  is_v6 = strchr(c->url->host, ':') != NULL;
    const char *key = c->api_key;
    const size_t size = strlen(path) + (key ? strlen(key) : 0) + sizeof *c->url + 256;
    char       *head = malloc(size);

    if (!head)
        return say(c->why, "memory is used up");
    int n = snprintf(head, size, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nAccept: */*\r\n%s%s%s", body ? "POST" : "GET",
                     c->url->base, path, is_v6 ? "[" : "", c->url->host, is_v6 ? "]" : "", c->url->port,
                     key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "");
    if (body)
        n += snprintf(head + n, size - (size_t)n, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                      strlen(body));
    n += snprintf(head + n, size - (size_t)n, "\r\n");
    const bool ok = send_all(c, head, (size_t)n) && (!body || send_all(c, body, strlen(body)));
    free(head);
    return ok;
}

/* ---- Replies ---- */

/* More into in[], all of which was used. False at the end of the connection, too. */
static bool fill(struct http_client *c)
{
    ssize_t k;

    do
        k = recv(c->fd, c->in, sizeof c->in, 0);
    while (k < 0 && errno == EINTR);
    c->in_at = 0;
    c->in_n = k > 0 ? (size_t)k : 0;
    if (k > 0)
        return true;
    return say(c->why, "%s", k == 0                                        ? "the connection ended before the reply did"
                             : errno == EAGAIN || errno == EWOULDBLOCK ? "nothing came for ten minutes"
                                                                          : strerror(errno));
}

/* Up to the newline, without it and a carriage return in front of it. */
static bool read_line(struct http_client *c, char *to, size_t size)
{
    size_t n = 0;

    for (;;) {
        if (c->in_at == c->in_n && !fill(c))
            return false;
        const char byte = c->in[c->in_at++];
        if (byte == '\n')
            break;
        if (n + 1 >= size)
            return say(c->why, "a line of the reply's head is longer than %zu bytes", size - 1);
        to[n++] = byte;
    }
    to[n > 0 && to[n - 1] == '\r' ? n - 1 : n] = '\0';
    return true;
}

struct reply_head {
    int      status;
    bool     chunked, has_length, stays_open;
    uint64_t length;
};

static bool read_head(struct http_client *c, struct reply_head *h)
{
    char line[8192];
    int  minor = 0;

    memset(h, 0, sizeof *h);
    if (!read_line(c, line, sizeof line))
        return false;
    if (sscanf(line, "HTTP/1.%1d %3d", &minor, &h->status) != 2 || h->status < 100)
        return say(c->why, "the reply does not begin like HTTP: '%.60s'", line);
    h->stays_open = minor == 1;
    for (;;) {
        if (!read_line(c, line, sizeof line))
            return false;
        if (!line[0])
            return true;
        if (strncasecmp(line, "Content-Length:", 15) == 0) {
            h->has_length = true;
            h->length = strtoull(line + 15, NULL, 10);
        } else if (strncasecmp(line, "Transfer-Encoding:", 18) == 0) {
            h->chunked = strstr(line, "chunked") != NULL;
        } else if (strncasecmp(line, "Connection:", 11) == 0 && strstr(line, "close")) {
            h->stays_open = false;
        }
    }
}

enum part { PART_DONE, PART_FAILED, PART_ENDED };

static enum part read_part(struct http_client *c, uint64_t n, int status, http_on_body *on_body, void *user)
{
    while (n > 0) {
        if (c->in_at == c->in_n && !fill(c))
            return PART_FAILED;
        const size_t there = c->in_n - c->in_at, k = n < there ? (size_t)n : there;
        const char  *bytes = c->in + c->in_at;
        c->in_at += k;
        n -= k;
        if (on_body && !on_body(user, status, bytes, k))
            return PART_ENDED;
    }
    return PART_DONE;
}

static enum part read_chunks(struct http_client *c, int status, http_on_body *on_body, void *user)
{
    char line[1024];

    for (;;) {
        char *end;
        if (!read_line(c, line, sizeof line))
            return PART_FAILED;
        const uint64_t n = strtoull(line, &end, 16);
        if (end == line) {
            (void)say(c->why, "'%.40s' is not the size of a chunk", line);
            return PART_FAILED;
        }
        const enum part p = read_part(c, n, status, on_body, user);
        if (p != PART_DONE)
            return p;
        /* The end of the chunk, or of the trailers behind the last one. */
        do {
            if (!read_line(c, line, sizeof line))
                return PART_FAILED;
        } while (n == 0 && line[0]);
        if (n == 0)
            return PART_DONE;
    }
}

static enum part read_to_end(struct http_client *c, int status, http_on_body *on_body, void *user)
{
    do {
        const enum part p = read_part(c, c->in_n - c->in_at, status, on_body, user);
        if (p != PART_DONE)
            return p;
    } while (fill(c));
    return PART_DONE;
}

int http_request(struct http_client *c, const char *path, const char *body, http_on_body *on_body, void *user)
{
    struct reply_head h;
    enum part         p;
    bool              ok = false;

    /* A connection that stayed open may have been closed meanwhile: then once more on a new one. */
    for (int kept = c->fd >= 0; !ok && kept >= 0; kept--) {
        ok = (c->fd >= 0 || connect_to(c)) && send_request(c, path, body) && (c->in_at < c->in_n || fill(c));
        if (!ok)
            http_client_deinit(c);
    }
    do
        ok = ok && read_head(c, &h);
    while (ok && h.status < 200);
    if (!ok) {
        http_client_deinit(c);
        return -1;
    }
    if (h.chunked)
        p = read_chunks(c, h.status, on_body, user);
    else if (h.has_length || h.status == 204 || h.status == 304)
        p = read_part(c, h.length, h.status, on_body, user);
    else
        p = read_to_end(c, h.status, on_body, user);
    if (p != PART_DONE || !h.stays_open || (!h.chunked && !h.has_length))
        http_client_deinit(c);
    return p == PART_DONE ? h.status : p == PART_ENDED ? 0 : -1;
}
