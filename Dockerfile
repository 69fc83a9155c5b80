# syntax=docker/dockerfile:1
# All binaries of Squire in one small image. `docker build -t squire .`; the layer with the dependencies (Lance) is built once and
# reused as long as Cargo.lock stays.

FROM rust:1.94-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends protobuf-compiler mold && rm -rf /var/lib/apt/lists/*
WORKDIR /src
ENV CARGO_TARGET_DIR=/target
# First the manifests with empty crates: what is compiled here is everybody else's code.
COPY Cargo.toml Cargo.lock ./
# Flags: with others in the second step everything would be compiled again. release.toml asks for processors with AVX2.
COPY .cargo .cargo
COPY shared/registry/Cargo.toml shared/registry/Cargo.toml
COPY shared/registry/cli/Cargo.toml shared/registry/cli/Cargo.toml
COPY shared/lake/Cargo.toml shared/lake/Cargo.toml
COPY shared/service/Cargo.toml shared/service/Cargo.toml
COPY services/maintenance/Cargo.toml services/maintenance/Cargo.toml
COPY services/reconcile/Cargo.toml services/reconcile/Cargo.toml
COPY services/index-build/Cargo.toml services/index-build/Cargo.toml
COPY tests/e2e/Cargo.toml tests/e2e/Cargo.toml
COPY tests/support/Cargo.toml tests/support/Cargo.toml
COPY scripts/empty_crates.sh scripts/empty_crates.sh
RUN scripts/empty_crates.sh && cargo --config .cargo/release.toml build --release --workspace --bins --locked && scripts/empty_crates.sh --remove
# Then ours.
COPY . .
RUN find shared services tests -name '*.rs' -exec touch {} + && cargo --config .cargo/release.toml build --release --workspace --bins --locked

# glibc, libgcc and certificates, and nothing else: no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /target/release/squire-maintenance /target/release/squire-reconcile /target/release/squire-index-build /target/release/squire-registry /usr/local/bin/
USER 65532:65532
WORKDIR /scratch
ENTRYPOINT ["/usr/local/bin/squire-maintenance"]
CMD ["--help"]
