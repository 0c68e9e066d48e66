# airdma: `make demo` to see it, `make test` to check everything, `make bench` to measure it.

# Debian's python3-pyverbs belongs to Debian's interpreter, not to one from pyenv or conda.
PYTHON ?= $(if $(wildcard /usr/bin/python3),/usr/bin/python3,python3)
CARGO ?= cargo
BENCH_OPTIONS ?=
ONLY ?=
SYSTEM_OPTIONS ?=
MUTANTS_OPTIONS ?=
INTEROP_OPTIONS ?=
STARVE_OPTIONS ?=
SOCKETS_OPTIONS ?=
INSTRUCTIONS_OPTIONS ?=
PACKAGES_OPTIONS ?=
SUITES ?= lint unit loom worlds air-virtual congestion records-virtual instructions system sockets-short starve-short packages interop-quick rdma-core-check
WORLDS ?= 20000
FIRST ?= 0
HOURS ?= 1
TARGET ?=
SECONDS ?= 60

# An own target folder: other flags would throw the ordinary build away. Without link-time optimisation, which would take
# longer than the tests.
LOOM = RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	$(CARGO) test -p airdma-shm -p airdma-preload -p airdma-engine -p airdma-verbs --release --test loom

# Loom's source, as Cargo fetched it, with tests/loom/every-access.patch.
LOOM_MENDED = target/loom-every-access
LOOM_SOURCE = $(CARGO) metadata --format-version 1 | $(PYTHON) -c 'import json, pathlib, sys; \
	print(*(pathlib.Path(p["manifest_path"]).parent for p in json.load(sys.stdin)["packages"] if p["name"] == "loom"))'

# Both need a nightly toolchain with rust-src, and Miri. ThreadSanitizer must see the standard library, too.
NIGHTLY ?= $(CARGO) +nightly
THREADS_SECONDS ?= 20
TSAN = RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR=target/tsan CARGO_PROFILE_DEV_OPT_LEVEL=1 \
	AIRDMA_THREADS_SECONDS=$(THREADS_SECONDS) \
	$(NIGHTLY) test -Zbuild-std --target $(shell rustc -vV | sed -n 's/^host: //p') -p airdma-engine --test threads
MIRI = CARGO_TARGET_DIR=target/miri $(NIGHTLY) miri test -p airdma-shm --lib -- --skip arena::

.DEFAULT_GOAL := help
.PHONY: help build deb rpm image wheel release aarch64 packages packages-fresh demo test lint unit loom loom-every-access tsan miri worlds air-virtual congestion records-virtual soak dropin system programs sockets sockets-short starve starve-short interop interop-quick interop-beside gstreamer rdma-core rdma-core-check matrix bench instructions instructions-write fuzz coverage mutants clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## release binaries
	$(CARGO) build --release --workspace

deb: build dropin ## the package for Debian and Ubuntu, in target/packages
	$(PYTHON) packaging/deb.py

rpm: build dropin ## the package for Fedora and its relatives, in target/packages
	$(PYTHON) packaging/rpm.py

image: build dropin ## the container image, as an OCI layout in target/packages, without a daemon
	$(PYTHON) packaging/image.py

wheel: ## wheel and source distribution of the Python package, in target/packages (python3-venv, PyPI)
	$(PYTHON) packaging/wheel.py

release: build dropin ## all packages with their checksums and a bill of materials, in target/release-files
	$(PYTHON) packaging/release.py

aarch64: ## cross-builds everything for 64-bit ARM, and runs the tests of six crates by QEMU (a quarter of an hour; rustup target, gcc-aarch64-linux-gnu, qemu-user)
	CARGO="$(CARGO)" $(PYTHON) tests/aarch64.py

packages: build dropin ## makes the packages, looks at what is in them and runs it from a folder (a minute)
	$(PYTHON) tests/packages/run.py $(PACKAGES_OPTIONS)

packages-fresh: build dropin ## the same, then installed into fresh Debian 12 and 13 and removed (root, debootstrap, Debian's archive)
	$(PYTHON) tests/packages/run.py --wheel release --roots bookworm,trixie $(PACKAGES_OPTIONS)

demo: ## RDMA programs between two hosts without RDMA NIC, beside TCP (a minute after building; no root needed)
	@CARGO="$(CARGO)" $(PYTHON) tools/build_demo.py
	$(PYTHON) tools/demo.py

test: ## everything below: lints, unit tests, model checks, system tests; the end has the seconds of each
	@$(PYTHON) tests/suites.py $(SUITES)

lint: ## formatting, clippy with warnings denied, ruff and mypy, crate dependencies, the English of comments, the book's pages and links, MATRIX.md and the tables in docs up to date
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(PYTHON) tests/python.py
	$(PYTHON) tests/architecture.py
	$(PYTHON) tests/book.py
	$(PYTHON) tests/text.py
	$(PYTHON) tools/verbs_matrix.py --check
	$(PYTHON) tools/programs_table.py --check
	$(PYTHON) tools/reliability.py check
	$(PYTHON) tests/interop/document.py --check
	$(PYTHON) tests/instructions/run.py --check-table

unit: ## unit tests, golden vectors, simulated pairs, and the tests of the tools
	$(CARGO) test --workspace --no-fail-fast
	$(PYTHON) -m unittest discover --start-directory tests/lab --top-level-directory tests/lab

loom: ## model checks of all that threads share (LOOM_MAX_PREEMPTIONS=3: go further)
	$(LOOM)

loom-every-access: ## the same with a loom that forgets no access (docs/design/011-concurrency.md says why)
	rm -rf $(LOOM_MENDED)/loom && mkdir -p $(LOOM_MENDED)
	cp -r "$$($(LOOM_SOURCE))" $(LOOM_MENDED)/loom
	git apply --directory=$(LOOM_MENDED)/loom tests/loom/every-access.patch
	$(LOOM) --target-dir $(LOOM_MENDED)/build --config 'paths = ["$(LOOM_MENDED)/loom"]'

tsan: ## many threads on shared objects under ThreadSanitizer (THREADS_SECONDS=20; nightly, rust-src)
	$(TSAN)

miri: ## the unsafe code of the shared rings under Miri (nightly)
	$(MIRI)

worlds: build ## 20,000 random worlds in virtual time, judged by the reference model (WORLDS=n, FIRST=seed)
	target/release/airdma sim --worlds $(WORLDS) --first $(FIRST)

air-virtual: build ## transfers on simulated Wi-Fi: docs/benchmarks/air-virtual.md says what they were
	target/release/airdma sim air --check docs/benchmarks/air-virtual.md

congestion: build ## devices that share a queue which marks: docs/benchmarks/congestion.md says what they got
	target/release/airdma sim congestion --check docs/benchmarks/congestion.md

records-virtual: build ## Write-Records over a network with loss: docs/benchmarks/records-virtual.md says what was valid
	target/release/airdma sim records --check docs/benchmarks/records-virtual.md

soak: build ## the same for HOURS=1, from a seed that nobody had before; keeps the record for docs/reliability.md
	$(PYTHON) tools/reliability.py worlds --hours $(HOURS)
	$(PYTHON) tools/reliability.py write

dropin: ## libibverbs.so.1 and librdmacm.so.1 for LD_LIBRARY_PATH, in target/release/dropin
	CARGO="$(CARGO)" sh crates/verbs/dropin/build.sh

system: $(if $(filter list,$(ONLY)),,build dropin) ## unmodified programs on every kind of link (ONLY=queue_service: one suite, several with commas; ONLY=list: their names; SYSTEM_OPTIONS=--full: all combinations)
	$(PYTHON) tests/system/run.py $(if $(ONLY),--only $(ONLY)) $(SYSTEM_OPTIONS)

programs: build dropin ## the programs of docs/programs.md, which is written again (SYSTEM_OPTIONS="--match fio": some)
	$(PYTHON) tests/system/run.py --programs $(SYSTEM_OPTIONS)

sockets: build ## socket programs under `airdma sockets`, at both ends, one, and none: the same behaviour (SOCKETS_OPTIONS="--only traps --match fork": some)
	$(PYTHON) tests/sockets/run.py $(SOCKETS_OPTIONS)

sockets-short: build ## the part of it that `make test` runs
	$(PYTHON) tests/sockets/run.py --short

starve: build ## programs on a machine that is starved, 200 runs each; STARVE_OPTIONS="--record", "--runs 20 --only REGEX"; --short: once each
	$(PYTHON) tests/starve/run.py $(STARVE_OPTIONS)

starve-short: build ## the part of it that `make test` runs
	$(PYTHON) tests/starve/run.py --short

interop: build ## every scenario against the rxe of a stock kernel in QEMU; writes docs/interop.md (INTEROP_OPTIONS="--only REGEX --kernel 6.12")
	$(PYTHON) tests/interop/run.py $(INTEROP_OPTIONS)

interop-quick: build ## the part of it that `make test` runs; says so where there is no QEMU
	$(PYTHON) tests/interop/run.py --quick --or-skip

interop-beside: build ## airdma and rxe beside each other in that guest, by the same programs
	$(PYTHON) tests/interop/beside.py --write

rdma-core: build ## rdma-core's own tests, of the host's release and of the newest; writes docs/rdma-core-tests*.md
	$(PYTHON) tests/rdma_core/run.py
	$(PYTHON) tests/rdma_core/run.py --newest

rdma-core-check: build ## the same, compared with docs/rdma-core-tests*.md
	$(PYTHON) tests/rdma_core/run.py --check
	$(PYTHON) tests/rdma_core/run.py --newest --check

# A workspace of its own, whose build needs GStreamer's development files and Rust 1.92.
GSTREAMER = cd plugins/gstreamer && CARGO_TARGET_DIR=../../target/gstreamer $(CARGO)

gstreamer: ## the GStreamer elements: formatting, clippy, tests in pipelines; says so where GStreamer's files are missing
	@if pkg-config --exists gstreamer-video-1.0 && command -v gst-launch-1.0 > /dev/null; then \
		set -ex; rm -f target/gstreamer-skipped; \
		($(GSTREAMER) fmt --check); \
		($(GSTREAMER) clippy --all-targets -- -D warnings); \
		($(GSTREAMER) test -- --test-threads 1); \
	elif [ "$$CI" = true ]; then \
		echo "gstreamer: FAILED: GStreamer's development files are missing" >&2; exit 1; \
	else \
		mkdir -p target; echo "gstreamer: skipped, its development files are missing (libgstreamer-plugins-base1.0-dev)" | tee target/gstreamer-skipped; \
	fi

matrix: ## writes MATRIX.md: what is supported, and who uses it
	$(PYTHON) tools/verbs_matrix.py

fuzz: ## coverage-guided bytes against every target of fuzz/, or TARGET=name, for SECONDS=60 each (nightly)
	$(PYTHON) fuzz/run.py --seconds $(SECONDS) $(TARGET); status=$$?; $(PYTHON) tools/reliability.py write; exit $$status

coverage: ## lines and branches of wire and transport that tests and kept fuzz inputs reach (nightly)
	$(PYTHON) tests/coverage.py

mutants: ## runs the tests against each mutant of transport and the engine's memory; goes on where it stopped
	nice -n 19 $(PYTHON) tests/mutants/run.py $(MUTANTS_OPTIONS)

bench: build ## airdma beside TCP, bare UDP and others, half an hour; writes target/bench/latest.* (BENCH_OPTIONS=--quick: minutes)
	target/release/airdma bench --output target/bench/latest $(BENCH_OPTIONS)

instructions: build ## counts the instructions of the hot paths, and compares them with docs/benchmarks/instructions.json (a minute)
	$(PYTHON) tests/instructions/run.py $(INSTRUCTIONS_OPTIONS)

instructions-write: build ## the same, and keeps the numbers (INSTRUCTIONS_OPTIONS="--only REGEX": some)
	$(PYTHON) tests/instructions/run.py --write $(INSTRUCTIONS_OPTIONS)

clean:
	$(CARGO) clean
