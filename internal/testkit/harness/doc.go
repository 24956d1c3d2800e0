// Package harness is shared by the integration tests and the benchmark. It runs child processes that end with
// their test (processes.go, caddy.go), builds programs once (build.go, traefik.go), and sends HTTP load
// (load.go).
package harness
