# syntax=docker/dockerfile:1

# The version of rust-toolchain.toml. Builder and runtime are of one Debian release: they share glibc and OpenSSL 3.
ARG RUST_VERSION=1.95.0

FROM rust:${RUST_VERSION}-slim-bookworm AS build
# librdkafka is compiled by its own script: bash, make, a C and a C++ compiler. OpenSSL is linked dynamically and comes with
# the runtime image; zlib does not, so it is compiled in.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libssl-dev make pkg-config \
    && rm -rf /var/lib/apt/lists/*
ENV LIBZ_SYS_STATIC=1 \
    CARGO_PROFILE_RELEASE_STRIP=debuginfo
WORKDIR /src
COPY . .
# The registry and the compiled dependencies stay in caches of the builder: after a change of the sources only this
# workspace is compiled again. The binaries leave the cache, so that the next stage can see them.
RUN --mount=type=cache,id=outbox-registry,target=/usr/local/cargo/registry \
    --mount=type=cache,id=outbox-target,target=/src/target \
    cargo build --release --locked --workspace --bin relay --bin demo \
    && install -D --target-directory=/out target/release/relay target/release/demo

# No shell, no package manager; the user is 65532, and nothing is written to the root file system.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/relay /out/demo /usr/local/bin/
# Fails here, and not at the first start, if a library were missing.
RUN ["/usr/local/bin/relay", "--version"]
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["relay", "healthcheck"]
ENTRYPOINT ["relay"]
CMD ["run"]
