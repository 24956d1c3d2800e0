package integration

import (
	"os"
	"regexp"
	"testing"
)

var requiredCaddy = regexp.MustCompile(`github\.com/caddyserver/caddy/v2 v(\S+)`)

func TestTheGuideNamesTheOldestAndTheNewestCaddy(t *testing.T) {
	read := func(name string) []byte {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for what, module := range map[string]string{"oldest": "../go.mod", "newest": "../xcaddy/go.mod"} {
		required := requiredCaddy.FindSubmatch(read(module))
		if required == nil {
			t.Fatalf("%s does not require Caddy", module)
		}
		version := string(required[1])
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(version) + `\b`).Match(read("../docs/caddy.md")) {
			t.Errorf("docs/caddy.md does not name %s, the %s Caddy that is tested", version, what)
		}
	}
}
