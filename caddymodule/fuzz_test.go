package caddymodule_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/caddymodule"
)

// FuzzCaddyfile: any directive is refused with an error that has its line, or gives a configuration, with
// JSON that says the same.
func FuzzCaddyfile(f *testing.F) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		config, _, _ := bytes.Cut(text, []byte("----------\n"))
		f.Add(config)
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		tokens, err := caddyfile.Tokenize(config, "Caddyfile")
		if err != nil {
			return
		}
		for i := range tokens {
			var into caddyfile.Unmarshaler
			switch tokens[i].Text {
			case "pg_ratelimit":
				into = new(caddymodule.Handler)
			case "pg_ratelimit_page":
				into = new(caddymodule.Page)
			default:
				continue
			}
			if err := into.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens[i:])); err != nil {
				if !place.MatchString(err.Error()) {
					t.Errorf("the error names no line: %v", err)
				}
				continue
			}
			text := caddyconfig.JSON(into, nil)
			again := reflect.New(reflect.TypeOf(into).Elem()).Interface()
			if err := caddy.StrictUnmarshalJSON(text, again); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if got := caddyconfig.JSON(again, nil); !bytes.Equal(got, text) {
				t.Errorf("%s becomes %s", text, got)
			}
		}
	})
}
