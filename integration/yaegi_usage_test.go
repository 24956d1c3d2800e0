package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
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
	files, err := filepath.Glob("../internal/proxy/usage/testdata/*/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kind := "application/json"
		switch filepath.Ext(file) {
		case ".sse":
			kind = "text/event-stream"
		case ".ndjson":
			kind = "application/x-ndjson"
		}
		h := http.Header{"Content-Type": {kind}}
		var total int64
		r := usage.New(h, &total)
		_, _ = r.Write(body)
		want := fmt.Sprint(r.End(), 0)
		for _, size := range []int{7, len(body)} {
			check.Equal(t, fmt.Sprintf("%s in parts of %d bytes", file, size), read(h, body, size), want)
		}
	}
}
