// Package respond writes the response of a limit: the X-RateLimit fields, the RateLimit fields of the IETF
// draft, Retry-After, and the body of a refusal.
//
// An Outcome says what happens to a request, and which decision the fields describe. SetFields writes the
// fields into a response; RestoreHeaders and RestoreFields put them back after an upstream has set its own.
//
//   - outcome.go: the outcome, and which of several decisions is the tightest. clock.go: clocks that differ.
//   - headers.go, ietf.go, salt.go: the fields. refusal.go: the body. upstream.go: the fields of an upstream.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package respond
