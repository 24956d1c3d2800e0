// Package clients has a test of what clients do with refusals: SDKs of language models, libraries that retry,
// and a browser.
package clients
