// Package harness has what the integration tests and the benchmark share: child
// processes that end with their test (processes.go, caddy.go), programs that are built once
// a test process (build.go, traefik.go), and HTTP load (load.go).
package harness
