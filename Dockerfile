# SPDX-License-Identifier: Apache-2.0
# docker buildx build --platform linux/amd64,linux/arm64 -t IMAGE .
#
# The image is llm-d's Endpoint Picker to whoever starts it: what follows the image's name is read
# as flags of `penstock epp`. For other commands: --entrypoint /penstock IMAGE serve -f /manifests.
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH
# The same source gives the same bytes: no paths, no build id, no C compiler. The commit comes from .git.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
	go build -trimpath -ldflags="-s -w -buildid=" -o /penstock ./cmd/penstock

# Certificates of authorities and time zones, no shell; user 65532.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /penstock /penstock
USER 65532:65532
# ext_proc, its health, metrics and debug pages, the built-in proxy.
EXPOSE 9002 9003 9090 8080
ENTRYPOINT ["/penstock", "epp"]
