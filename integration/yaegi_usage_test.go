package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// readPrompt is a program in Yaegi that reads a prompt.
const readPrompt = `package main

import (
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
)

func ReadPrompt(path string, body []byte) string {
	p, err := usage.ReadPrompt(path, body)
	return fmt.Sprint(p, err)
}`

// Traefik's interpreter reads prompts as compiled code does. TestTokensOfLanguageModelsAreCounted reads
// answers.
func TestPromptsAreReadTheSameInterpreted(t *testing.T) {
	gopath := t.TempDir()
	harness.LinkPlugin(t, "..", gopath)
	i := interp.New(interp.Options{GoPath: gopath})
	err := i.Use(stdlib.Symbols)
	if err == nil {
		_, err = i.Eval(readPrompt)
	}
	if err != nil {
		t.Fatal(err)
	}
	v, err := i.Eval("main.ReadPrompt")
	if err != nil {
		t.Fatal(err)
	}
	read := v.Interface().(func(string, []byte) string)
	long := strings.Repeat(`,"x":"\"n\""`, 20000)
	for _, body := range []string{`{"model":"m","max_tokens":7,"n":2}`, `{"n":1,"N":2}`, `{"model":1`,
		`{"options":{"num_predict":9},"x":{"options":1}}`, `{"options":{"num_predict":9},"options":1}`,
		"\ufeff{\"generationConfig\":{\"maxOutputTokens\":1e400}}", `{"M\u004fdel":"l\u0061rge"}`, `[1]`, "",
		"{\x00\"\x00", `{"background":true` + long + `}`, `{"n":1` + long + `,"n":1}`} {
		for _, path := range []string{"/v1/chat/completions", "/v1/models/a%2Fb:generateContent"} {
			p, err := usage.ReadPrompt(path, []byte(body))
			got := read(path, []byte(body))
			check.Equal(t, fmt.Sprintf("%s %.60s", path, body), got, fmt.Sprint(p, err))
		}
	}
}
