// Package edge is what both proxies do with a request: read the limits of a
// configuration, ask a store, and turn its decisions into headers, a refusal, or
// what was configured for the case that no decision could be had.
//
// It runs interpreted in one of the two, so it uses the standard library only.
package edge
