# `make run` and `make test` need Rust, a C compiler, Python and make, and install the rest (`tools/prepare`).
# `make bench` downloads the programs that it compares into the user's cache.

CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: run build dist release image gpu prepare test check test-gpu soak fuzz bare lint docs scorer bench bench-quick

# Without a model (no network, say) the service still starts, and says what is missing.
run: build
	@-$(TARGET)/quick/adriaticum model fetch --if-needed
	@$(TARGET)/quick/adriaticum serve --first-key

build: prepare
	@tools/build

# The program as it is installed and measured: $(TARGET)/release/adriaticum. `make release` packs one into an archive.
dist: prepare
	$(CARGO) build --release --locked -p adriaticum

# A reproducible archive for other machines, with kernels for every CPU, and its checksum, which is signed if SIGN names a
# secret key of minisign. See docs/building.md.
RELEASE := $(TARGET)/release-archive
release: prepare
	tools/release --to $(RELEASE) $(if $(SIGN),--sign $(SIGN))

# The same as an image, made by Debian's buildah.
image: release
	tools/image $(RELEASE)/adriaticum-*.tar.gz $(RELEASE)/adriaticum-image.tar

# The engine's kernels for GPUs, for the program of `make build` and `make dist`; also on a machine without a card.
gpu: prepare
	tools/gpu $(TARGET)/quick/kernels
	mkdir -p $(TARGET)/release && cp -R $(TARGET)/quick/kernels $(TARGET)/release/

# Real answers by Vulkan's kernels, on Mesa's driver for CPUs. Not a part of `make test`: it compiles for long.
test-gpu:
	@tools/prepare --gpu-tests
	tools/gpu $(TARGET)/test-gpu/kernels vulkan
	$(CARGO) test --profile quick --locked --workspace --test gpu -- --include-ignored

prepare:
	@tools/prepare

test:
	@tools/test

# While working: what answers in a minute or two.
check: prepare
	$(CARGO) fmt --all --check
	$(CARGO) clippy --profile quick --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --profile quick --locked --workspace --lib --bins

# Everything at once for hours, with the embedded model beside: memory, files and threads stay as they were, and nothing
# is lost. `make test` runs half a minute of it.
HOURS ?= 1
soak: prepare
	SOAK_HOURS=$(HOURS) $(CARGO) test --profile quick --locked --workspace --test soak -- --nocapture --include-ignored

# What `make test` fuzzes for a second, so many minutes for each target: parsers, extractors, cleaning, templates, headers.
# See crates/fuzzer.
fuzz: MINUTES ?= 1
fuzz: prepare
	FUZZ_SECONDS=$$(( $(MINUTES) * 60 )) $(CARGO) test --profile quick --locked --workspace --lib --bins --no-fail-fast -- \
		fuzz:: --nocapture --test-threads 1

# A first request and all tests on a bare Debian, as a new user has it; needs root. See `tools/bare`.
bare:
	tools/bare first-answer
	tools/bare make test

lint: prepare
	$(CARGO) fmt --all --check
	$(CARGO) clippy --profile quick --workspace --all-targets --locked -- -D warnings
	python3 -m py_compile bench/*.py
	tools/deny

# Rewrites the pages that are made from the program: the API's description, settings, commands, metrics.
docs: prepare build
	REWRITE_OPENAPI=1 $(CARGO) test --profile quick --locked --workspace --test openapi file_describes
	REWRITE_DOCS=1 $(CARGO) test --profile quick --locked --workspace --test deploy the_page_of_metrics
	$(TARGET)/quick/adriaticum config --markdown > docs/configuration.md
	$(TARGET)/quick/adriaticum man --markdown > docs/commands.md

# Trains the scorer on the labelled rows of crates/grounding/data. See docs/grounding.md for the steps around it.
scorer:
	$(CARGO) run --profile quick --locked -p grounding --example train

bench: dist
	$(CARGO) build --release --locked -p store --examples
	$(CARGO) build --release --locked -p grounding --examples
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
