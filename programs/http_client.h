/* A small HTTP/1.1 client over plain sockets, for measuring servers: no TLS, no redirects, no proxies. One connection
 * is one thread's; it stays open between requests where the server lets it. */
#ifndef NIB_HTTP_CLIENT_H
#define NIB_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_WHY_BYTES = 256 };

struct http_url {
    char host[256], port[8];
    char base[512]; /* path in front of every request's, without a slash at its end; "" for none */
};

/* "http://host[:port][/path]"; an IPv6 address stands in brackets. False: why[] says what is wrong with it. */
bool http_url_parse(const char *text, struct http_url *out, char why[HTTP_WHY_BYTES]);

struct http_client {
    const struct http_url *url;
    const char            *api_key; /* NULL: none is sent */
    int                    fd;      /* -1: not connected */
    char                   in[16384];
    size_t                 in_at, in_n; /* of in[]: used up, filled */
    char                   why[HTTP_WHY_BYTES]; /* of the last failure */
};
void http_client_init(struct http_client *c, const struct http_url *url, const char *api_key);
void http_client_deinit(struct http_client *c);

/* Pieces of the reply's body as they come. False ends the reading; the connection is closed then. */
typedef bool http_on_body(void *user, int status, const char *bytes, size_t n);

/* Send one request and read its reply. body is NULL for GET, JSON for POST. The status, or -1 with c->why filled: no
 * connection, a reply that is no HTTP, an end too early, or nothing for ten minutes. 0 if on_body ended it. */
int http_request(struct http_client *c, const char *path, const char *body, http_on_body *on_body, void *user);

#endif
