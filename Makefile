# `make run` and `make test` need Rust, a C compiler, Python and make, and install the rest (`tools/prepare`).
# `make bench` downloads the programs that it compares into the user's cache.

CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: run build dist release image gpu prepare test test-gpu soak fuzz bare lint openapi scorer bench bench-quick

# Without a model (no network, say) the service still starts, and says what is missing.
run: build
	@-$(TARGET)/release/adriaticum model fetch --if-needed
	@$(TARGET)/release/adriaticum serve --first-key

build: prepare
	@tools/build

# Optimised as a whole, for benchmarks: in $(TARGET)/dist. `make release` packs such a program into an archive.
dist: prepare
	$(CARGO) build --profile dist --locked -p adriaticum

# A reproducible archive for other machines, with kernels for every CPU, and its checksum. See docs/building.md.
RELEASE := $(TARGET)/release-archive
release: prepare
	tools/release --to $(RELEASE)

# The same as an image, made by Debian's buildah.
image: release
	tools/image $(RELEASE)/adriaticum-*.tar.gz $(RELEASE)/adriaticum-image.tar

# The engine's kernels for GPUs, for the program of `make build` and `make dist`; also on a machine without a card.
gpu: prepare
	tools/gpu $(TARGET)/release/kernels
	mkdir -p $(TARGET)/dist && cp -R $(TARGET)/release/kernels $(TARGET)/dist/

# Real answers by Vulkan's kernels, on Mesa's driver for CPUs. Not a part of `make test`: it compiles for long.
test-gpu:
	@tools/prepare --gpu-tests
	tools/gpu $(TARGET)/test-gpu/kernels vulkan
	$(CARGO) test --release --locked --workspace --test gpu -- --include-ignored

prepare:
	@tools/prepare

test:
	@tools/test

# Everything at once for hours, with the embedded model beside: memory, files and threads stay as they were, and nothing
# is lost. `make test` runs half a minute of it.
HOURS ?= 1
soak: prepare
	SOAK_HOURS=$(HOURS) $(CARGO) test --release --locked -p adriaticum --test soak -- --nocapture --include-ignored

# What `make test` fuzzes for a second, so many minutes for each target: parsers, extractors, cleaning, templates, headers.
# See crates/fuzzer.
fuzz: MINUTES ?= 1
fuzz: prepare
	FUZZ_SECONDS=$$(( $(MINUTES) * 60 )) $(CARGO) test --release --locked --workspace --lib --bins --no-fail-fast -- \
		fuzz:: --nocapture --test-threads 1

# A first request and all tests on a bare Debian, as a new user has it; needs root. See `tools/bare`.
bare:
	tools/bare first-answer
	tools/bare make test

lint: prepare
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets --locked -- -D warnings
	python3 -m py_compile bench/*.py
	tools/deny

# Rewrites docs/openapi.json from the code.
openapi: prepare
	REWRITE_OPENAPI=1 $(CARGO) test --release --locked -p adriaticum --test openapi description_is_public

# Trains the scorer on the labelled rows of crates/grounding/data. See docs/grounding.md for the steps around it.
scorer:
	$(CARGO) run --release --locked -p grounding --example train

bench: dist
	$(CARGO) build --profile dist --locked -p store --examples
	$(CARGO) build --profile dist --locked -p grounding --examples
	python3 bench/gateways.py --results bench/RESULTS.md
	python3 bench/growth.py --results bench/RESULTS.md
	python3 bench/replicas.py --results bench/RESULTS.md
	python3 bench/console.py --results bench/RESULTS.md
	python3 bench/grounding.py --results bench/RESULTS.md
	python3 bench/pool.py --results bench/RESULTS.md
	python3 bench/engine.py --results bench/RESULTS.md

bench-quick: dist
	python3 bench/gateways.py --quick
	python3 bench/engine.py --quick
