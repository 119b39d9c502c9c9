# Fuzz targets: `make fuzz` builds each below with libFuzzer into $(BUILD)/fuzz/ and runs it. The driver's own files, compiled for the
# host with AddressSanitizer and UndefinedBehaviorSanitizer, by clang, which brings libFuzzer.
FUZZ := $(BUILD)/fuzz
FUZZ_CC ?= clang
fuzz_targets := bootline ring capabilities receive frames device
fuzz_bootline := kernel/bootline.c kernel/ipaddr.c drivers/virtio/features.c
fuzz_ring := drivers/virtio/split.c
fuzz_capabilities := $(modern_rig_sources)
fuzz_receive := $(net_rig_sources)
fuzz_frames := net/rss.c net/offload.c
fuzz_device := $(modern_rig_sources) $(addprefix drivers/virtio/,net.c net_queue.c split.c device.c features.c control.c)
fuzz_flags := -std=gnu17 -g -O1 -fno-omit-frame-pointer -Wall -Wextra -Werror -I. -idirafter tests/unit/host \
	-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all

define fuzz_target
$(FUZZ)/$(1): tests/fuzz/$(1)_fuzz.c $$(fuzz_$(1)) tests/fuzz/fuzz.h tests/fuzz/fuzz.mk $$(wildcard tests/unit/*.[ch] drivers/virtio/*.[ch] kernel/*.h net/*.h)
	@mkdir -p $$(dir $$@)
	$$(FUZZ_CC) $$(fuzz_flags) -o $$@ tests/fuzz/$(1)_fuzz.c $$(fuzz_$(1)) -lcmocka
endef
$(foreach t,$(fuzz_targets),$(eval $(call fuzz_target,$(t))))

# TARGET: one of them; SECONDS: how long each runs.
TARGET ?= $(fuzz_targets)
SECONDS ?= 60
.PHONY: fuzz fuzz-build
fuzz-build: $(fuzz_targets:%=$(FUZZ)/%)
fuzz: $(TARGET:%=$(FUZZ)/%)
	$(PYTHON) tests/fuzz/run.py --seconds $(SECONDS) --folder $(FUZZ) $(TARGET)
