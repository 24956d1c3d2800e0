package traefikplugin

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func TestEachSettingOfWhatALimitIsForIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`mode: "trial": must be enforce, shadow or off`:                                               func(c *Config) { c.Other["mode"] = "trial" },
		`zones[0].mode: "on": must be enforce`:                                                        func(c *Config) { c.Zones = []Zone{{Other: Settings{"prefix": "z", "limit": "5 1m", "mode": "on"}}} },
		`key: "{header.X} || {client_ip}": must be one text, or alternatives with " | " between them`: func(c *Config) { c.Other["key"] = "{header.X} || {client_ip}" },
		`key: "a{header.X} | {client_ip}": must be one text, or alternatives`:                         func(c *Config) { c.Other["key"] = "a{header.X} | {client_ip}" },
		`settle: "tokens": must be header <name>, bytes, json <path>`:                                 func(c *Config) { c.Other["settle"] = "tokens" },
		`fields: "ietf x": must be x, ietf, or x ietf`:                                                func(c *Config) { c.Other["fields"] = "ietf x" },
		`limits: "gold 5 1m": must be text with a placeholder`:                                        func(c *Config) { c.Other["limit"], c.Other["limits"] = "", "gold 5 1m" },
		`limits: "default 0 1m": must be`:                                                             func(c *Config) { c.Other["limit"], c.Other["limits"] = "", "{header.X} default 0 1m" },
		`limits: " ": must be text with a placeholder`:                                                func(c *Config) { c.Other["limit"], c.Other["limits"] = "", " " },
		`limits: "{nobody}": must be text with`:                                                       func(c *Config) { c.Other["limit"], c.Other["limits"] = "", "{nobody} default 5 1m" },
		`limit: "100 1m": must be left out: limits are given`:                                         func(c *Config) { c.Other["limits"] = "{header.X} default 5 1m" },
		`lease: "5%": must be left out: a lease is for one limit`: func(c *Config) {
			c.Other["limit"], c.Other["limits"], c.Other["lease"] = "", "{header.X} default 5 1m", "5%"
		},
		`exempt: "10.0.0.300": must be networks or addresses`:                                  func(c *Config) { c.Other["exempt"] = "10.0.0.300" },
		`exemptHeader: missing: must be the name of a header and a secret`:                     func(c *Config) { c.Other["exemptHeader"] = "hunter2-alone-is-wrong" },
		`exemptHeader: "X-Internal …": must be with a secret of 16 characters`:                 func(c *Config) { c.Other["exemptHeader"] = "X-Internal hunter2" },
		`exemptHeader: "X-Internal …": must be with a secret: only {env.NAME} and {file.PATH}`: func(c *Config) { c.Other["exemptHeader"] = "X-Internal {env.PG_RATELIMIT_UNSET}" },
		`exemptHeader: "X-Internal …": must be with a secret: open /nonexistent: no such file`: func(c *Config) { c.Other["exemptHeader"] = "X-Internal {file./nonexistent}" },
		`key: "{nobody}": must be text with`:                                                   func(c *Config) { c.Other["key"] = "{nobody}" },
		`match: missing: must be given with paths, methods, hosts or headers`:                  func(c *Config) { c.Match = &edge.Match{} },
		`zones[0].match.paths: "api": must be a path such as /login`: func(c *Config) {
			c.Zones = []Zone{{Other: Settings{"prefix": "z", "limit": "5 1m"}, Match: &edge.Match{Paths: []string{"/x", "api"}}}}
		},
		`match.hosts: "a:80": must be a host`:                    func(c *Config) { c.Match = &edge.Match{Hosts: []string{"a:80"}} },
		`match.methods: "G T": must be methods such as GET`:      func(c *Config) { c.Match = &edge.Match{Methods: []string{"G T"}} },
		`match.headers: "X-Plan:": must be the name of a header`: func(c *Config) { c.Match = &edge.Match{Headers: []string{"X-Plan:"}} },
	} {
		c := valid()
		change(c)
		if _, err := New(t.Context(), nil, c, "test"); err == nil || !strings.HasPrefix(err.Error(), "pg_ratelimit: "+want) {
			t.Errorf("want %s …, got %v", want, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error has the secret: %v", err)
		}
	}
}
