// Package llm has answers of language models' APIs, and what each of them reports. They are files of
// testdata, and truth.json describes each.
package llm

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"net/http"
	"testing"
)

//go:embed testdata
var files embed.FS

// Answer is a response of an API. A nil count was not reported.
type Answer struct {
	Request     string
	Status      int
	ContentType string `json:"content_type"`
	// Rule is "reported"; "stream" for a stream without usage, which costs what it has sent; or "free".
	Rule       string
	Tokens     int64 // the sum of the counts
	Input      *int64
	CacheRead  *int64 `json:"cache_read"`
	CacheWrite *int64 `json:"cache_write"`
	Output     *int64
	// Events and Characters count the text that a stream has sent after its last report.
	Events     int64 `json:"events_after"`
	Characters int64 `json:"characters_after"`
	Body       []byte
}

// Answers returns all answers by their names, such as "gemini/stream.sse".
func Answers(t testing.TB) map[string]*Answer {
	t.Helper()
	all := map[string]*Answer{}
	text, err := files.ReadFile("testdata/truth.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	for name, a := range all {
		if err == nil {
			a.Body, err = files.ReadFile("testdata/" + name)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Sent returns the tokens that a stream has sent after its last report.
func (a *Answer) Sent() int64 { return max(a.Events, (a.Characters+3)/4) }

// Cost returns the tokens of an answer to a request with an estimated input.
func (a *Answer) Cost(input int64) int64 {
	if a.Rule != "stream" {
		return a.Tokens
	}
	if a.Input != nil {
		input = *a.Input
	}
	n := a.Sent() + input
	for _, kind := range []*int64{a.CacheRead, a.CacheWrite, a.Output} {
		if kind != nil {
			n += *kind
		}
	}
	return n
}

// Respond sends an answer in several parts, as gzip if zipped.
func (a *Answer) Respond(w http.ResponseWriter, zipped bool) {
	body := a.Body
	w.Header().Set("Content-Type", a.ContentType)
	if zipped {
		body = Gzip(body)
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(a.Status)
	for len(body) > 0 {
		n := min(len(body), 200)
		_, _ = w.Write(body[:n]) // an error means that the client has left
		_ = http.NewResponseController(w).Flush()
		body = body[n:]
	}
}

// Gzip returns a body encoded as gzip.
func Gzip(body []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(body) // no write to a buffer fails
	_ = w.Close()
	return b.Bytes()
}
