// Package harness is what the integration tests share: child processes that
// end with their test (processes.go), programs that are built once a test
// process (build.go), and HTTP load (load.go).
package harness
