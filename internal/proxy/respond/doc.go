// Package respond writes the parts of a response that describe a limit: the X-RateLimit headers, the
// RateLimit fields of the IETF draft, Retry-After, and the body of a refusal.
//
// An Outcome holds the result for a request: whether the request passes, and which decision the headers
// describe. Tightest selects this decision. SetFields writes the headers. An upstream may set headers of the
// same names, so Headers keeps our headers, and Restore writes them again just before a response is sent. A
// Clock converts times of the database to the clock of the proxy. A Salt protects the partition keys in
// RateLimit fields.
//
// Traefik interprets this package, so it has functions in place of some methods, integers with atomic
// functions, and loops without range over an integer: see internal/testkit/imports/interpreted.go.
package respond
