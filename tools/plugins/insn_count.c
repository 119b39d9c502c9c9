/* A QEMU TCG plugin (API v1, QEMU 7.2 and later): counts guest instructions of each vCPU, exactly and whatever else the
 * host does.
 *
 *   gcc -O2 -shared -fPIC -o insn_count.so insn_count.c
 *   qemu-system-x86_64 ... -plugin ./insn_count.so,out=FILE
 *
 * FILE is mapped and shared, so another program reads it while the guest runs: difference before and after a test,
 * divided by its transactions. It holds, for each of 64 vCPUs, 64 bytes:
 *   u64 instructions   all executed; a repeated string instruction counts once per step (so TCG runs it)
 *   u64 rep_steps      steps of repeated string instructions among them: instructions - rep_steps is what to compare
 *   u64 blocks         translated blocks executed
 *   u64 unused[5]
 * Each vCPU counts in its own line, so the counts are exact with any number of threads. A block that is left early (an
 * exception, a device access that ends it) counts as a whole. Declarations are written out: no QEMU header is needed.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define VCPUS 64

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*translated_fn)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*executed_fn)(unsigned vcpu, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_fn translated);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, executed_fn executed, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, executed_fn executed, int flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
__attribute__((visibility("default"))) int qemu_plugin_version = 1;

struct counts {
    _Alignas(64) uint64_t instructions;
    uint64_t rep_steps, blocks;
};

_Static_assert(sizeof(struct counts) == 64, "as the head of this file says");

static struct counts *counts;

static void on_block(unsigned vcpu, void *instructions)
{
    struct counts *c = &counts[vcpu % VCPUS];
    c->instructions += (uintptr_t)instructions;
    c->blocks++;
}

static void on_rep(unsigned vcpu, void *data)
{
    (void)data;
    counts[vcpu % VCPUS].rep_steps++;
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

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    size_t n = qemu_plugin_tb_n_insns(tb);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, 0, (void *)(uintptr_t)n);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        if (is_rep_string(insn))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_rep, 0, NULL);
    }
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc,
                                                               char **argv)
{
    (void)info;
    const char *out = "insn_count.map";
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "out=", 4) == 0)
            out = argv[i] + 4;
    int fd = open(out, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof *counts * VCPUS) < 0)
        return -1;
    counts = mmap(NULL, sizeof *counts * VCPUS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counts == MAP_FAILED)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    return 0;
}
