/* Making a core's copy of the program: copy, relocate, lay out the stacks. */
#include <elf.h>
#include <stddef.h>
#include "boot/load.h"

static uint64_t page_up(uint64_t n)
{
    return (n + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static const Elf64_Phdr *headers(const void *image, unsigned *count)
{
    const Elf64_Ehdr *e = image;
    *count = e->e_phnum;
    return (const Elf64_Phdr *)((const char *)image + e->e_phoff);
}

/* True for a segment that is part of a copy. */
static bool wanted(const Elf64_Phdr *p, bool checks)
{
    return p->p_type == PT_LOAD && p->p_memsz != 0 && (checks || !(p->p_flags & WORLD_CHECKS));
}

/* The span of the wanted segments, as linked. */
static struct range span(const void *image, bool checks)
{
    struct range r = { UINT64_MAX, 0 };
    unsigned count;
    const Elf64_Phdr *p = headers(image, &count);
    for (; count > 0; count--, p++) {
        if (!wanted(p, checks))
            continue;
        if (p->p_vaddr < r.start)
            r.start = p->p_vaddr;
        if (p->p_vaddr + p->p_memsz > r.end)
            r.end = p->p_vaddr + p->p_memsz;
    }
    r.end = page_up(r.end);
    return r;
}

uint64_t world_size(const void *image, bool checks, uint64_t *linked)
{
    const Elf64_Ehdr *e = image;
    if (e->e_ident[EI_MAG0] != ELFMAG0 || e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_machine != EM_X86_64)
        return 0; /* e_type is ET_DYN or ET_EXEC: ld says the latter of a PIE linked at an address */
    struct range r = span(image, checks);
    if (r.start >= r.end || (r.start & (PAGE - 1)) != 0)
        return 0;
    *linked = r.start;
    return r.end - r.start + 2 * PAGE + WORLD_STACK + WORLD_IST;
}

static void copy(char *to, const char *from, uint64_t filled, uint64_t size)
{
    uint64_t rest = size - filled;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(filled) : : "memory");
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(rest) : "a"(0) : "memory");
}

/* Applies the relocations that PT_DYNAMIC names, of what lies below `end`; `bias` is the distance from where the image
 * was linked. */
static const char *relocate(const Elf64_Dyn *dyn, uint64_t bias, uint64_t end)
{
    const Elf64_Rela *rela = NULL;
    uint64_t size = 0;
    for (; dyn->d_tag != DT_NULL; dyn++) {
        if (dyn->d_tag == DT_RELA)
            rela = (const Elf64_Rela *)(dyn->d_un.d_ptr + bias);
        if (dyn->d_tag == DT_RELASZ)
            size = dyn->d_un.d_val;
    }
    for (uint64_t i = 0; i < size / sizeof *rela; i++) {
        if (ELF64_R_TYPE(rela[i].r_info) != R_X86_64_RELATIVE)
            return "a relocation is not RELATIVE";
        if (rela[i].r_offset + bias < end) /* else of the checks, which are not there */
            *(uint64_t *)(rela[i].r_offset + bias) = (uint64_t)rela[i].r_addend + bias;
    }
    return NULL;
}

const char *world_load(const void *image, bool checks, uint64_t base, struct world *world)
{
    struct range linked = span(image, checks);
    uint64_t bias = base - linked.start;
    const Elf64_Dyn *dyn = NULL;
    unsigned count;
    const Elf64_Phdr *p = headers(image, &count);
    world->segment_count = 0;
    for (; count > 0; count--, p++) {
        uint64_t at = p->p_vaddr + bias;
        if (p->p_type == PT_DYNAMIC)
            dyn = (const Elf64_Dyn *)at;
        if (!wanted(p, checks))
            continue;
        if (world->segment_count == SHARED_MAX_SEGMENTS || (at & (PAGE - 1)) != 0)
            return "too many segments, or one is not page-aligned";
        copy((char *)at, (const char *)image + p->p_offset, p->p_filesz, page_up(p->p_memsz));
        world->segment[world->segment_count++] = (struct segment){ { at, at + page_up(p->p_memsz) }, p->p_flags & 7 };
    }
    uint64_t end = base + (linked.end - linked.start);
    const char *wrong = dyn != NULL ? relocate(dyn, bias, end) : NULL;
    world->guard[0] = end;
    world->stack = (struct range){ end + PAGE, end + PAGE + WORLD_STACK };
    world->guard[1] = world->stack.end;
    world->ist = (struct range){ world->stack.end + PAGE, world->stack.end + PAGE + WORLD_IST };
    world->at = (struct range){ base, world->ist.end };
    world->entry = ((const Elf64_Ehdr *)image)->e_entry + bias;
    return wrong;
}
