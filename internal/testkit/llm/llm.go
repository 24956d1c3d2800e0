// Package llm has answers of language models' APIs, and what each of them reports. They are files of
// testdata, and truth.json and parts.json describe each.
package llm

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

//go:embed testdata
var files embed.FS

// Answer is a response of an API.
type Answer struct {
	Request     string
	RequestBody json.RawMessage   `json:"request_body"`
	RequestForm map[string]string `json:"request_form"` // in place of a body
	Status      int
	ContentType string `json:"content_type"`
	Headers     map[string]string
	// Rule is "reported"; "stream" for a stream without usage, which costs what it has sent; or "free".
	Rule    string
	Tier    string
	Model   string // that the request names
	PriceOf string `json:"price_of"` // the model in Rates; "" for an answer without a bill
	Charged *bool  // false: nobody is charged for it
	// Money is the exact cost by Rates, without an input that was not reported.
	Money        json.Number
	WithoutInput json.Number `json:"money_without_input"`
	// Parts is what was reported. Input and Output are -1 if they were not.
	Parts option.Parts `json:"-"`
	// Events and Characters count the text that a stream has sent after its last report.
	Events     int64 `json:"events_after"`
	Characters int64 `json:"characters_after"`
	Body       []byte
}

// truth has the numbers of an answer in the two forms of testdata. A nil number was not reported.
type truth struct {
	Answer
	Parts      map[string]*int64
	Input      *int64
	CacheRead  *int64 `json:"cache_read"`
	CacheWrite *int64 `json:"cache_write"`
	Output     *int64
}

// parts returns the parts of an answer.
func (x *truth) parts() option.Parts {
	if x.Parts == nil {
		x.Parts = map[string]*int64{"input": x.Input, "cache_read": x.CacheRead, "cache_write": x.CacheWrite,
			"output": x.Output}
	} else if x.Rule == "stream" {
		x.Parts["output"] = nil // it is computed from what was sent
	}
	var p option.Parts
	for i, name := range option.PartNames {
		if n, ok := x.Parts[name]; n != nil {
			p[i] = *n
		} else if ok && (i == option.Input || i == option.Output) {
			p[i] = -1
		}
	}
	return p
}

// Answers returns all answers by their names, such as "gemini/stream.sse".
func Answers(t testing.TB) map[string]*Answer {
	t.Helper()
	all := map[string]*Answer{}
	for _, name := range []string{"truth.json", "parts.json"} {
		these := map[string]*truth{}
		text, err := files.ReadFile("testdata/" + name)
		if err == nil {
			err = json.Unmarshal(text, &these)
		}
		for name, x := range these {
			if err == nil {
				x.Body, err = files.ReadFile("testdata/" + name)
			}
			x.Answer.Parts = x.parts()
			if string(x.RequestBody) == "null" { // how JSON writes no body
				x.RequestBody = nil
			}
			if x.Money == "" {
				x.Money = x.WithoutInput
			}
			all[name] = &x.Answer
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Rates returns the prices of models: of a million tokens, or of one search or request, by part, or PART@N if
// the input exceeds N tokens; and the factors of tiers by "TIER.".
func Rates(t testing.TB) map[string]map[string]string {
	t.Helper()
	var file struct {
		Models map[string]struct {
			Prices, Each, Tiers map[string]string
			Above               []struct {
				Tokens int64
				Prices map[string]string
			}
		}
	}
	text, err := files.ReadFile("testdata/prices.json")
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for name, m := range file.Models {
		rates := m.Prices
		maps.Copy(rates, m.Each)
		for _, step := range m.Above {
			for part, rate := range step.Prices {
				rates[fmt.Sprint(part, "@", step.Tokens)] = rate
			}
		}
		for tier, factor := range m.Tiers {
			rates[tier+"."] = factor
		}
		if rates["output"] == "" {
			rates["output"] = "0"
		}
		all[name] = rates
	}
	return all
}

// Sent returns the tokens that a stream has sent after its last report.
func (a *Answer) Sent() int64 { return max(a.Events, (a.Characters+3)/4) }

// Cost returns the tokens of an answer to a request with an estimated input.
func (a *Answer) Cost(input int64) int64 {
	if a.Charged != nil && !*a.Charged {
		return 0
	}
	p := a.Parts
	if p[option.Input] < 0 {
		p[option.Input] = input
	}
	p[option.Output] = max(p[option.Output], 0) + a.Sent()
	return p.InputTokens() + p.OutputTokens()
}

// Ask returns the request of an answer to the server at url.
func (a *Answer) Ask(t testing.TB, url string) *http.Request {
	t.Helper()
	method, path, _ := strings.Cut(a.Request, " ")
	body, kind := bytes.NewBuffer(a.RequestBody), "application/json"
	if a.RequestForm != nil {
		body.Reset()
		form := multipart.NewWriter(body)
		for name, value := range a.RequestForm {
			_ = form.WriteField(name, value) // no write to a buffer fails
		}
		kind = form.FormDataContentType()
		_ = form.Close()
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", kind)
	return r
}

// Respond sends an answer in several parts, as gzip if zipped.
func (a *Answer) Respond(w http.ResponseWriter, zipped bool) {
	body := a.Body
	w.Header().Set("Content-Type", a.ContentType)
	for name, value := range a.Headers {
		w.Header().Set(name, value)
	}
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
