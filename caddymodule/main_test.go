package caddymodule_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/pgratelimit/pg-ratelimit/caddymodule"
)

// TestMain keeps Caddy's files out of the home directory.
func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pg_ratelimit_caddy")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Setenv("XDG_CONFIG_HOME", dir), os.Setenv("XDG_DATA_HOME", dir)); err != nil {
		panic(err)
	}
	caddy.DefaultStorage.Path = dir
	caddy.ConfigAutosavePath = filepath.Join(dir, "autosave.json")
	return m.Run()
}
