package caddymodule

import (
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// A Caddy without the commands says how to build one with them.
func TestMissingCommandsNameTheirPackage(t *testing.T) {
	cmd := &cobra.Command{}
	caddycmd.Commands()["pg-ratelimit"].CobraFunc(cmd)
	const want = "--with github.com/pgratelimit/pg-ratelimit/admin"
	if err := cmd.RunE(cmd, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %s", err, want)
	}
}
