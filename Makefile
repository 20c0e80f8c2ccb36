# Everything one does with this repository. `make run` and `make test` need Rust, a C compiler and make; `make bench`
# fetches its peers (nginx, wrk, Portkey, LiteLLM) into the user's cache by itself.

CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: run build test lint bench bench-quick

run: build
	$(TARGET)/release/adriaticum serve

build:
	$(CARGO) build --release --locked

test:
	$(CARGO) test --workspace --lib --bins --tests --locked

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	python3 -m py_compile bench/*.py

bench: build
	$(CARGO) build --release --locked -p store --example fill
	python3 bench/gateways.py --results bench/RESULTS.md
	python3 bench/growth.py --results bench/RESULTS.md

bench-quick: build
	python3 bench/gateways.py --quick
