package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

// readUsage is a program in Yaegi that reads a body in parts.
const readUsage = `package main

import (
	"fmt"
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
)

func Read(h http.Header, body []byte, size int) string {
	var total int64
	r := usage.New(h, &total)
	for len(body) > size {
		r.Write(body[:size])
		body = body[size:]
	}
	r.Write(body)
	return fmt.Sprint(r.End(), total)
}`

// Traefik's interpreter reads usage as compiled code does.
func TestUsageIsReadTheSameInterpreted(t *testing.T) {
	gopath := t.TempDir()
	linkPlugin(t, gopath)
	i := interp.New(interp.Options{GoPath: gopath})
	if err := i.Use(stdlib.Symbols); err != nil {
		t.Fatal(err)
	}
	_, err := i.Eval(readUsage)
	if err != nil {
		t.Fatal(err)
	}
	v, err := i.Eval("main.Read")
	if err != nil {
		t.Fatal(err)
	}
	read := v.Interface().(func(http.Header, []byte, int) string)
	for name, a := range llm.Answers(t) {
		h := http.Header{"Content-Type": {a.ContentType}}
		var total int64
		r := usage.New(h, &total)
		_, _ = r.Write(a.Body)
		want := fmt.Sprint(r.End(), 0)
		for _, size := range []int{7, len(a.Body)} {
			check.Equal(t, fmt.Sprintf("%s in parts of %d bytes", name, size), read(h, a.Body, size),
				want)
		}
	}
}
