package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

// readUsage is a program in Yaegi that reads a body in parts, or a prompt.
const readUsage = `package main

import (
	"fmt"
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
)

func Read(h http.Header, body []byte, size int) string {
	var total int64
	r := usage.New(&total, usage.Response{Header: h}, usage.Response{})[0]
	for len(body) > size {
		r.Write(body[:size])
		body = body[size:]
	}
	r.Write(body)
	return fmt.Sprint(usage.End(r)[0], total)
}

func ReadPrompt(path string, types []string, body []byte) string {
	a := &usage.Request{Path: path, ContentTypes: types, Body: body}
	usage.ReadPrompts([]*usage.Request{{Path: "/v1/batches", Body: []byte("{")}, a, {Path: "/"}})
	return fmt.Sprint(a.Prompt, a.Err)
}`

// interpretedUsage returns a function of readUsage.
func interpretedUsage(t *testing.T, name string) any {
	t.Helper()
	gopath := t.TempDir()
	harness.LinkPlugin(t, "..", gopath)
	i := interp.New(interp.Options{GoPath: gopath})
	err := i.Use(stdlib.Symbols)
	if err == nil {
		_, err = i.Eval(readUsage)
	}
	check.OK(t, err)
	v, err := i.Eval("main." + name)
	check.OK(t, err)
	return v.Interface()
}

// Traefik's interpreter reads prompts as compiled code does.
func TestPromptsAreReadTheSameInterpreted(t *testing.T) {
	read := interpretedUsage(t, "ReadPrompt").(func(string, []string, []byte) string)
	long := strings.Repeat(`,"x":"\"n\""`, 20000)
	types := []string{"multipart/form-data; boundary=b"}
	picture := `{"messages":[{"content":[{"image_url":{"url":"data:image/png;base64,AAAA"}},` +
		`{"type":"tool_result","content":[{"source":{"type":"base64","media_type":"audio/mp3",` +
		`"data":"AAAA"}}]}]}]}`
	form := "--b\r\nContent-Disposition: form-data; name=model\r\n\r\nwhisper\r\n--b--\r\n"
	for _, body := range []string{`{"model":"m","max_tokens":7,"n":2}`, `{"n":1,"N":2}`, `{"model":1`,
		picture, form,
		`{"options":{"num_predict":9},"x":{"options":1}}`, `{"options":{"num_predict":9},"options":1}`,
		"\ufeff{\"generationConfig\":{\"maxOutputTokens\":1e400}}", `{"M\u004fdel":"l\u0061rge"}`, `[1]`, "",
		"{\x00\"\x00", `{"background":true` + long + `}`, `{"n":1` + long + `,"n":1}`} {
		for _, path := range []string{"/v1/chat/completions", "/v1/models/a%2Fb:generateContent",
			"/v1/batches"} {
			a := &usage.Request{Path: path, ContentTypes: types, Body: []byte(body)}
			usage.ReadPrompts([]*usage.Request{a})
			got := read(path, types, []byte(body))
			check.Equal(t, fmt.Sprintf("%s %.60s", path, body), got, fmt.Sprint(a.Prompt, a.Err))
		}
	}
}

// Traefik's interpreter reads usage as compiled code does.
func TestUsageIsReadTheSameInterpreted(t *testing.T) {
	read := interpretedUsage(t, "Read").(func(http.Header, []byte, int) string)
	for name, a := range llm.Answers(t) {
		h := http.Header{"Content-Type": {a.ContentType}}
		var total int64
		r := usage.New(&total, usage.Response{Header: h})[0]
		_, _ = r.Write(a.Body)
		want := fmt.Sprint(usage.End(r)[0], 0)
		for _, size := range []int{7, len(a.Body)} {
			check.Equal(t, fmt.Sprintf("%s in parts of %d bytes", name, size), read(h, a.Body, size),
				want)
		}
	}
}
