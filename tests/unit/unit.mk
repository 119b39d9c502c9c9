# Host unit tests: `make unit` builds each program below into $(BUILD)/unit/ and runs it. Included by the Makefile, which sets BUILD and
# may set CC. The code under test is compiled here once more, for the host: with AddressSanitizer and UndefinedBehaviorSanitizer, or
# with ThreadSanitizer where threads meet, or plainly optimised where the order of stores is what is tested.
BUILD ?= build
UNIT_CC ?= $(CC)
UNIT_PYTHON ?= /usr/bin/python3
UNIT := $(BUILD)/unit

unit_common := -std=gnu17 -g -fno-omit-frame-pointer -Wall -Wextra -Werror -I. -MMD -MP
unit_flags_asan := $(unit_common) -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
unit_flags_tsan := $(unit_common) -O1 -fsanitize=thread
unit_flags_fast := $(unit_common) -O2

# program = how it is built, what it is made of
unit_programs := bootline_test ipaddr_test features_test pci_test
bootline_test_kind := asan
bootline_test_sources := tests/unit/bootline_test.c kernel/bootline.c kernel/ipaddr.c drivers/virtio/features.c
ipaddr_test_kind := asan
ipaddr_test_sources := tests/unit/ipaddr_test.c kernel/ipaddr.c
features_test_kind := asan
features_test_sources := tests/unit/features_test.c drivers/virtio/features.c
pci_test_kind := asan
pci_test_sources := tests/unit/pci_test.c tests/unit/fake_pci.c kernel/pci.c

define unit_program
$(UNIT)/$(1): $$($(1)_sources:%.c=$(UNIT)/$$($(1)_kind)/%.o)
	$$(UNIT_CC) $$(unit_flags_$$($(1)_kind)) -o $$@ $$^ -lcmocka -lpthread
unit_objects += $$($(1)_sources:%.c=$(UNIT)/$$($(1)_kind)/%.o)
endef
$(foreach p,$(unit_programs),$(eval $(call unit_program,$(p))))

define unit_kind
$(UNIT)/$(1)/%.o: %.c tests/unit/unit.mk
	@mkdir -p $$(dir $$@)
	$$(UNIT_CC) $$(unit_flags_$(1)) -c -o $$@ $$<
endef
$(foreach k,asan tsan fast,$(eval $(call unit_kind,$(k))))

.PHONY: unit unit-build
unit-build: $(unit_programs:%=$(UNIT)/%)
unit: unit-build
	$(UNIT_PYTHON) tests/unit/run.py $(UNIT) $(unit_programs)

-include $(unit_objects:.o=.d)
