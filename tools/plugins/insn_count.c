/* A QEMU TCG plugin (API v1, QEMU 7.2 and later): counts guest instructions of each vCPU and of each translated block,
 * exactly and whatever else the host does.
 *
 *   gcc -O2 -shared -fPIC -o insn_count.so insn_count.c
 *   qemu-system-x86_64 ... -plugin ./insn_count.so,out=FILE[,poll=FIRST-LAST]...
 *
 * FILE is mapped and shared, so another program reads it while the guest runs: difference before and after a test,
 * divided by its transactions. It holds, for each of 64 vCPUs, 128 bytes:
 *
 *   u64 instructions   all executed; a repeated string instruction counts once per step (so TCG runs it), and QEMU 7.2
 *                      once more to see that it is done
 *   u64 rep_steps      repeated string instructions among them
 *   u64 blocks         translated blocks executed
 *   u64 rep_starts     repeated string instructions begun
 *   u64 wakes          times it went on after it had slept
 *   u64 polled         instructions in the ranges poll= (hexadecimal addresses, both ends included; up to 16), and in
 *                      what is called from there
 *   u64 private[10]
 *
 * so that instructions - rep_steps + rep_starts counts a repeated string instruction once. Then 131,072 times 64 bytes,
 * one for each different block, in no order; a line whose number of instructions is 0 is free. After them one more that
 * counts what found no room:
 *
 *   u64 address        of its first instruction, as the guest sees it
 *   u64 executed
 *   u64 rep_steps
 *   u64 rep_starts
 *   u16 instructions
 *   u16 bytes          its length
 *   u8 first[28]       the first of its bytes, by which a copy of a program is recognised
 *
 * Each vCPU counts in its own line, and blocks are counted by atomic additions, so the counts are exact with any number
 * of threads. A block that is left early (an exception, a device access that ends it) counts as a whole. A string
 * instruction that an interrupt suspends counts as begun once more. Declarations are written out: no QEMU header is
 * needed.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define VCPUS  64
#define BLOCKS 131072u /* a power of two */
#define FIRST  28

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*translated_fn)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*vcpu_fn)(qemu_plugin_id_t id, unsigned vcpu);
typedef void (*executed_fn)(unsigned vcpu, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_fn translated);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, executed_fn executed, int flags, void *data);
void qemu_plugin_register_vcpu_resume_cb(qemu_plugin_id_t id, vcpu_fn resumed);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
__attribute__((visibility("default"))) int qemu_plugin_version = 1;

struct counts {
    _Alignas(128) uint64_t instructions;
    uint64_t rep_steps, blocks, rep_starts, wakes, polled;
    uint64_t repeating; /* for on_block: address of the string instruction that the last block ended with, or 0 */
    uint64_t return_to; /* for count_polled: where the call that the last polling block ended with returns to, or 0 */
    uint64_t away;      /* ... and the instructions since then */
};

struct block {
    uint64_t address, executed, rep_steps, rep_starts;
    uint16_t instructions, bytes;
    uint8_t first[FIRST];
};

struct file {
    struct counts cpu[VCPUS];
    struct block block[BLOCKS], others;
};

static struct file *file;

_Static_assert(sizeof(struct counts) == 128 && sizeof(struct block) == 64, "as the head of this file says");

/* What a block's callback is to know of it; never freed, since QEMU does not say when a translation goes. */
struct translated {
    struct block *block;
    uint64_t rep; /* address of its string instruction, always the last one (TCG ends a block there), or 0 */
    uint64_t start, end;
    uint32_t instructions;
    bool rep_is_first, polls, calls;
};

static struct range {
    uint64_t first, last;
} polling[16];
static unsigned ranges;

static void add(uint64_t *to, uint64_t n)
{
    __atomic_fetch_add(to, n, __ATOMIC_RELAXED);
}

/* What is called from a polling block is polling too, if it comes back to where it was called from. */
static void count_polled(struct counts *c, const struct translated *t)
{
    if (!t->polls) {
        c->away += t->instructions;
        return;
    }
    c->polled += t->instructions + (c->return_to == t->start ? c->away : 0);
    c->return_to = t->calls ? t->end : 0;
    c->away = 0;
}

static void on_block(unsigned vcpu, void *data)
{
    const struct translated *t = data;
    struct counts *c = &file->cpu[vcpu % VCPUS];
    c->instructions += t->instructions;
    c->blocks++;
    add(&t->block->executed, 1);
    if (t->rep != 0) {
        c->rep_steps++;
        add(&t->block->rep_steps, 1);
        if (!t->rep_is_first || c->repeating != t->rep) { /* else one more step of the same one */
            c->rep_starts++;
            add(&t->block->rep_starts, 1);
        }
    }
    c->repeating = t->rep;
    if (ranges > 0)
        count_polled(c, t);
}

static void on_wake(qemu_plugin_id_t id, unsigned vcpu)
{
    (void)id;
    file->cpu[vcpu % VCPUS].wakes++;
}

static bool is_prefix(uint8_t b)
{
    static const uint8_t prefixes[] = { 0x66, 0x67, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65 };
    return memchr(prefixes, b, sizeof prefixes) != NULL || (b & 0xf0) == 0x40; /* the last: REX */
}

/* A string instruction (movs, cmps, stos, lods, scas, ins, outs) with a REP prefix, other prefixes allowed. */
static bool is_rep_string(const struct qemu_plugin_insn *insn)
{
    const uint8_t *b = qemu_plugin_insn_data(insn), *end = b + qemu_plugin_insn_size(insn);
    bool rep = false;
    for (; b < end; b++) {
        if (*b == 0xf2 || *b == 0xf3)
            rep = true;
        else if (!is_prefix(*b))
            return rep && ((*b >= 0xa4 && *b <= 0xa7) || (*b >= 0xaa && *b <= 0xaf) || (*b >= 0x6c && *b <= 0x6f));
    }
    return false;
}

/* A near call, direct or indirect. */
static bool is_call(const struct qemu_plugin_insn *insn)
{
    const uint8_t *b = qemu_plugin_insn_data(insn), *end = b + qemu_plugin_insn_size(insn);
    while (b < end && is_prefix(*b))
        b++;
    return b < end && (*b == 0xe8 || (*b == 0xff && b + 1 < end && (b[1] >> 3 & 7) == 2));
}

static bool is_polling(uint64_t address)
{
    for (unsigned i = 0; i < ranges; i++)
        if (polling[i].first <= address && address <= polling[i].last)
            return true;
    return false;
}

static atomic_flag table_lock = ATOMIC_FLAG_INIT;

/* The table's line for a block; a block translated again finds the line it had. */
static struct block *line_of(uint64_t address, uint16_t instructions, uint16_t bytes, const uint8_t first[FIRST])
{
    uint64_t hash = (address * 31 + instructions) * 0x9e3779b97f4a7c15u;
    struct block *b = NULL;
    while (atomic_flag_test_and_set_explicit(&table_lock, memory_order_acquire))
        ;
    for (unsigned tries = 0; tries < 256; tries++) {
        b = &file->block[((hash >> 40) + tries) & (BLOCKS - 1)];
        if (b->instructions == 0) {
            *b = (struct block){ .address = address, .instructions = instructions, .bytes = bytes };
            memcpy(b->first, first, FIRST);
        }
        if (b->address == address && b->instructions == instructions && b->bytes == bytes &&
            memcmp(b->first, first, FIRST) == 0)
            break;
        b = NULL;
    }
    atomic_flag_clear_explicit(&table_lock, memory_order_release);
    return b;
}

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    size_t n = qemu_plugin_tb_n_insns(tb), bytes = 0, kept = 0;
    uint8_t first[FIRST] = { 0 };
    for (size_t i = 0; i < n; i++) {
        const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        size_t size = qemu_plugin_insn_size(insn), take = size < FIRST - kept ? size : FIRST - kept;
        memcpy(first + kept, qemu_plugin_insn_data(insn), take);
        kept += take;
        bytes += size;
    }
    const struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, n - 1);
    struct translated *t = malloc(sizeof *t);
    if (t == NULL)
        return;
    t->instructions = (uint32_t)n;
    t->rep = is_rep_string(last) ? qemu_plugin_insn_vaddr(last) : 0;
    t->rep_is_first = n == 1;
    t->start = qemu_plugin_tb_vaddr(tb);
    t->end = t->start + bytes;
    t->polls = is_polling(t->start);
    t->calls = is_call(last);
    t->block = line_of(t->start, (uint16_t)n, (uint16_t)bytes, first);
    if (t->block == NULL)
        t->block = &file->others;
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, 0, t);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc,
                                                               char **argv)
{
    (void)info;
    const char *out = "insn_count.map";
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0)
            out = argv[i] + 4;
        if (strncmp(argv[i], "poll=", 5) == 0 && ranges < sizeof polling / sizeof *polling) {
            char *dash;
            polling[ranges].first = strtoull(argv[i] + 5, &dash, 16);
            polling[ranges++].last = *dash == '-' ? strtoull(dash + 1, NULL, 16) : 0;
        }
    }
    int fd = open(out, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof *file) < 0)
        return -1;
    file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_vcpu_resume_cb(id, on_wake);
    return 0;
}
