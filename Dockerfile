# syntax=docker/dockerfile:1

# The version of rust-toolchain.toml. Builder and runtime are of one Debian release: they share glibc and OpenSSL 3. Debian 13 has
# full support until August 2028, and long-term support until 2030.
ARG RUST_VERSION=1.95.0
# In production pin both images: --build-arg RUST_DIGEST=@sha256:… --build-arg RUNTIME_DIGEST=@sha256:…
ARG RUST_DIGEST=
ARG RUNTIME_DIGEST=

# A release gives the program that it has compiled in place of this stage: --build-context build=FOLDER, with out/relay.
FROM rust:${RUST_VERSION}-slim-trixie${RUST_DIGEST} AS build
# librdkafka is compiled with cmake, make, a C and a C++ compiler. OpenSSL is linked dynamically and comes with the runtime
# image; zlib does not, so it is compiled in, as libcurl and zstd always are.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends cmake g++ libssl-dev make pkg-config \
    && rm -rf /var/lib/apt/lists/*
ENV LIBZ_SYS_STATIC=1 \
    CARGO_PROFILE_RELEASE_STRIP=debuginfo
WORKDIR /src
COPY . .
# The registry and the compiled dependencies stay in caches of the builder: after a change of the sources only this
# workspace is compiled again. The binary leaves the cache, so that a later stage can see it.
RUN --mount=type=cache,id=outbox-registry,target=/usr/local/cargo/registry \
    --mount=type=cache,id=outbox-target,target=/src/target \
    cargo build --release --locked --workspace --bin relay \
    && install -D --target-directory=/out target/release/relay

FROM build AS build-demo
RUN --mount=type=cache,id=outbox-registry,target=/usr/local/cargo/registry \
    --mount=type=cache,id=outbox-target,target=/src/target \
    cargo build --release --locked --workspace --bin demo \
    && install -D --target-directory=/out target/release/demo

# No shell, no package manager; the user is 65532, and nothing is written to the root file system.
FROM gcr.io/distroless/cc-debian13:nonroot${RUNTIME_DIGEST} AS runtime
COPY --from=build /out/relay /usr/local/bin/
# Fails here, and not at the first start, if a library were missing.
RUN ["/usr/local/bin/relay", "--version"]
ENTRYPOINT ["relay"]

# The shop of `./dev demo`. It starts relays of its own: docker build --target demo
FROM runtime AS demo
COPY --from=build-demo /out/demo /usr/local/bin/
RUN ["/usr/local/bin/demo", "--help"]
ENTRYPOINT ["demo"]

# The image of a build without a target.
FROM runtime AS relay
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="outbox-relay" \
      org.opencontainers.image.description="The relay of a transactional outbox for MySQL" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="gcr.io/distroless/cc-debian13:nonroot"
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["relay", "healthcheck"]
CMD ["run"]
