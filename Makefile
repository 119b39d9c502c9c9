# Ringside: `make` builds build/ringside.elf. `make help` lists the rest.
# CC=clang BUILD=build/clang builds with clang beside it.
BUILD ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
PYTHON := /usr/bin/python3
# One short line per step; V=1 shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),@:,@printf '  %-8s %s\n' $(1) $(2))

all: $(BUILD)/ringside.elf $(BUILD)/NOTICE $(BUILD)/LICENSE

no_deps := clean help conformance-table
ifneq ($(filter-out $(no_deps),$(or $(MAKECMDGOALS),all)),)
include $(BUILD)/deps.mk
endif
# What comes from outside: packages, lwIP's sources, newlib compiled. Asked again when the pins or the scripts change.
$(BUILD)/deps.mk: tools/deps.sh tools/pins.txt tools/build-newlib.sh tools/newlib-files.txt tools/packages.sh \
    net/patches/lwip-2.2.1.patch
	CC="$(CC)" tools/deps.sh $@

# ---- the program: a static PIE ----
program_sources := $(wildcard kernel/*.c drivers/virtio/*.c net/*.c net/port/*.c apps/*.c apps/*/*.c) boot/load.c kernel/entry.S kernel/ap.S \
    apps/status_page.S
lwip_core := init def inet_chksum ip mem memp netif pbuf stats sys tcp tcp_in tcp_out timeouts udp
lwip_sources := $(lwip_core:%=core/%.c) netif/ethernet.c apps/http/httpd.c \
    $(addprefix core/ipv4/,dhcp.c etharp.c icmp.c ip4.c ip4_addr.c ip4_frag.c) \
    $(addprefix core/ipv6/,ethip6.c icmp6.c inet6.c ip6.c ip6_addr.c ip6_frag.c mld6.c nd6.c)
guest_test_sources := $(wildcard tests/guest/*.c)

warnings := -Wall -Wextra -Werror
# What makes loops faster costs a path without loops instructions: vectors made of a few fields that lie together, padding, work done in
# advance for a branch that is not taken.
straight := -fno-tree-vectorize $(if $(findstring clang,$(CC)),,-fno-align-loops -fno-align-jumps -fno-align-labels -fno-tree-pre \
    -fno-code-hoisting)
machine := -std=gnu17 -O2 $(straight) -g -ffreestanding -fbuiltin -mno-red-zone -fno-stack-protector -fcf-protection=none \
    -fno-asynchronous-unwind-tables -fno-strict-aliasing -ffunction-sections -fdata-sections
headers = -nostdinc -isystem $(shell $(CC) -print-file-name=include) -isystem $(NEWLIB_DIR)/include \
    -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu
# The whole program is compiled as one, where the compiler and the linker are of one make.
lto := $(if $(findstring clang,$(CC)),,-flto=auto -fno-fat-lto-objects)
program_flags = $(machine) $(lto) -DLWIP_NOASSERT -fPIE -fvisibility=hidden $(headers) -I. -Inet/port -isystem $(LWIP_DIR)/src/include -MD -MP
# gcc takes low physical addresses for arrays of no length (-Warray-bounds).
quirks := $(if $(findstring clang,$(CC)),-Wno-unused-command-line-argument,--param=min-pagesize=0)

program_objects := $(patsubst %,$(BUILD)/program/%.o,$(basename $(program_sources)))
lwip_objects := $(lwip_sources:%.c=$(BUILD)/lwip/%.o)
guest_test_objects := $(guest_test_sources:%.c=$(BUILD)/program/%.o)

# (deps.mk: where lwIP's headers are. The old ones may still be there.)
$(BUILD)/program/%.o: %.c $(BUILD)/deps.mk Makefile
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(program_flags) $(warnings) $(quirks) -c -o $@ $<
$(BUILD)/program/%.o: %.S Makefile
	@mkdir -p $(@D)
	$(call say,AS,$@)
	$(Q)$(CC) -fPIE -c -o $@ $<
$(BUILD)/program/apps/status_page.o: apps/status.html
# The library's own functions: not made into calls of themselves, and there for calls that the compiler makes up while linking.
# The tests that run in the guest do what a compiler that understands them would leave out.
$(patsubst %,$(BUILD)/program/kernel/%.o,string libc malloc) $(guest_test_objects): lto := -fno-builtin \
    $(if $(findstring clang,$(CC)),,-fno-tree-loop-distribute-patterns)
$(lwip_objects): $(BUILD)/lwip/%.o: $(LWIP_DIR)/src/%.c $(BUILD)/deps.mk Makefile
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(program_flags) -w -c -o $@ $<

# Its timers have memory of their own: net/port/timeout_memory.c.
timeout_memory := -Dmemp_malloc=net_timeout_take -Dmemp_free=net_timeout_give
$(BUILD)/lwip/core/timeouts.o: program_flags += $(timeout_memory)

# What runs for each packet: more of it is taken into its callers, most where that costs least memory.
hot_lwip := mem memp pbuf tcp tcp_in tcp_out udp inet_chksum ipv4/ip4 ipv4/icmp
hot_apps := kernel/heap apps/echo $(addprefix apps/netserver/,leg leg_tcp leg_udp)
hot := drivers/virtio/split drivers/virtio/net_queue $(addprefix net/,buffer ether loop netif offload pcb_hash segment steer port/chksum)
inline_up_to = $(if $(findstring clang,$(CC)),,--param=max-inline-insns-auto=$1)
$(hot_lwip:%=$(BUILD)/lwip/core/%.o) $(hot_apps:%=$(BUILD)/program/%.o): machine += $(call inline_up_to,30)
$(hot:%=$(BUILD)/program/%.o): machine += $(call inline_up_to,80)
# What runs when somebody asks.
$(patsubst %,$(BUILD)/program/%.o,drivers/virtio/recorder kernel/trace): machine += -Os

# What runs once, by request, is small.
$(BUILD)/program/apps/conform/%.o: machine += -Os

link = $(CC) $(machine) $(lto) -fPIE -nostdlib -static-pie -Wl,--no-dynamic-linker,-z,norelro,-z,noexecstack,-z,text,--gc-sections,--build-id=none \
    -Wl,-T,linker.ld -Wl,--no-warn-rwx-segments
$(BUILD)/program.elf: $(program_objects) $(lwip_objects) linker.ld
	$(call say,LD,$@)
	$(Q)$(link) -o $@ $(program_objects) $(lwip_objects) $(NEWLIB_DIR)/lib/libc.a
$(BUILD)/program-test.elf: $(program_objects) $(lwip_objects) $(guest_test_objects) linker.ld
	$(call say,LD,$@)
	$(Q)$(link) -o $@ $(program_objects) $(guest_test_objects) $(lwip_objects) $(NEWLIB_DIR)/lib/libc.a

# ---- the image: loader, program, names for backtraces ----
loader_flags := -std=gnu17 -O2 -g -ffreestanding -mno-red-zone -mgeneral-regs-only -fno-pic -fno-pie -fno-stack-protector \
    -fcf-protection=none -fno-asynchronous-unwind-tables -I. -MD -MP
loader_objects := $(addprefix $(BUILD)/loader/,info.o load.o loader.o)
$(BUILD)/loader/%.o: boot/%.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(loader_flags) $(warnings) $(quirks) -c -o $@ $<
$(BUILD)/%.stripped: $(BUILD)/%.elf
	$(call say,STRIP,$@)
	$(Q)strip -s -o $@ $<
$(BUILD)/%.symbols.S: $(BUILD)/%.elf tools/symbols.py
	$(call say,SYMBOLS,$@)
	$(Q)$(PYTHON) tools/symbols.py $< $@
$(BUILD)/%.symbols.o: $(BUILD)/%.symbols.S
	$(call say,AS,$@)
	$(Q)$(CC) -c -o $@ $<
$(BUILD)/%.entry.o: boot/entry.S $(BUILD)/%.stripped
	$(call say,AS,$@)
	$(Q)$(CC) -fno-pic -DPROGRAM='"$(BUILD)/$*.stripped"' -c -o $@ $<
image = $(CC) -nostdlib -static -Wl,-T,boot/boot.ld,-z,noexecstack,-z,max-page-size=4096,--build-id=none,--no-warn-rwx-segments
$(BUILD)/ringside.elf: $(BUILD)/program.entry.o $(loader_objects) $(BUILD)/program.symbols.o boot/boot.ld
	$(call say,LD,$@)
	$(Q)$(image) -o $@ $(filter %.o,$^)
$(BUILD)/ringside-test.elf: $(BUILD)/program-test.entry.o $(loader_objects) $(BUILD)/program-test.symbols.o boot/boot.ld
	$(call say,LD,$@)
	$(Q)$(image) -o $@ $(filter %.o,$^)
.SECONDARY: $(foreach p,program program-test,$(addprefix $(BUILD)/$(p),.stripped .symbols.S .symbols.o .entry.o))

# Whoever passes the image on passes these on with it.
$(BUILD)/NOTICE $(BUILD)/LICENSE: $(BUILD)/%: %
	@cp $< $@

guest-tests: $(BUILD)/ringside-test.elf
iso: $(BUILD)/ringside.iso $(BUILD)/NOTICE $(BUILD)/LICENSE
$(BUILD)/ringside.iso: $(BUILD)/ringside.elf tools/make-iso.sh
	tools/packages.sh iso
	tools/make-iso.sh $< $@ "$(ARGS)"

# ---- run, test ----
BACKEND ?= user
CPUS ?= 1
QUEUES ?=
ARGS ?=
run: $(BUILD)/ringside.elf
	tools/ringside run --image $< --backend "$(BACKEND)" --cpus "$(CPUS)" $(if $(QUEUES),--queues "$(QUEUES)") --append "$(ARGS)"
test: all guest-tests iso
	tools/ringside test
test-full: all guest-tests iso
	tools/ringside test --full
bench: all
	tools/ringside bench $(if $(LAB),--lab "$(LAB)") $(if $(FULL),--full) $(BENCH)
# Without BACKEND=... all that there are. CONFORM: more options of tools/ringside conform
conform: all
	tools/ringside conform $(if $(filter file,$(origin BACKEND)),,--backend "$(BACKEND)") $(CONFORM)

# Seeded faults in the driver: each must be found by the test that docs/conformance.md names. MUTANTS: options of run.py
mutants: $(BUILD)/deps.mk
	$(PYTHON) tests/mutants/run.py $(MUTANTS)

# docs/conformance.md: every statement of the specification about a driver, with the test that shows it.
conformance-table:
	$(PYTHON) tests/conformance/check.py
	$(PYTHON) tests/conformance/table.py

ifneq ($(wildcard tests/unit/unit.mk),)
include tests/unit/unit.mk
include tests/fuzz/fuzz.mk
endif

clean:
	rm -rf build
help:
	@echo "make             build/ringside.elf"
	@echo "make iso         build/ringside.iso (GRUB, BIOS and UEFI)"
	@echo "make run         boots it in QEMU; BACKEND=... CPUS=... QUEUES=... ARGS=\"boot line\""
	@echo "make test        every test that needs no special hardware; test-full: every combination"
	@echo "make bench       measures beside a Linux guest, under 10 minutes; FULL=1, LAB=kvm, BENCH=\"options of tools/ringside bench\""
	@echo "make conform     checks backends against the virtio specification; BACKEND=NAME (tools/ringside conform --list)"
	@echo "make unit        the unit tests on the host alone"
	@echo "make mutants     seeded faults in the driver, each to be found by its test; MUTANTS=\"--list\""
	@echo "make fuzz        libFuzzer on what a device and a user can write; TARGET=... SECONDS=60"
	@echo "make conformance-table   docs/conformance.md from tests/conformance, checked"
	@echo "make clean       removes build/"

-include $(program_objects:.o=.d) $(guest_test_objects:.o=.d) $(lwip_objects:.o=.d) $(loader_objects:.o=.d)
.PHONY: all guest-tests iso run test test-full bench conform mutants conformance-table clean help
