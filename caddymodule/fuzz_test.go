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

// FuzzCaddyfileRoundTripsThroughJSON checks that any directive either causes an error with its line, or gives
// a configuration that is equal after a round trip through JSON.
func FuzzCaddyfileRoundTripsThroughJSON(f *testing.F) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		f.Fatalf("got %d golden cases and error %v, want some", len(files), err)
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
			var target caddyfile.Unmarshaler
			switch tokens[i].Text {
			case "pg_ratelimit":
				target = new(caddymodule.Handler)
			case "pg_ratelimit_page":
				target = new(caddymodule.Page)
			default:
				continue
			}
			if err := target.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens[i:])); err != nil {
				if !place.MatchString(err.Error()) {
					t.Errorf("error %v, want one with a line", err)
				}
				continue
			}
			want := caddyconfig.JSON(target, nil)
			again := reflect.New(reflect.TypeOf(target).Elem()).Interface()
			if err := caddy.StrictUnmarshalJSON(want, again); err != nil {
				t.Fatalf("reading %s: %v", want, err)
			}
			if got := caddyconfig.JSON(again, nil); !bytes.Equal(got, want) {
				t.Errorf("after a round trip, got %s, want %s", got, want)
			}
		}
	})
}
