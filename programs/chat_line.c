/* Keys to changes of the text, in a terminal switched to single bytes; without such a terminal, lines as the system
 * gives them. Pasted text comes between marks ("bracketed paste") and is taken whole, line ends and all. */
#include "chat_line.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include "chat_edit.h"
#include "cli.h"
#include "output.h"

enum { HISTORY_MAX = 500, COLUMNS_DEFAULT = 80, ESCAPE_WAIT_MS = 50 };

struct past_line {
    char  *text;
    size_t n;
};

struct chat_line {
    bool             edits; /* the terminal can do it */
    struct chat_edit edit, draft; /* draft: what was being typed before the history was looked into */
    struct past_line past[HISTORY_MAX];
    int              n_past, shown; /* shown: index into past; n_past: the draft */
    const char      *prompt;
    char             in[4096];
    size_t           n_in, at_in;
    bool             gone; /* no more input */
};

/* ---- The terminal ---- */

/* How the terminal was found; and how it is between two lines: a Ctrl-D typed ahead stays the byte it is, where the
 * system would make an end of input of it that turns into a NUL once single bytes are read. */
static struct termios        ordinary, between;
static volatile sig_atomic_t changed, switched;

static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l";

static void switch_back(void)
{
    if (!switched)
        return;
    switched = 0;
    (void)!write(1, paste_off, sizeof paste_off - 1);
    (void)tcsetattr(0, TCSADRAIN, &between);
}

static bool take_terminal(void)
{
    if (tcgetattr(0, &ordinary) != 0)
        return false;
    between = ordinary;
    between.c_cc[VEOF] = _POSIX_VDISABLE;
    changed = tcsetattr(0, TCSADRAIN, &between) == 0;
    return changed;
}

static void leave_terminal(void)
{
    switch_back();
    if (changed)
        (void)tcsetattr(0, TCSADRAIN, &ordinary);
    changed = 0;
}

static bool switch_to_bytes(void)
{
    struct termios t = ordinary;

    t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | ISTRIP | BRKINT);
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    /* What was typed ahead stays. */
    if (tcsetattr(0, TCSADRAIN, &t) != 0)
        return false;
    switched = 1;
    (void)!write(1, paste_on, sizeof paste_on - 1);
    return true;
}

static const int ending_signals[] = {SIGTERM, SIGHUP, SIGQUIT};
enum { N_ENDING = sizeof ending_signals / sizeof ending_signals[0] };

/* The handler is gone when it runs (SA_RESETHAND), so the signal then does what it always does. */
static void on_ending(int number)
{
    leave_terminal();
    (void)raise(number);
}

static void catch_ending(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = (int)SA_RESETHAND};

    (void)sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_ENDING; i++)
        (void)sigaction(ending_signals[i], &action, NULL);
}

static int n_columns(void)
{
    struct winsize size;

    return ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? (int)size.ws_col : COLUMNS_DEFAULT;
}

struct chat_line *chat_line_open(void)
{
    struct chat_line *l = calloc(1, sizeof *l);

    if (!l)
        return NULL;
    l->edits = isatty(0) == 1 && output_is_screen(1) && take_terminal();
    if (l->edits)
        catch_ending(on_ending);
    return l;
}

void chat_line_close(struct chat_line *l)
{
    if (!l)
        return;
    leave_terminal();
    if (l->edits)
        catch_ending(SIG_DFL);
    for (int i = 0; i < l->n_past; i++)
        free(l->past[i].text);
    chat_edit_free(&l->edit);
    chat_edit_free(&l->draft);
    free(l);
}

/* ---- Bytes ---- */

static void draw(struct chat_line *l)
{
    chat_edit_draw(&l->edit, l->prompt, n_columns());
}

/* The next byte; -1 when the terminal is gone. Everything that came at once is worked through before anything is
 * drawn. */
static int next_byte(struct chat_line *l, bool drawn)
{
    while (l->at_in == l->n_in && !l->gone) {
        if (!drawn)
            draw(l);
        drawn = true;
        const ssize_t n = read(0, l->in, sizeof l->in);
        if (n > 0) {
            l->n_in = (size_t)n;
            l->at_in = 0;
        } else if (n == 0 || errno != EINTR) {
            l->gone = true;
        }
    }
    return l->gone && l->at_in == l->n_in ? -1 : (unsigned char)l->in[l->at_in++];
}

/* Whether more of an escape sequence comes, or the key was Escape. */
static bool more_follows(const struct chat_line *l)
{
    struct pollfd p = {.fd = 0, .events = POLLIN};

    return l->at_in < l->n_in || poll(&p, 1, ESCAPE_WAIT_MS) > 0;
}

/* ---- History ---- */

static void remember(struct chat_line *l)
{
    const struct past_line *last = l->n_past > 0 ? &l->past[l->n_past - 1] : NULL;

    if (l->edit.n == 0 || (last && last->n == l->edit.n && memcmp(last->text, l->edit.text, last->n) == 0))
        return;
    char *copy = malloc(l->edit.n);
    if (!copy)
        return;
    memcpy(copy, l->edit.text, l->edit.n);
    if (l->n_past == HISTORY_MAX) {
        free(l->past[0].text);
        memmove(l->past, l->past + 1, (HISTORY_MAX - 1) * sizeof l->past[0]);
        l->n_past--;
    }
    l->past[l->n_past++] = (struct past_line){copy, l->edit.n};
}

static void show_past(struct chat_line *l, int which)
{
    if (which < 0 || which > l->n_past || which == l->shown)
        return;
    if (l->shown == l->n_past)
        chat_edit_set(&l->draft, l->edit.text, l->edit.n);
    l->shown = which;
    if (which == l->n_past)
        chat_edit_set(&l->edit, l->draft.text, l->draft.n);
    else
        chat_edit_set(&l->edit, l->past[which].text, l->past[which].n);
}

/* ---- Keys ---- */

enum { CTRL_A = 1, CTRL_B, CTRL_C, CTRL_D, CTRL_E, CTRL_F, CTRL_K = 11, CTRL_L, ENTER, CTRL_N, CTRL_P = 16, CTRL_U = 21,
       CTRL_W = 23, CTRL_Z = 26, ESCAPE, DELETE = 127 };

static void take_paste(struct chat_line *l)
{
    static const char end[] = "\033[201~";
    const size_t      n_end = sizeof end - 1;
    struct chat_edit  paste = {0};
    int               byte;

    while ((byte = next_byte(l, true)) >= 0) {
        const char c = (char)byte;
        chat_edit_insert(&paste, &c, 1);
        if (paste.failed && paste.n > 0) { /* it is refused whole, but its end must still be found */
            chat_edit_set(&paste, &c, 1);
            l->edit.failed = true;
        }
        if (c == '~' && paste.n >= n_end && memcmp(paste.text + paste.n - n_end, end, n_end) == 0) {
            paste.n -= n_end;
            break;
        }
    }
    paste.n = chat_edit_clean(paste.text, paste.n);
    if (paste.n > 0 && paste.text[paste.n - 1] == '\n')
        paste.n--; /* it would be the Enter of whoever copied a whole line */
    if (!paste.failed)
        chat_edit_insert(&l->edit, paste.text, paste.n);
    l->edit.failed |= paste.failed;
    chat_edit_free(&paste);
}

static void move_or_recall(struct chat_line *l, int final, bool by_word)
{
    struct chat_edit *e = &l->edit;

    switch (final) {
    case 'A': show_past(l, l->shown - 1); break;
    case 'B': show_past(l, l->shown + 1); break;
    case 'C': e->cursor = by_word ? chat_edit_next_word(e, e->cursor) : chat_edit_next(e, e->cursor); break;
    case 'D': e->cursor = by_word ? chat_edit_previous_word(e, e->cursor) : chat_edit_previous(e, e->cursor); break;
    case 'H': e->cursor = 0; break;
    case 'F': e->cursor = e->n; break;
    default: break;
    }
}

/* ESC [ numbers letter */
static void take_sequence(struct chat_line *l)
{
    char number[16];
    int  n = 0, byte;

    while ((byte = next_byte(l, true)) >= 0 && (byte < 0x40 || byte > 0x7e))
        if (n < (int)sizeof number - 1)
            number[n++] = (char)byte;
    number[n] = '\0';
    if (byte != '~') {
        move_or_recall(l, byte, strchr(number, ';') != NULL);
        return;
    }
    switch (atoi(number)) {
    case 1:
    case 7: l->edit.cursor = 0; break;
    case 3: chat_edit_erase(&l->edit, l->edit.cursor, chat_edit_next(&l->edit, l->edit.cursor)); break;
    case 4:
    case 8: l->edit.cursor = l->edit.n; break;
    case 200: take_paste(l); break;
    default: break;
    }
}

static void take_escape(struct chat_line *l)
{
    if (!more_follows(l))
        return;
    const int byte = next_byte(l, true);
    if (byte == '[')
        take_sequence(l);
    else if (byte == 'O')
        move_or_recall(l, next_byte(l, true), false);
    else if (byte == 'b' || byte == 'f')
        move_or_recall(l, byte == 'b' ? 'D' : 'C', true);
    else if (byte == ENTER || byte == '\n')
        chat_edit_insert(&l->edit, "\n", 1);
}

static void suspend(void)
{
    switch_back();
    (void)raise(SIGTSTP);
    (void)switch_to_bytes();
}

static void take_key(struct chat_line *l, int byte)
{
    struct chat_edit *e = &l->edit;
    const char        c = (char)byte;

    switch (byte) {
    case CTRL_A: e->cursor = 0; break;
    case CTRL_E: e->cursor = e->n; break;
    case CTRL_B: move_or_recall(l, 'D', false); break;
    case CTRL_F: move_or_recall(l, 'C', false); break;
    case CTRL_P: move_or_recall(l, 'A', false); break;
    case CTRL_N: move_or_recall(l, 'B', false); break;
    case CTRL_D: chat_edit_erase(e, e->cursor, chat_edit_next(e, e->cursor)); break;
    case CTRL_K: chat_edit_erase(e, e->cursor, e->n); break;
    case CTRL_U: chat_edit_erase(e, 0, e->cursor); break;
    case CTRL_W: chat_edit_erase(e, chat_edit_previous_word(e, e->cursor), e->cursor); break;
    case CTRL_L: (void)fputs("\033[H\033[2J", stdout); break;
    case CTRL_Z: suspend(); break;
    case ESCAPE: take_escape(l); break;
    case '\b':
    case DELETE: chat_edit_erase(e, chat_edit_previous(e, e->cursor), e->cursor); break;
    default:
        if ((unsigned char)c >= 0x20 || c == '\t')
            chat_edit_insert(e, &c, 1);
        break;
    }
}

/* A backslash before Enter asks for another line. */
static bool continues(struct chat_edit *e)
{
    if (e->cursor != e->n || e->n == 0 || e->text[e->n - 1] != '\\')
        return false;
    e->text[e->n - 1] = '\n';
    return true;
}

static enum chat_typed edit_keys(struct chat_line *l)
{
    for (;;) {
        const int byte = next_byte(l, false);
        if (byte < 0 || (byte == CTRL_D && l->edit.n == 0)) {
            (void)fputs("\n", stdout);
            return CHAT_TYPED_END;
        }
        if (byte == CTRL_C) {
            draw(l);
            (void)fputs("^C\n", stdout);
            return CHAT_TYPED_INTERRUPTED;
        }
        if (byte != ENTER && byte != '\n')
            take_key(l, byte);
        else if (!continues(&l->edit))
            return CHAT_TYPED_TEXT;
    }
}

/* The NUL takes a byte of room that is no part of the text. */
static enum chat_typed finish(struct chat_line *l, const char **text, size_t *n)
{
    struct chat_edit *e = &l->edit;

    e->cursor = e->n;
    chat_edit_insert(e, "", 1);
    if (e->failed) {
        (void)cli_fail("the message is longer than %zu bytes, or memory is used up; it is not sent",
                       CHAT_EDIT_BYTES_MAX);
        return CHAT_TYPED_FAILED;
    }
    *text = e->text;
    *n = e->n - 1;
    return CHAT_TYPED_TEXT;
}

static enum chat_typed read_edited(struct chat_line *l, const char **text, size_t *n)
{
    struct chat_edit *e = &l->edit;

    chat_edit_set(e, "", 0);
    e->failed = false;
    l->shown = l->n_past;
    if (!switch_to_bytes())
        return CHAT_TYPED_END;
    enum chat_typed typed = edit_keys(l);
    if (typed == CHAT_TYPED_TEXT)
        chat_edit_draw_whole(e, l->prompt);
    (void)fflush(stdout);
    switch_back();
    if (typed != CHAT_TYPED_TEXT)
        return typed;
    if (!e->failed)
        remember(l);
    return finish(l, text, n);
}

/* ---- Without editing ---- */

/* More of a line from the system; as read(), which here never waits. Ctrl-C counts only while this waits, from before
 * the prompt is seen, so that none is lost between looking and waiting. */
static ssize_t wait_and_read(struct chat_line *l, const char *prompt)
{
    sigset_t interrupt, before;
    fd_set   input;

    FD_ZERO(&input);
    FD_SET(0, &input);
    (void)sigemptyset(&interrupt);
    (void)sigaddset(&interrupt, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &interrupt, &before);
    (void)fputs(prompt, stdout);
    (void)fflush(stdout);
    ssize_t n = pselect(1, &input, NULL, NULL, NULL, &before);
    if (n > 0)
        n = read(0, l->in, sizeof l->in);
    const int saved = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    errno = saved;
    return n;
}

/* One line, without its end, appended. */
static enum chat_typed plain_line(struct chat_line *l, const char *prompt)
{
    const size_t start = l->edit.n;

    for (;;) {
        const ssize_t n = wait_and_read(l, prompt);
        if (n < 0 && errno == EINTR)
            return CHAT_TYPED_INTERRUPTED;
        if (n < 0 || (n == 0 && l->edit.n == start))
            return CHAT_TYPED_END;
        const bool ended = n > 0 && l->in[n - 1] == '\n';
        chat_edit_insert(&l->edit, l->in, (size_t)n - (ended ? 1 : 0));
        if (ended || n == 0)
            return CHAT_TYPED_TEXT;
        prompt = "";
    }
}

static enum chat_typed read_plain(struct chat_line *l, const char **text, size_t *n)
{
    struct chat_edit *e = &l->edit;
    const char       *prompt = l->prompt;

    chat_edit_set(e, "", 0);
    e->failed = false;
    do {
        const enum chat_typed typed = plain_line(l, prompt);
        if (typed != CHAT_TYPED_TEXT) {
            (void)fputs("\n", stdout);
            return typed;
        }
        prompt = ". ";
    } while (continues(e));
    return finish(l, text, n);
}

enum chat_typed chat_line_read(struct chat_line *l, const char *prompt, const char **text, size_t *n)
{
    l->prompt = prompt;
    return l->edits ? read_edited(l, text, n) : read_plain(l, text, n);
}
