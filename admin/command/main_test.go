package command_test

import (
	"os"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/pgratelimit/pg-ratelimit/admin"
)

// asCaddy is the name of an environment variable that makes the test program run as Caddy.
const asCaddy = "PG_RATELIMIT_TEST_CADDY"

func TestMain(m *testing.M) {
	if os.Getenv(asCaddy) != "" {
		caddycmd.Main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}
