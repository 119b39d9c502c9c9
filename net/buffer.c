#include "kernel/core.h"
#include "kernel/smp.h"
#include "net/buffer.h"

/* What owner[] of a receive buffer holds. */
struct rx_pbuf {
    struct pbuf_custom custom;
    uint32_t length; /* while it travels: bytes written */
};
_Static_assert(sizeof(struct rx_pbuf) <= sizeof(((struct rx_buffer *)0)->owner), "the pbuf fits into its buffer");

static const struct rx_pool *mine;

void buffers_init(const struct rx_pool *pool)
{
    mine = pool;
}

static struct rx_pbuf *state_of(struct rx_buffer *buffer)
{
    return (struct rx_pbuf *)buffer->owner;
}

/* Puts a buffer on the list of those that its home core is to take back. Many cores push, the home takes all at once,
 * so a buffer that comes round again does no harm (there is no pop of one). A core that has run out of buffers is
 * woken: its ring may be empty, and then no interrupt of the device's would. */
static void send_home(struct rx_buffer *buffer)
{
    unsigned home = buffer->pool->home;
    struct public_core *face = (struct public_core *)&core_shared()->public_area->core[home];
    void *head = __atomic_load_n(&face->returned, __ATOMIC_RELAXED);
    do {
        buffer->next = head;
    } while (!__atomic_compare_exchange_n(&face->returned, &head, buffer, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
    /* Race: the home says that it starves and looks at the list once more; we push and look whether it starves. The
     * exchange above is a full fence on this side. */
    if (__atomic_load_n(&face->starved, __ATOMIC_RELAXED) && __atomic_exchange_n(&face->starved, 0, __ATOMIC_ACQ_REL))
        core_wake(core_shared(), home);
}

static void give_back(struct rx_buffer *buffer)
{
    if (buffer->pool == mine)
        virtnet_release(buffer);
    else
        send_home(buffer);
}

static void on_pbuf_free(struct pbuf *p)
{
    give_back((struct rx_buffer *)((char *)p - offsetof(struct rx_buffer, owner)));
}

/* As the pbuf lies in front of the bytes, in one piece with them, an answer can be built over what came in: headers may
 * grow to where those of the frame began, and by the virtio-net header's 12 bytes beyond, before they leave data[]. */
static struct pbuf *wrap(struct rx_buffer *buffer, uint32_t skip, uint32_t length)
{
    struct pbuf_custom *custom = &state_of(buffer)->custom;
    custom->custom_free_function = on_pbuf_free;
    return pbuf_alloced_custom(PBUF_RAW, (u16_t)(length - skip), PBUF_POOL, custom, buffer->data + skip,
                               (u16_t)(length - skip));
}

bool buffers_low(const struct virtnet_frame *frame)
{
    return frame->buffer[0]->pool == mine && mine->free_count < mine->low;
}

struct pbuf *buffers_wrap(const struct virtnet_frame *frame, uint32_t skip)
{
    if (frame->count == 1)
        return wrap(frame->buffer[0], skip, frame->length[0]);
    struct pbuf *rest = NULL;
    for (uint16_t i = frame->count; i-- > 1;) { /* from the end: each pbuf tells the bytes from it on */
        struct pbuf *p = wrap(frame->buffer[i], 0, frame->length[i]);
        p->next = rest;
        p->tot_len = (u16_t)(p->len + (rest != NULL ? rest->tot_len : 0));
        rest = p;
    }
    struct pbuf *head = wrap(frame->buffer[0], skip, frame->length[0]);
    head->next = rest;
    head->tot_len = (u16_t)(head->len + (rest != NULL ? rest->tot_len : 0));
    return head;
}

__attribute__((noinline)) struct pbuf *buffers_copy(const struct virtnet_frame *frame, uint32_t skip)
{
    uint32_t bytes = 0, at = 0;
    for (uint16_t i = 0; i < frame->count; i++)
        bytes += frame->length[i];
    struct pbuf *p = pbuf_alloc(PBUF_RAW, (u16_t)(bytes - skip), PBUF_RAM);
    for (uint16_t i = 0; i < frame->count; i++, skip = 0) {
        uint32_t n = frame->length[i] - skip;
        if (p != NULL)
            pbuf_take_at(p, frame->buffer[i]->data + skip, (u16_t)n, (u16_t)at);
        at += n;
        give_back(frame->buffer[i]);
    }
    return p;
}

__attribute__((noinline)) void buffers_release(const struct virtnet_frame *frame)
{
    for (uint16_t i = 0; i < frame->count; i++)
        give_back(frame->buffer[i]);
}

void buffers_link(const struct virtnet_frame *frame)
{
    for (uint16_t i = 0; i < frame->count; i++) {
        state_of(frame->buffer[i])->length = frame->length[i];
        frame->buffer[i]->next = i + 1 < frame->count ? frame->buffer[i + 1] : NULL;
    }
}

void buffers_unlink(struct rx_buffer *first, struct virtnet_frame *frame)
{
    frame->count = 0;
    for (struct rx_buffer *b = first; b != NULL && frame->count < VIRTNET_FRAME_PIECES; b = b->next) {
        frame->buffer[frame->count] = b;
        frame->length[frame->count++] = state_of(b)->length;
    }
}

unsigned buffers_come_home(struct public_core *face, uint64_t *count)
{
    unsigned n = 0;
    if (__atomic_load_n(&face->returned, __ATOMIC_RELAXED) == NULL)
        return 0;
    struct rx_buffer *b = __atomic_exchange_n(&face->returned, NULL, __ATOMIC_ACQUIRE);
    while (b != NULL) {
        struct rx_buffer *next = b->next;
        virtnet_release(b);
        b = next;
        n++;
    }
    *count += n;
    return n;
}
